"""Rows that a trained network is to predict: as they are, on the scale of its own data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checks import as_tensor, check_inputs, check_pair, named, rows_without, with_channel
from .dataset import Dataset
from .errors import DataError, listed
from .fields import gathered, keys_of
from .fingerprints import fingerprint
from .formats import encoded, numbers, open_archive, read_table, selected, tokenised
from .labels import are_names, check_labels, number_names
from .limits import ask
from .numbering import numbered
from .own_code import is_code
from .ranges import checked
from .registry import find, load
from .splits import scaled_by, standardise
from .streaming import Columns, reader_of_path
from .tasks import check_targets

_FAR = 10.0
"""Standard deviations of the training rows at which half of new values are no accident."""

_FLAT = 0.05
"""The share of the training rows' spread below which new values hardly vary."""


@checked
def new_rows(
    name: str | os.PathLike[str], like: Dataset, *, download: bool = True, **options: Any
) -> Dataset:
    """Rows for a network that was trained on other ones; they are neither split nor drawn anew.

    * Of a `.csv` file all rows are taken. The columns of `like` are found by their names, in any
      order; others are left out, for the network has never seen them. If the columns of `like`
      have no names, the file must have as many beside the target, in the same order.
    * Of a `.npz` file the arrays `x_test` and `y_test` are taken, or else `x` and `y`; columns
      are told by their order.
    * Of a folder of `.npy` files or of images, and of Parquet files, all rows are taken; columns
      are found by their names, and classes of images by those of their folders.
    * Of a data set with a name its test rows are taken, and so of what a function of a person's own
      gives. If `like` is that set, they are the very rows, unless an option (`seed=`) says
      otherwise.

    A class is the one of the same name in `like`, whatever its number in the file. Whole numbers
    in arrays are names if all names of `like` are such numbers, or else places in its list.

    Arguments:
        name: See :func:`~pyroccam.data.load`.
        like: The data on which the network was trained.
        download: See :func:`~pyroccam.data.load`.
        options: For a `.csv` file `target=`, if the column to predict is called otherwise than
            in `like`; for a data set with a name what :func:`~pyroccam.data.load` takes.
            `data_root=` may be given to any of them, as there.

    Returns:
        `like`, its test rows replaced by these, on its scale, with their name and a `digest` of
        their own. :meth:`Dataset.seen` says which of them the network knows.

    Raises:
        DataError: if rows are of another kind than those of `like`, or cannot be used.
        TooLarge: if a file asks for more memory than may be taken.
    """
    key, _ = find(name)
    if os.path.isabs(key) and not is_code(key):
        path = Path(key)
        kind = path.suffix.lower()
        options.pop("data_root", None)
        target = options.pop("target", None) if kind == ".csv" else None
        if options:
            raise DataError(f"{key} has no option {listed(options)} here")
        if kind == ".csv":
            x, y = _of_table(path, like, target)
        else:
            x, y = (_of_archive if kind == ".npz" else _of_files)(path, like)
        title = path.stem if kind in (".csv", ".npz") else path.name
    else:
        if like.source.get("name") == key:
            options = {**like.source, **options}
        options.pop("name", None)
        return _of_named(key, like, {**options, "download": download})
    check_pair(f"{key}: inputs", x, "targets", y)
    x = _scaled(key, x, like)
    if like.classes is None:
        y = standardise(y, like.scaling.y_mean, like.scaling.y_std)
    return _in_place(x, y, title, like)


def _in_place(x: Tensor, y: Tensor, name: str, like: Dataset) -> Dataset:
    """Other test rows, which are on the scale of `like`."""
    digest = fingerprint(like=like.digest, x=x, y=y)
    return like.but(x_test=x.to(like.x_test), y_test=y.to(like.y_test), name=name, digest=digest)


