"""UCI regression sets with the fixed splits that the literature reports on."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path

import numpy as np
import torch

from .. import (
    DataError,
    Dataset,
    Seed,
    ShareOrZero,
    Whole,
    check_finite,
    checked,
    read_bytes,
    reading,
    resolve_root,
)

UCI_ALIASES = {
    "boston": "bostonHousing",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
}
"""Short names of the folders; a folder goes by its own name, too."""


_TIMES = 25
"""Bytes that a table takes for each of its text, where a number and a blank have two at least."""


@checked
def load_uci(
    which: str,
    *,
    seed: Seed = 0,
    data_root: str | os.PathLike[str] | None = None,
    split: Whole = 0,
    val_fraction: ShareOrZero = 0.1,
) -> Dataset:
    """A regression set with one of its train/test splits.

    A folder holds `data.txt` (a table), `index_features.txt` and `index_target.txt` (its
    columns), and `index_train_<i>.txt` and `index_test_<i>.txt` (its rows).

    Arguments:
        which: A short name (:data:`UCI_ALIASES`) or the name of a folder.
        seed: Which training rows validate.
        data_root: See :func:`resolve_root`: the folder `uci`, or the one that contains it.
        split: Which of the fixed splits.
        val_fraction: Share of the training rows kept aside for validation.

    References:
        J. M. Hernández-Lobato, R. Adams: Probabilistic Backpropagation (2015), for the splits.
    """
    folder = _find(which, resolve_root(data_root))
    table = _table(folder / "data.txt")
    check_finite(str(folder / "data.txt"), torch.from_numpy(table))
    rows, width = table.shape
    features = _indices(folder / "index_features.txt", width)
    target = _indices(folder / "index_target.txt", width)
    train = _indices(folder / f"index_train_{split}.txt", rows)
    test = _indices(folder / f"index_test_{split}.txt", rows)
    if np.intersect1d(train, test).size or np.intersect1d(features, target).size:
        raise DataError(f"{folder}: a row trains and tests, or a column is both", "one of them")
    return Dataset.from_tensors(
        table[np.ix_(train, features)],
        table[np.ix_(train, target)],
        table[np.ix_(test, features)],
        table[np.ix_(test, target)],
        task="regression",
        val_fraction=val_fraction,
        seed=seed,
        name=f"uci/{which}",
    )


def _find(which: str, root: Path) -> Path:
    """The folder of a set, or an error that lists those that are there."""
    there: set[str] = set()
    folder = UCI_ALIASES.get(which, which)
    for parent in (root / "uci", root):
        if (parent / folder / "data.txt").is_file():
            return parent / folder
        there |= {path.parent.name for path in parent.glob("*/data.txt")}
    names = {folder: short for short, folder in UCI_ALIASES.items()}
    found = ", ".join(sorted(f"uci/{names.get(name, name)}" for name in there))
    raise DataError(
        f"no data.txt in {root / 'uci' / folder}",
        f"one of the sets that are there: {found}" if found else "",
    )


def _table(path: Path) -> np.ndarray:
    """Reads a table of numbers (rows, columns)."""
    content = read_bytes(path, _TIMES)
    with reading(path, "a table of numbers"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of an empty file: an error below
        table = np.loadtxt(io.BytesIO(content), ndmin=2)
    if table.size == 0:
        raise DataError(f"{path} is empty", "a table of numbers")
    return table


def _indices(path: Path, limit: int) -> np.ndarray:
    """Reads row or column numbers, which are written as floats, and checks their range."""
    values = _table(path).reshape(-1)
    if not np.isin(values, np.arange(limit)).all() or len(np.unique(values)) < len(values):
        raise DataError(f"{path} holds other numbers", f"0 to {limit - 1}, each once")
    return values.astype(np.int64)
