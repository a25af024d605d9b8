"""Data sets that are streamed: from whatever gives rows to a checked, split and scaled set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import (
    AtLeastTwo,
    Between,
    Count,
    DataError,
    Scaling,
    Seed,
    ShareOrZero,
    Task,
    Whole,
    are_several,
    as_tensor,
    ask,
    check,
    check_rows,
    check_targets,
    check_weights,
    checked,
    decide_task,
    fingerprint,
    generator,
    named,
    numbered,
    on_scale,
)
from ..formats import Images
from .arrays import Arrays, is_array_folder
from .items import Items
from .pairs import Columns
from .placed import Placed, Source, read_apart, usual_workers
from .shuffle import Parts, Places
from .streamed import Streamed
from .summary import Summary, summarise
from .tables import Tables, is_table

MOST_ASIDE = 10_000
"""Rows of validation or of tests that a share of the rows comes to, at most."""

HELD = 2**24
"""Bytes of training rows that are shuffled together."""

MOST_HELD = 2**16
"""Rows of them, at most: outputs at every depth, or of every draw, take memory too."""

BLOCKS = 8
"""Blocks that are shuffled together, at least, however large they are."""

EXAMPLES = 1024
"""Training rows that are kept as examples."""

TRIED = 64
"""Rows with which a transformation is tried before the training."""

OTHER = 20.0
"""Times that transformed inputs spread more, or less, or standard deviations that they lie apart,
from which on they are on another scale."""

Pair = tuple[Tensor, Tensor]


@checked
def stream(
    source: Any,
    *,
    val: Any = 0.1,
    test: Any = 0.1,
    task: Task | None = None,
    classes: AtLeastTwo | None = None,
    class_names: str | Sequence[object] = (),
    inputs: str | Sequence[object] = (),
    target: str = "",
    weights: str = "",
    ids: bool = False,
    standardise: bool = True,
    batch_transform: Callable[[Any], Any] | None = None,
    seed: Seed = 0,
    name: str = "",
    workers: Whole | None = None,
    held: Count | None = None,
) -> Streamed:
    """A data set whose training rows are read when they are needed, and need not fit into memory.

    The training rows are gone through once to check and to scale them, as those in memory are; in
    one process files that nobody has written to since are not gone through again.
    Rows for validation and tests are taken out of them, or given, and are held in memory.

    Arguments:
        source: A folder of `x.npy` and `y.npy`, or of several such files; a Parquet file, or a
            folder of them; a map-style `torch.utils.data.Dataset` (torchvision's `ImageFolder`,
            one of Hugging Face's `datasets`, ...), or anything with a length and `[i]`, that gives
            pairs (x, y) or dicts; or a :class:`~pyroccam.data.streaming.placed.Source` of your own.
            In a pair x may be a dict or a tuple of several inputs; plain numbers in a list or a
            tuple are one.
        val: The share of the rows to keep for validation, at most 10 000, drawn by `seed`; or how
            many; or the rows themselves, as arrays (x, y) or as what `source` may be. 0 for none.
        test: The same for tests.
        task, classes, class_names, ids: As for :meth:`~pyroccam.data.Dataset.from_tensors`. None
            asks the targets of the rows that are held in memory.
        inputs: Of dicts and tables, the names of the inputs; all but the target, if none.
        target: Of dicts and tables, the name of the target.
        weights: Of dicts and tables, the name of what says how much a row counts in a fit.
        standardise: Whether to scale inputs and regression targets by the training rows.
        batch_transform: A function of inputs (B, ...) as the source has them, on the device, which
            gives as many of the same shape and in the same units, for minibatches of a fit only:
            augmentation, such as torchvision.transforms.v2, which draws once for the whole batch.
            Several inputs it is given, and gives, as a row has them. Its numbers come from
            torch's generator. What it does to the bound is said by :class:`Streamed`.
        seed: Which rows are drawn for validation and tests.
        name: What to call the data.
        workers: Processes that read; by default one for each core but one, at most four, for rows
            that are read one by one, and none for files.
        held: Rows that are shuffled together where the source is read by pieces; by default as
            many as 16 MiB hold, up to 65 536.

    Raises:
        DataError: for rows that cannot be used, or what can only be iterated.
    """
    called = named(class_names)
    columns = Columns.of(inputs, target, weights)

    asked = {"val": val, "test": test}
    given = {w: _all_of(w, o, columns, called) for w, o in asked.items() if _is_rows(o)}
    counts = {what: one for what, one in asked.items() if what not in given}
    found = _source(source, columns, called)
    reader, aside = _placed(found, counts, seed, workers, held)
    given |= {what: read_apart(found, places) for what, places in aside.items()}
    raw = reader.take(np.arange(min(reader.rows, EXAMPLES, max(TRIED, reader.shuffle.held))))
    examples = reader.places(np.arange(len(raw[0])))
    rows_of = {"train": _Rows.of("train", raw, examples)} | {
        what: _Rows.of(what, _packed(what, given[what], reader, len(raw) > 2), aside.get(what))
        for what in asked
        if what in given
    }
    ys = [part.y for part in rows_of.values()]
    task = decide_task("y", *ys, asked=task, classes=called or classes)
    known = len(called) if classes is None and called else classes
    stamps = _stamps(source)
    key = repr((stamps, counts, seed, held, task, known, called, ids, columns))
    summary = _passed.get(key) or summarise(
        reader, task, classes=known, class_names=called, ids=ids
    )
    if stamps:
        _passed[key] = summary
    scaling = _scaling(summary, standardise and not ids, task)
    settings = {"seed": int(seed), "standardise": standardise, **({"ids": True} if ids else {})}
    whole = on_scale(
        _checked(rows_of, task, summary, ids),
        scaling,
        name=name or reader.name,
        task=task,
        classes=summary.classes,
        class_names=tuple(called),
        source={"name": "stream", **settings},
        columns=getattr(found, "inputs", ()),
        target=target,
        digest=fingerprint(
            train=summary.digest,
            **{f"{part}_{what}": values for what, rows in rows_of.items() if what != "train"
               for part, values in rows.tensors.items()},
        ),
        fields=reader.fields,
        weights=_weights(rows_of["train"], summary),
        val_weights=_weights(rows_of.get("val"), summary),
    )  # fmt: skip
    made = Streamed(whole, reader, summary, batch_transform=batch_transform)
    if batch_transform is not None:  # that it gives what it should is seen before the training
        with torch.random.fork_rng(devices=[]):
            tried = made._inputs(raw[0][:TRIED], training=True)
        if not bool(tried.isfinite().all()):
            raise DataError("batch_transform gives NaN or infinite values", "finite ones")
        _refuse_another_scale(made._inputs(raw[0][:TRIED]).double(), tried.double(), raw[0].dtype)
    return made


_passed: dict[str, Summary] = {}
"""What passes of this process have found, by files and options: runs of a sweep, or repeats, share
theirs."""


def _stamps(source: Any) -> list[tuple[str, int, int]]:
    """Names, sizes and times of files, by which it is seen that they were written to; none of what
    is no file."""
    rows = isinstance(source, str | Path)  # which lie side by side
    if not rows and not isinstance(source, Images):
        return []
    path = Path(source if rows else source.path).expanduser()
    found = path.glob("*") if rows else path.rglob("*")
    files = sorted(found) if path.is_dir() else [path]
    facts = ((str(file), file.stat()) for file in files if file.is_file())
    own = [("", getattr(source, "size", None) or 0, 0)]
    return own + [(name, fact.st_size, fact.st_mtime_ns) for name, fact in facts]


def reader_of(
    source: Any,
    *,
    inputs: str | Sequence[object] = (),
    target: str = "",
    class_names: str | Sequence[object] = (),
) -> Placed:
    """All rows of a source, none of which are set aside; see :func:`stream`."""
    found = _source(source, Columns.of(inputs, target), named(class_names))
    return _placed(found, {}, 0, None, None, least=1)[0]


def _placed(
    source: Source,
    counts: dict[str, Any],
    seed: int,
    workers: int | None,
    held: int | None,
    least: int = 2,
) -> tuple[Placed, dict[str, Places]]:
    """Training rows of a source with places, `least` at least; and the places of those that were
    taken out of them, shares or numbers."""
    one = read_apart(source, np.arange(1))[0][0]
    aside = _aside(source.rows, counts, seed, one.numel())
    without = np.sort(np.concatenate([np.zeros(0, np.int64), *aside.values()]))
    if source.rows - len(without) < least:
        left = f"{source.rows - len(without)} of {source.rows} rows"
        raise DataError(f"{counts} leave {left}", "at least 2 training rows")
    row_bytes = max(1, one.numel() * one.element_size())
    if held is None:
        largest = int(np.diff(source.edges).max())
        held = max(min(HELD // row_bytes, MOST_HELD), BLOCKS * largest)
    else:
        ask(2.0 * min(held, source.rows) * row_bytes, f"held={held}")
    workers = usual_workers(source) if workers is None else workers
    return Placed(source, without, held, workers, pinned=torch.cuda.is_available()), aside


def _source(given: Any, columns: Columns, class_names: Sequence[str]) -> Source:
    """Rows with places: files, or what has a length."""
    if isinstance(given, str | Path):
        path = Path(given).expanduser()
        if is_array_folder(path):
            if any(columns):
                named = [f"{n}={v!r}" for n, v in columns._asdict().items() if v]
                raise DataError(f"{', '.join(named)} of the arrays of {path}", "none of these")
            return Arrays(path)
        if is_table(path):
            return Tables(path, columns, class_names)
        there = "a folder" if path.is_dir() else "a file" if path.exists() else "not there"
        raise DataError(f"{path} is {there}", "a folder with x.npy and y.npy, or Parquet files")
    if all(hasattr(given, name) for name in ("rows", "edges", "by_piece", "read")):
        found: Source = given
        return found
    return Items(given, columns)


def _is_rows(given: Any) -> bool:
    """True for rows themselves, and not a number of them."""
    return not isinstance(given, int | float | np.number) or isinstance(given, bool)


def _all_of(what: str, given: Any, columns: Columns, class_names: Sequence[str]) -> Parts:
    """Rows that are held in memory, all of them; of several inputs as they were given."""
    if isinstance(given, tuple | list) and len(given) == 2:
        x, y = given[0], as_tensor(f"y of {what}", given[1])
        return x if are_several(x, y) else as_tensor(f"x of {what}", x), y
    if given is None or isinstance(given, bool):
        expected = "a share, a number, rows (x, y) or a map-style data set, and 0 for none"
        raise DataError(f"{what}={type(given).__name__}", expected)
    source = _source(given, columns, class_names)
    x = read_apart(source, np.arange(1))[0]
    ask(4.0 * x.numel() * source.rows, f"{what}={source.name}")
    return read_apart(source, np.arange(source.rows))


def _aside(rows: int, counts: dict[str, Any], seed: int, numbers: int) -> dict[str, Places]:
    """Places of rows that are taken out for validation and tests, if they are some; `numbers` are
    those in the inputs of a row."""
    sizes: list[int] = []
    for what, wanted in counts.items():
        if isinstance(wanted, int | np.integer):
            check(what, wanted, Annotated[int, Between(0, rows)])
            sizes.append(int(wanted))
            ask(4.0 * sizes[-1] * numbers, f"{what}={wanted}")
        else:
            check(what, wanted, ShareOrZero)
            most = min(MOST_ASIDE, 2**26 // max(1, numbers))
            sizes.append(min(most, max(1, round(wanted * rows))) if wanted else 0)
    if (taken := sum(sizes)) > rows:
        raise DataError(f"val and test take {taken} of {rows} rows", "fewer")
    parts = np.split(_draw(rows, taken, seed), np.cumsum(sizes, dtype=int)[:-1])
    found = zip(counts, map(np.sort, parts), strict=False)
    return {what: places for what, places in found if len(places)}


def _draw(rows: int, count: int, seed: int) -> Places:
    """Distinct places in random order, in memory for `count` and not for all rows."""
    random = np.random.default_rng(generator(seed, "aside").initial_seed())
    if 2 * count > rows:
        found: Places = random.permutation(rows)[:count]
        return found
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        new = random.integers(0, rows, count - len(chosen))
        chosen.update(dict.fromkeys(new.tolist()))
    return np.array([*chosen], dtype=np.int64)


def _scaling(summary: Summary, wanted: bool, task: Task) -> Scaling:
    """Statistics to scale by, in float64."""
    mean, std = summary.x
    if not wanted:
        mean, std = torch.zeros_like(mean), torch.ones_like(std)
    y_mean, y_std = summary.y
    if not wanted or task != "regression":
        y_mean, y_std = torch.zeros_like(y_mean), torch.ones_like(y_std)
    if task != "classification" and summary.marginal.mean is not None:
        y_mean, y_std = (s.expand(len(summary.marginal.mean)).clone() for s in (y_mean, y_std))
    return Scaling(mean, std, y_mean, y_std)


class _Rows(NamedTuple):
    """Rows in memory, as they are in their source.

    Arguments:
        x, y: Inputs and targets.
        weights: Of the rows (B,), as they are in the source; None if all count the same.
        places: Where they are there; None of rows that were given.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None
    places: Places | None

    @classmethod
    def of(cls, what: str, parts: Parts, places: Places | None) -> _Rows:
        x, y, *weights = parts
        if not weights:
            return cls(x, y, None, places)
        with numbered(places):
            return cls(x, y, check_weights(f"weights of {what}", weights[0], len(y)), places)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What there is of them."""
        found = {"x": self.x, "y": self.y}
        return found if self.weights is None else {**found, "weights": self.weights}


def _packed(what: str, parts: Parts, reader: Placed, weighted: bool) -> Parts:
    """Rows that were given, as those of training: with the columns of several inputs, and where
    those have weights with weights, of one."""
    x, *others = parts
    if not isinstance(x, Tensor):
        if reader.fields is None:
            raise DataError(f"x of {what} is a {type(x).__name__}", "a tensor, as in training")
        x = reader.fields.pack(f"x of {what}", x)
    if weighted and len(others) == 1:
        others.append(torch.ones(len(others[0])))
    return x, *others


def _weights(rows: _Rows | None, summary: Summary) -> Tensor | None:
    """Weights of rows by a mean of one in training; of no rows, none."""
    if summary.weight is None:
        return None
    if rows is None or rows.weights is None:
        return torch.ones(0 if rows is None else len(rows.x))
    return (rows.weights * (summary.rows / summary.weight)).float()


def _refuse_another_scale(plain: Tensor, tried: Tensor, dtype: torch.dtype) -> None:
    """Refuse transformed inputs that are no longer in the units of the source, by which they are
    scaled: bytes divided by 255, for one."""
    spread = float(plain.std())
    if not spread > 0:
        return
    ratio, off = float(tried.std()) / spread, abs(float(tried.mean() - plain.mean())) / spread
    if not 1 / OTHER <= ratio <= OTHER or off > OTHER:
        found = f"inputs that spread {ratio:.2g} times as much and lie {off:.2g} deviations off"
        raise DataError(f"batch_transform gives {found}", f"the units of the source ({dtype})")


def _checked(parts: dict[str, _Rows], task: Task, summary: Summary, ids: bool) -> dict[str, Pair]:
    """Inputs and targets of rows in memory."""
    found: dict[str, Pair] = {}
    for split, rows in parts.items():
        with numbered(rows.places):
            x = check_rows(split, rows.x, rows.y, ids=ids, like=parts["train"].x)
            found[split] = x, check_targets(f"y_{split}", rows.y, task, summary.classes)
    return found