def _of_table(path: Path, like: Dataset, target: str | None) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all rows of a table."""
    target = target or like.target or None
    # as text: of labels "1" and "a" there may be rows of "1" alone, which pandas takes for numbers
    tokenizer = like.source.get("tokenizer")
    texts = [*like.categories] if tokenizer is None else named(like.source["inputs"]) or ["text"]
    frame = read_table(path, [*([target] if target and like.classes else []), *texts])
    if tokenizer is not None and target is None:
        target, frame[""] = "", 0.0
    if target is None:
        target = str(frame.columns[-1])
        frame[target] = frame[target].astype(str)
    features = list(like.columns) or [name for name in frame.columns if name != target]
    features = features[: len(features) - sum(map(len, like.categories.values()))]
    features += like.categories
    features = features if tokenizer is None else texts[:1]
    Columns(tuple(features), target).among(str(path), frame.columns)
    frame = selected(path, frame, [*features, target], like.source.get("missing"))
    if tokenizer is not None and like.fields is not None:
        width = like.fields.each[0].size
        with numbered(frame.index):
            parts = tokenised(Path(tokenizer), frame[features[0]].to_numpy(), width=width)
        x = like.fields.pack(str(path), parts)
    else:
        inputs, *_ = encoded(path, frame[features], [*like.categories], like.categories)
        x = torch.from_numpy(inputs)
    with numbered(frame.index):
        check_inputs(str(path), x, columns=features)
    if not target and like.classes is None:
        return x, torch.zeros(len(x), like.outputs)  # until another network gives some
    where = f"{path}, column {target!r}"
    with numbered(frame.index):
        if like.classes is not None:
            return x, _labels(where, [_plain(text) for text in frame[target]], like)
        return x, _targets(where, torch.from_numpy(numbers(path, frame[target]).copy()), like)


def _plain(text: str) -> tuple[str, str]:
    """A label as it is written, and as it is called where it was read as a number or a truth
    value: "7" for 7.0 and 007."""
    text = str(text).strip()
    if text.lower() in ("true", "false"):
        return text, text.capitalize()
    try:
        number = float(text)
    except ValueError:
        return text, text
    whole = number.is_integer() and abs(number) < 2**53 and "_" not in text
    return text, str(int(number)) if whole else text


def _of_archive(path: Path, like: Dataset) -> tuple[Tensor, Tensor]:
    """Inputs and targets that an archive holds for testing, or at all."""
    with open_archive(path) as archive:
        there = {name.partition(".")[0] for name in archive.names}
        names = ("x_test", "y_test") if {"x_test", "y_test"} & there else ("x", "y")
        keys = keys_of(archive.names, names[0])
        arrays = archive.read([*keys, names[1]])
    missing = like.source.get("missing")
    if missing is not None and len({array.shape[:1] for array in arrays}) == 1:
        kept = rows_without(missing, path.name, arrays)
        arrays = [array[kept] for array in arrays]
    *parts, targets = arrays
    where, inputs = f"{path}: {names[1]}", gathered(keys, parts)
    if like.fields is not None:
        inputs = like.fields.pack(f"{path}: {names[0]}", inputs)
    x = as_tensor(f"{path}: {names[0]}", inputs)
    check_inputs(f"{path}: {names[0]}", x, ids=like.ids)
    x = x if like.ids else with_channel(x)
    if like.classes and are_names(targets):
        return x, _labels(where, [(name,) * 2 for name in targets.astype(str).tolist()], like)
    y = as_tensor(where, targets)
    if like.classes and y.ndim == 1 and all(n.lstrip("-").isdecimal() for n in _names(like)):
        y = check_labels(where, y) if y.is_floating_point() else y
        return x, _labels(where, [(str(int(v)),) * 2 for v in y.tolist()], like)
    return x, _targets(where, y, like)


def _of_files(path: Path, like: Dataset) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all rows of files that are streamed elsewhere."""
    reader, names = reader_of_path(path, like)
    parts: list[tuple[Tensor, Tensor]] = []
    for places, x, y, *_ in reader.in_order():
        if not parts:  # and a copy on the scale of the training
            ask(12.0 * reader.rows * x[0].numel(), f"{path}: {reader.rows:,} rows")
        with numbered(places):
            check_inputs(str(path), x, ids=like.ids)
            parts.append((x if like.ids else with_channel(x), y))
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    if like.classes and names and like.class_names:
        return x, _labels(str(path), [(names[k],) * 2 for k in y.tolist()], like)
    return x, _targets(str(path), y, like)


