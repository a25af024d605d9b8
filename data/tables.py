"""A person's own tables: arrays in a `.npz`, or a `.csv` with a column to predict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .checks import Missing, as_tensor, check_finite, named, refuse_rows, rows_without
from .dataset import Dataset
from .errors import DataError, listed
from .fields import gathered, keys_of
from .formats import as_numbers, encoded, numbers, open_archive, read_table, selected, tokenised
from .numbering import numbered
from .ranges import Count, Seed, Share, ShareOrZero, checked
from .splits import carve
from .streaming import Columns
from .tasks import Task, decide_task

if TYPE_CHECKING:
    import pandas as pd

_SPLITS = ("train", "test", "val")


@checked
def load_npz(
    path: str | os.PathLike[str],
    *,
    seed: Seed = 0,
    task: Task | None = None,
    val_fraction: ShareOrZero = 0.1,
    standardise: bool = True,
    ids: bool = False,
    missing: Missing = None,
) -> Dataset:
    """Arrays `x_train`, `y_train`, `x_test`, `y_test` of a numpy archive, and `x_val`, `y_val` if
    it has them.

    Several inputs of a row are arrays such as `x_train.words` and `x_test.words`, by the names of
    the arguments of the network's forward, or `x_train.0`, `x_train.1`. Nothing pickled is ever
    run.

    Arguments:
        path: The file.
        seed: Which training rows validate.
        task: See :meth:`Dataset.from_tensors`, as for the rest.
        val_fraction: Share of the training rows kept aside for validation, without `x_val`.
        standardise: Whether to scale by training statistics.
        ids: Inputs are ids, for a network with an embedding; see :meth:`Dataset.from_tensors`.
        missing: A number that stands for a missing value, or several, in a list or a text with
            commas: rows with one are left out.

    Raises:
        DataError: if the file is broken, lacks an array, or an array cannot be used.
        TooLarge: if it asks for more memory than may be taken.
    """
    path = Path(path)
    with open_archive(path) as archive:
        own = [name for name in archive.names if name.partition(".")[0] in ("x_val", "y_val")]
        keys = {f"{part}_{split}": keys_of(archive.names, f"{part}_{split}")
                for split in _SPLITS[: 3 if own else 2] for part in "xy"}  # fmt: skip
        wanted = [key for each in keys.values() for key in each]
        arrays = dict(zip(wanted, archive.read(wanted), strict=True))
        if others := [name for name in archive.names if name not in arrays]:
            raise DataError(f"{path} also holds {listed(others)}", f"no arrays but {listed(keys)}")
    places = {}
    for split in _SPLITS if missing is not None else ():
        mine = [key for part in "xy" for key in keys.get(f"{part}_{split}", [])]
        if len({arrays[key].shape[:1] for key in mine}) == 1:  # or refused below
            kept = rows_without(missing, f"{path.name}: {split}", [arrays[key] for key in mine])
            arrays |= {key: arrays[key][kept] for key in mine}
            places[split] = np.flatnonzero(kept)
    with numbered(places):
        return Dataset.from_tensors(
            **{name: gathered(each, [arrays[key] for key in each]) for name, each in keys.items()},
            task=task,
            val_fraction=val_fraction,
            seed=seed,
            standardise=standardise,
            name=path.stem,
            ids=ids,
        )


@checked
def load_csv(
    path: str | os.PathLike[str],
    *,
    seed: Seed = 0,
    target: str | None = None,
    inputs: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    categorical: str | Sequence[str] | None = None,
    missing: Missing = None,
    test: str | os.PathLike[str] | None = None,
    task: Task | None = None,
    test_fraction: Share = 0.2,
    val_fraction: ShareOrZero = 0.1,
    standardise: bool = True,
    weights: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    max_length: Count | None = None,
) -> Dataset:
    """A table with a header line, and numbers or texts below. Names are a list, or a text with
    commas.

    Arguments:
        path: The file.
        seed: Which rows test and validate.
        target: The column to predict; None takes the last one, if it is none of a set of dummies.
        inputs: The columns that are inputs; None takes all but `target` and `weights`.
        drop: Columns that are no inputs.
        categorical: Columns of at most 50 texts, of which each becomes a column of 0 and 1 behind
            the others (:class:`sklearn.preprocessing.OneHotEncoder`); "auto" takes all in which no
            field is a number.
        missing: A number that stands for a missing value, or several, in a list or a text with
            commas: rows with one are left out.
        test: A table of the rows for testing, in place of `test_fraction` of these.
        task: None asks the target (:func:`pyroccam.data.tasks.decide_task`): text, truth
            values and few whole numbers are class labels. Counts have to be called so.
        test_fraction: Share of the rows for testing (class by class for classification).
        val_fraction: Share of the other rows kept aside for validation.
        standardise: Whether to scale by training statistics.
        weights: The column that says how much each row counts in a fit, which is no feature; see
            :meth:`Dataset.from_tensors`.
        tokenizer: The folder of a transformer. Its tokenizer turns texts, the column `text` or the
            one that `inputs` names, into `input_ids` and `attention_mask`. With target="", and in a
            table of texts alone, all targets are 0, until another network gives some.
        max_length: Tokens that are kept of a text; None refuses one that is too long for it.

    Raises:
        DataError: naming the line, column or row that cannot be used.
        TooLarge: if it asks for more memory than may be taken.
    """
    path = Path(path)
    import pandas as pd

    texts, left = [] if categorical == "auto" else named(categorical), named(drop)
    folder = None if tokenizer is None else Path(tokenizer)
    if folder is None and max_length is not None:
        raise DataError(f"max_length={max_length} of what is no text", "it beside tokenizer=")
    if folder is not None:
        if categorical not in ("auto", None):
            raise DataError("categorical= with a tokenizer", "one of both")
        inputs = texts = named(inputs) or ["text"]
        if len(texts) > 1:
            raise DataError(f"inputs={listed(texts)} with a tokenizer", "one column of texts")
    frame = read_table(path, texts)
    if folder is not None and (target == "" or [*frame.columns] == texts):
        target, frame[""] = "", 0.0
    columns = list(frame.columns)
    if target is None:
        _refuse_dummies(path, frame)
        target = columns[-1]
    kept = [name for name in columns if name not in left]
    features = Columns.of(inputs, target, weights or "").among(str(path), kept)
    if wrong := sorted(({*left} - {*columns}) | ({*texts} - {*features})):
        raise DataError(f"{path} has no inputs {listed(wrong)}", f"some of {listed(features)}")
    of_weights = [] if weights is None else [weights]
    frame = selected(path, frame, [*features, target, *of_weights], missing)
    if categorical == "auto":
        texts = [name for name in features if np.isnan(as_numbers(frame[name])).all()]
    if folder is None:
        x, names, values = encoded(path, frame[features], texts, {})
    else:
        x, names, values = frame[features].to_numpy(object), [], {}
    of_rows = torch.from_numpy(numbers(path, frame[weights]).copy()) if weights else None
    count, rows, of_target = len(frame), frame.index.to_numpy(), frame[target]
    if test is not None:
        there = Path(test) if Path(test).exists() else path.with_name(Path(test).name)  # if moved
        frame = read_table(there, texts)
        if not target:
            frame[""] = 0.0
        Columns(tuple(features), target).among(str(there), frame.columns)
        frame = selected(there, frame, [*features, target], missing)
        more = frame[features].to_numpy(object)
        more = encoded(there, frame[features], texts, values)[0] if folder is None else more
        x = np.concatenate([x, more])
        rows = np.append(rows, [f"{row} of {there.name}" for row in frame.index])
        of_target = pd.concat([of_target, frame[target]])
    del frame
    with numbered(rows):
        y, class_names = _read_target(path, of_target, task, count)
        parts = {"": x} if folder is None else tokenised(folder, x[:, 0], max_length)
    if test is None:
        labels = y if class_names else None
        of_test, train = carve(count, test_fraction, seed, purpose="test", labels=labels)
    else:
        train, of_test = torch.arange(count), torch.arange(count, len(x))
    each = ({n: part[places] for n, part in parts.items()} for places in (train, of_test))
    x_train, x_test = each if folder is not None else (one[""] for one in each)
    with numbered({"train": rows[train], "test": rows[of_test], "weights": rows[train]}):
        return Dataset.from_tensors(
            x_train,
            y[train],
            x_test,
            y[of_test],
            task="classification" if class_names else task or "regression",
            val_fraction=val_fraction,
            seed=seed,
            standardise=standardise,
            name=path.stem,
            class_names=class_names,
            columns=names,
            target=target,
            weights=None if of_rows is None else of_rows[train],
        ).but(categories=values)


def _refuse_dummies(path: Path, frame: pd.DataFrame) -> None:
    """Refuse to take the last of some dummies for the column to predict: of columns of 0 and 1, one
    is 1 in each row; or one at most, if their names begin alike."""
    ones: Any = 0
    for count, name in enumerate(reversed(frame.columns), 1):
        ones = ones + frame[name] if frame[name].isin([0, 1]).all() else 2
        alike = "_" in name and len({one.partition("_")[0] for one in frame.columns[-count:]}) == 1
        if np.max(ones) > 1 or count == len(frame.columns):
            return
        if count > 1 and (alike or np.min(ones) == 1):
            found = f"{path} ends with dummies, {listed(frame.columns[-count:])}"
            raise DataError(found, "target=NAME")


def _read_target(
    path: Path, column: pd.Series, task: Task | None, count: int
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels (rows,) with the names of the classes, which the first `count` rows have to have; or
    targets (rows,) with no names."""
    import pandas as pd

    where = f"{path}, column {column.name!r}"
    y = None
    if pd.api.types.is_numeric_dtype(column):
        y = as_tensor(where, column.to_numpy())
    else:  # text, unless all of it is numbers of too many digits
        with contextlib.suppress(DataError):
            y = torch.from_numpy(numbers(path, column))
    if task is None:
        task = "classification" if y is None else decide_task(where, y)
    if task != "classification":
        return torch.from_numpy(numbers(path, column).copy()), ()
    if y is None:
        values = column.to_numpy().astype(str)
    else:
        values = y.numpy()
        expected = "text or whole numbers as class labels"
        refuse_rows(where, values, values != np.round(values), expected)
        check_finite(str(path), y[:, None], [str(column.name)])
    distinct, label = np.unique(values, return_inverse=True)
    whole = values.dtype.kind in "iuf"
    names = tuple(str(int(value)) if whole else str(value) for value in distinct)
    if len(names) < 2:
        raise DataError(f"{where} holds only {names[0]!r}", "at least 2 classes")
    refuse_rows(where, values, ~np.isin(label, label[:count]), "classes of training rows")
    return torch.from_numpy(label.astype(np.int64)), names
