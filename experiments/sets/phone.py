"""WISDM v1.1, transformed: what a person is doing, from features of ten seconds."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from pyroccam.data.dataset import Dataset
from pyroccam.data.errors import DataError
from pyroccam.data.ranges import Share, ShareOrZero, Whole, checked
from pyroccam.data.roots import read_bytes, resolve_root
from pyroccam.data.splits import carve

from .places import find_file

__all__ = ["wisdm_windows"]

_ATTRIBUTE = re.compile(r"@attribute\s+\"?([^\s\"{]+)\"?\s*(\{[^}]*\}|\w+)")
_FILE = "WISDM_ar_v1.1_transformed.arff"
_PLACES = (f"{_FILE}.gz", _FILE, f"WISDM_ar_v1.1/{_FILE}")
"""Where it may be; the last one is as the published archive unpacks."""


@checked
def wisdm_windows(
    *,
    seed: Whole = 0,
    data_root: str | os.PathLike[str] | None = None,
    split_by: Literal["subject", "window"] = "subject",
    test_fraction: Share = 0.2,
    val_fraction: ShareOrZero = 0.1,
    standardise: bool = True,
) -> Dataset:
    """Six activities from 43 features of the accelerometer of a phone in a pocket.

    The 5,418 rows of 36 persons are windows of ten seconds. The features are, for each axis:
    shares of ten bins, mean, time between peaks, mean absolute deviation and standard
    deviation; and the mean length of the acceleration. As published, XAVG is 0 in all rows
    and ZSTANDDEV repeats XSTANDDEV: that leaves 41 which say something.

    The times between peaks are missing in 474 rows, most of them of sitting or standing. A
    missing value becomes the mean of its feature over the training rows that have it, so
    that it is 0 once standardised; validation and test rows have no part in the mean.

    Arguments:
        seed: Which rows test and validate.
        data_root: See :func:`resolve_root`: the folder `WISDM`, or the one that contains it.
        split_by: "subject" keeps all rows of a person in one of training, validation and
            test, so that the test is about persons never seen. "window" draws rows, class
            by class, and lets a method remember the person: a random forest is right about
            89 % of such rows, but 77 % of the rows of others.
        test_fraction: Share of the rows for testing, as near as whole persons allow.
        val_fraction: Share of the other rows kept aside for validation, likewise.
        standardise: Whether to scale by training statistics.

    Raises:
        DataError: if the file is missing or broken, or an option makes no sense.

    References:
        J. Kwapisz, G. Weiss, S. Moore: Activity Recognition using Cell Phone Accelerometers
        (2010), which asks to be cited by whoever uses the data.
    """
    columns, frame = _read(_find(data_root))
    classes = columns["class"]
    placed = {
        name: pd.Categorical(frame[name].astype(str).str.strip(), columns[name]).codes
        for name in ("class", "user")
    }
    if any((codes < 0).any() for codes in placed.values()):
        raise DataError(f"{_FILE} has a class or user that its header does not name", "its own")
    labels, users = torch.from_numpy(placed["class"].astype(np.int64)), placed["user"]
    names = [name for name, known in columns.items() if not known and name != "UNIQUE_ID"]
    x = frame[names].to_numpy(np.float64)

    groups = users if split_by == "subject" else None
    test, train = (
        rows.numpy()
        for rows in carve(len(x), test_fraction, seed, purpose="test", labels=labels, groups=groups)
    )
    groups = None if groups is None else groups[train]
    # the very rows that are left when the data set carves its validation rows out of these
    _, rest = carve(len(train), val_fraction, seed, labels=labels[train], groups=groups)
    x = np.where(np.isnan(x), np.nanmean(x[train[rest.numpy()]], 0), x)
    return Dataset.from_tensors(
        x[train],
        labels[train],
        x[test],
        labels[test],
        val_fraction=val_fraction,
        seed=seed,
        standardise=standardise,
        name="wisdm-windows",
        class_names=classes,
        groups=groups,
    )


def _find(data_root: str | os.PathLike[str] | None) -> Path:
    """The file, or an error that says where it would be."""
    root = resolve_root(data_root)
    path = find_file(root, "WISDM", *_PLACES)
    if path is None:
        raise DataError(f"no {_FILE}.gz in {root / 'WISDM'}", "it, or the same unpacked")
    return path


def _read(path: Path) -> tuple[dict[str, tuple[str, ...]], pd.DataFrame]:
    """The categories of each column of an ARFF file, none of a column of numbers, and its rows.

    scipy's reader refuses two habits of the published file: no blank before the braces of a list
    of categories, and blanks behind a quoted one.
    """
    head, _, body = read_bytes(path).decode("latin-1").partition("@data")
    found = _ATTRIBUTE.findall(head)
    columns = {
        name: tuple(one.strip(' "') for one in kind.strip("{} ").split(",")) if "{" in kind else ()
        for name, kind in found
    }
    frame = pd.read_csv(
        io.StringIO(body), names=[*columns], na_values="?", skipinitialspace=True, comment="%"
    )
    return columns, frame