def _of_named(key: str, like: Dataset, options: dict[str, Any]) -> Dataset:
    """The test rows of a data set with a name."""
    with scaled_by(like.scaling):
        other = load(key, **options)
    if not len(other.x_test):
        raise DataError(f"{key} has no test rows", "some to predict")
    flat = len(like.input_shape) == 1 < len(other.input_shape)
    other = other.flattened() if flat else other
    same_targets = like.classes is not None or other.outputs == like.outputs
    if (other.task, other.fields) != (like.task, like.fields) or not same_targets:
        other.refuse_another_kind(like)
    x, y = other.standardised_as(like).split("test")  # of what a function made before
    if like.classes and other.class_names and other.class_names != like.class_names:
        y = _labels(key, [(other.class_names[k],) * 2 for k in y.tolist()], like)
    elif like.classes:
        y = check_labels(key, y, like.classes)
    return _in_place(x, y, other.name, like)


def _names(like: Dataset) -> tuple[str, ...]:
    return like.class_names or tuple(map(str, range(like.classes or 0)))


def _labels(where: str, names: Sequence[tuple[str, ...]], like: Dataset) -> Tensor:
    """The number in `like` of each class; of two ways to write it, the first one that is known."""
    known = _names(like)
    return torch.from_numpy(number_names(where, [a if a in known else b for a, b in names], known))


def _targets(where: str, y: Tensor, like: Dataset) -> Tensor:
    y = check_targets(where, y, like.task, like.classes)
    if like.classes is None and y.shape[1] != like.outputs:
        expected = f"{like.outputs}, as in {like.name}"
        raise DataError(f"{where} has {y.shape[1]} target(s) a row", expected)
    return y


def _scaled(key: str, x: Tensor, like: Dataset) -> Tensor:
    """Inputs on the scale of `like`, and flat if its own are."""
    mean, std = like.scaling.x_mean, like.scaling.x_std
    shape, wanted = tuple(x.shape[1:]), like.input_shape
    if shape == wanted and like.ids:
        return x.long()
    if shape == wanted:
        return standardise(x, mean, std)
    if len(shape) > 1 and (x[0].numel(),) == wanted and shape[0] == len(mean):
        return standardise(x, mean, std).flatten(1)
    raise DataError(f"{key} has inputs of shape {shape}", f"{wanted}, as in {like.name}")


def far_off(new: Dataset) -> list[str]:
    """Signs that new rows are not in the units of the rows of the training.

    Arguments:
        new: Of :func:`new_rows`.

    Returns:
        A sentence for each feature, channel or target of which half of the values lie more than
        ten standard deviations off, or which hardly vary; at most five.
    """
    width = len(new.x_mean)
    named = len(new.columns) == width
    names = [f"column {n!r}" for n in new.columns] if named else _numbered("channel", width)
    found: list[str] = []
    known = new.first(new.N)
    if not new.ids and new.fields is None:  # which have no units, or several kinds of them
        found += map(_doubt, names, *(_by_column(x, width) for x in (known.x_train, new.x_test)))
    if new.task in ("regression", "counts"):
        targets = _numbered("target", new.outputs)
        found += map(_doubt, targets, known.y_train.T, new.y_test.T)
    return [sentence for sentence in found if sentence][:5]


def _numbered(what: str, count: int) -> list[str]:
    return [f"{what} {k}" for k in range(count)]


def _doubt(what: str, then: Tensor, now: Tensor) -> str:
    """Doubts about new values, beside those of the training; empty where nothing is."""
    spread = float(then.std(correction=0))
    if not spread:
        return ""
    off = float((now - then.mean()).abs().median()) / spread
    if off > _FAR:
        return (
            f"Half of the values of {what} lie more than {off:.3g} standard deviations from the "
            "mean of the training rows: are they in the same units, under the same name?"
        )
    varies = float(now.std(correction=0)) / spread
    if len(now) >= 20 and varies < _FLAT:
        return (
            f"The values of {what} vary by {varies:.2g} of what they did in the training rows: are "
            "they in the same units?"
        )
    return ""


def _by_column(x: Tensor, width: int) -> Tensor:
    """All values of each column or channel (width, values)."""
    return x.reshape(len(x), width, -1).transpose(0, 1).flatten(1)
