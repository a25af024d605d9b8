"""A person's own tables: arrays in a `.npz`, or a `.csv` with a column to predict."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .checks import DataError, as_tensor, check_finite, check_fraction, check_seed, listed
from .dataset import Dataset
from .fields import gathered, keys_of
from .formats.archives import open_archive
from .formats.csv_text import numbers, read_table, refuse_missing
from .splits import carve
from .tasks import Task, check_task, decide_task

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load_csv", "load_npz"]

_KEYS = ("x_train", "y_train", "x_test", "y_test")


def load_npz(
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    task: Task | None = None,
    val_fraction: float = 0.1,
    standardise: bool = True,
    ids: bool = False,
) -> Dataset:
    """Arrays `x_train`, `y_train`, `x_test`, `y_test` of a numpy archive; others are ignored.

    Several inputs of a row are arrays such as `x_train.words` and `x_test.words`, by the names of
    the arguments of the network's forward, or `x_train.0`, `x_train.1`. Nothing pickled is ever
    run.

    Arguments:
        path: The file.
        seed: Which training rows validate.
        task: See :meth:`Dataset.from_tensors`, as for the rest.
        val_fraction: Share of the training rows kept aside for validation.
        standardise: Whether to scale by training statistics.
        ids: Inputs are ids, for a network with an embedding; see :meth:`Dataset.from_tensors`.

    Returns:
        The data set.

    Raises:
        DataError: if the file is broken, lacks an array, or an array cannot be used.
        TooLarge: if it asks for more memory than may be taken.
    """
    path = Path(path)
    check_task(task)
    with open_archive(path) as archive:
        keys = [keys_of(archive.names, key) for key in _KEYS]
        arrays = iter(archive.read([key for each in keys for key in each]))
    return Dataset.from_tensors(
        *(gathered(each, [next(arrays) for _ in each]) for each in keys),
        task=task,
        val_fraction=val_fraction,
        seed=seed,
        standardise=standardise,
        name=path.stem,
        ids=ids,
    )


def load_csv(
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    target: str | None = None,
    task: Task | None = None,
    test_fraction: float = 0.2,
    val_fraction: float = 0.1,
    standardise: bool = True,
    weights: str | None = None,
) -> Dataset:
    """A table with a header line, numbers in all columns but the one to predict.

    Arguments:
        path: The file.
        seed: Which rows test and validate.
        target: The column to predict; None takes the last one.
        task: None asks the target (:func:`pyroccam.data.tasks.decide_task`): text, truth
            values and few whole numbers are class labels. Counts have to be called so.
        test_fraction: Share of the rows for testing (class by class for classification).
        val_fraction: Share of the other rows kept aside for validation.
        standardise: Whether to scale by training statistics.
        weights: The column that says how much each row counts in a fit, which is no feature; see
            :meth:`Dataset.from_tensors`.

    Returns:
        The data set.

    Raises:
        DataError: naming the line, column or row that cannot be used.
        TooLarge: if it asks for more memory than may be taken.
    """
    path = Path(path)
    check_task(task)
    check_seed(seed)
    check_fraction("test_fraction", test_fraction)
    frame = read_table(path)
    columns = list(frame.columns)
    target = columns[-1] if target is None else target
    if target not in columns:
        raise DataError(
            f"{path} has no column {target!r}",
            f"target= one of {listed(columns)}",
            "an .npz or Dataset.from_tensors, for several targets",
        )
    if weights is not None and (weights not in columns or weights == target):
        others = [name for name in columns if name != target]
        raise DataError(f"{path} has no column {weights!r} of weights", f"one of {listed(others)}")
    features = [name for name in columns if name not in (target, weights)]
    if not features:
        other = next((mark for mark in (";", "\t", "|") if mark in target), None)
        raise DataError(
            f"{path} has only the column {target!r}",
            "features beside the target",
            "" if other is None else f"commas between the fields; the first line has {other!r}",
        )
    refuse_missing(path, frame)
    x = torch.from_numpy(np.stack([numbers(path, frame[name]) for name in features], 1))
    check_finite(str(path), x, features)
    y, names = _read_target(path, frame[target], task)
    of_rows = None if weights is None else torch.from_numpy(numbers(path, frame[weights]).copy())
    del frame
    test, train = carve(len(x), test_fraction, seed, purpose="test", labels=y if names else None)
    return Dataset.from_tensors(
        x[train],
        y[train],
        x[test],
        y[test],
        task="classification" if names else task or "regression",
        val_fraction=val_fraction,
        seed=seed,
        standardise=standardise,
        name=path.stem,
        class_names=names,
        columns=features,
        target=target,
        weights=None if of_rows is None else of_rows[train],
    )


def _read_target(
    path: Path, column: pd.Series, task: Task | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels (rows,) with the names of the classes, or targets (rows,) with no names."""
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
        targets = torch.from_numpy(numbers(path, column).copy())
        check_finite(str(path), targets[:, None], [str(column.name)])
        return targets, ()
    if y is None:
        values = column.to_numpy().astype(str)
    else:
        values = y.numpy()
        if y.is_floating_point() and (values != np.round(values)).any():
            row = int((values != np.round(values)).argmax())
            raise DataError(
                f"{where} holds {values[row]} in row {row}",
                "text or whole numbers as class labels",
                "task='regression'",
            )
        check_finite(str(path), y[:, None], [str(column.name)])
    distinct, label = np.unique(values, return_inverse=True)
    whole = values.dtype.kind in "iuf"
    names = tuple(str(int(value)) if whole else str(value) for value in distinct)
    if len(names) < 2:
        raise DataError(f"{where} holds only {names[0]!r}", "at least 2 classes")
    return torch.from_numpy(label.astype(np.int64)), names
