"""WISDM 2019: the next length of the acceleration, from the 199 records before it."""

from __future__ import annotations

import csv
import io
import os
import warnings
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from pyroccam.data.dataset import Dataset
from pyroccam.data.errors import DataError
from pyroccam.data.ranges import AtLeastTwo, Count, Share, ShareOrZero, Whole, checked
from pyroccam.data.roots import read_bytes, resolve_root
from pyroccam.data.splits import carve, generator, pick

from .places import find_file

__all__ = ["wisdm_series"]

_FILE = "WISDM_2019_raw_watch_accel_A-E.txt"
_FOLDERS = ("wisdm-dataset/raw/watch/accel", "raw/watch/accel")
"""Where the published archive has one file a subject."""

_ACTIVITIES = {"A": "walking", "B": "jogging", "C": "stairs", "D": "sitting", "E": "standing"}

_WINDOW = 200
"""Records of a window; the last one is to be predicted."""

_STEP = 50_000_000
_SLACK = _STEP // 10
"""Nanoseconds between two records at 20 Hz, and how far from it they may be."""


class _Series(NamedTuple):
    """Records as they were taken."""

    subject: np.ndarray
    """(rows,) float64, whole numbers."""
    activity: np.ndarray
    """(rows,) int64, places in `_ACTIVITIES`."""
    time: np.ndarray
    """(rows,) float64, nanoseconds."""
    axes: np.ndarray
    """(rows, 3) float64, m/s²."""


@checked
def wisdm_series(
    *,
    seed: Whole = 0,
    data_root: str | os.PathLike[str] | None = None,
    channels: Literal["axes", "norm"] = "axes",
    n_train: AtLeastTwo = 5000,
    n_test: Count = 2000,
    split_by: Literal["subject", "window"] = "subject",
    test_fraction: Share = 0.3,
    val_fraction: ShareOrZero = 0.1,
    standardise: bool = True,
) -> Dataset:
    """The Euclidean norm of an accelerometer record, from the 199 records before it.

    The task is the source's, the data are not: the source takes the raw series of WISDM v1.1
    (1,098,207 records of a phone, 36 persons, 6 activities), these are of the watches of the
    set of 2019 (838,431 records of 46 persons walking, jogging, on stairs, sitting and
    standing), so its published errors do not carry over.

    A window is 200 records that were taken one after the other, 50 ms apart within a tenth.
    It never reaches over a change of person or activity, nor over a step of another length:
    of the 838,203 steps in the file 131 are gaps of 0.14 to 0.48 s, and 21,874 are of 10 or
    40 ms, where the watch ran faster for a while (all in 16 of 228 recordings). A clock that
    stands still or runs back ends a window, too. Lines that are no records are left out and
    so leave a gap; the file has none. 768,366 windows remain, and 2.7 % of the records are
    in none of them.

    Arguments:
        seed: Which persons test and validate, which windows are drawn.
        data_root: See :func:`resolve_root`: the folder `WISDM`, or the one that contains it.
            The file of the activities A to E is read, or else the files
            `data_<subject>_accel_watch.txt` of the published archive.
        channels: "axes" gives the 199 x 3 coordinates, record by record, as one vector (597);
            "norm" the norms of the 199 records (199). The source does not say which it took.
            It speaks of records of three coordinates; and its bounds under random search,
            35,420 nats for WISDM and 1,304,556 for the 238,510 weights of its network for
            MNIST, come to 5 to 6 nats a weight for both if there are 597 inputs (5,991
            weights), but to 16 to 18 for WISDM if there are 199 (2,011). Hence the default.
            Norms are easier: on them ridge regression errs by 0.64 standard deviations of
            the target, which is what the source reports of its data, and by 1.0 on axes.
        n_train: Windows for training, validation included: at random, evenly over
            activities. They may overlap, which is why persons are kept apart.
        n_test: Windows for testing, drawn likewise.
        split_by: "subject" keeps all windows of a person in one of training, validation and
            test. "window" draws them from everybody: windows of different splits then share
            records, and methods that remember look better than they are.
        test_fraction: Share of all windows whose persons are kept for testing, as near as
            whole persons allow; without use if `split_by` is "window".
        val_fraction: Share of the training windows kept aside for validation, likewise.
        standardise: Whether to scale by training statistics. Without it, all is in m/s².

    Raises:
        DataError: if files are missing or broken, or there are fewer windows than wanted.

    References:
        G. Weiss, K. Yoneda, T. Hayajneh: Smartphone and Smartwatch-Based Biometrics Using
        Activities of Daily Living (2019), for the data.
        O. Bakhteev: Bayesian selection of deep learning model structure (PhD thesis, 2019),
        experiment on hyperparameters, for the task.
    """
    series = _read(_find(resolve_root(data_root)))
    ends = _window_ends(series)
    if not len(ends):
        raise DataError(f"no {_WINDOW} records in a row", "one window at least")
    if split_by == "subject":
        groups = series.subject[ends]
        test, train = (
            ends[rows.numpy()]
            for rows in carve(len(ends), test_fraction, seed, purpose="test", groups=groups)
        )
        test = _draw(series, test, n_test, seed, "n_test")
    else:
        test = _draw(series, ends, n_test, seed, "n_test")
        train = np.setdiff1d(ends, test)
    train = _draw(series, train, n_train, seed, "n_train")
    return Dataset.from_tensors(
        *_inputs_and_targets(series, train, channels),
        *_inputs_and_targets(series, test, channels),
        task="regression",
        val_fraction=val_fraction,
        seed=seed,
        standardise=standardise,
        name="wisdm-series",
        groups=series.subject[train] if split_by == "subject" else None,
    )


def _inputs_and_targets(
    series: _Series, ends: np.ndarray, channels: str
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (windows, 199 or 597), float32, and targets (windows,), float64."""
    before = ends[:, None] + np.arange(1 - _WINDOW, 0)
    norms = np.sqrt((series.axes**2).sum(1))
    values = series.axes if channels == "axes" else norms
    x = values.astype(np.float32)[before]
    return x.reshape(len(ends), -1), norms[ends]


def _window_ends(series: _Series) -> np.ndarray:
    """Rows of the last records of all windows (windows,), in ascending order."""
    rows = np.arange(len(series.time))
    joined = np.abs(np.diff(series.time) - _STEP) <= _SLACK
    joined &= (np.diff(series.subject) == 0) & (np.diff(series.activity) == 0)
    first = np.r_[True, ~joined]
    since = rows - np.maximum.accumulate(np.where(first, rows, 0))
    return rows[since >= _WINDOW - 1]


def _draw(series: _Series, ends: np.ndarray, count: int, seed: int, name: str) -> np.ndarray:
    """Rows of the last records ``(count,)`` of windows that are drawn of those that end at `ends`,
    evenly over activities, in ascending order.
    """
    stream = generator(seed, name)
    kinds = np.unique(series.activity)
    there = [ends[series.activity[ends] == kind] for kind in kinds]
    each, rest = divmod(count, len(kinds))
    drawn: list[np.ndarray] = []
    for place, mine in enumerate(there):
        wanted = each + (place < rest)
        if wanted > len(mine):
            what = list(_ACTIVITIES.values())[int(kinds[place])]
            raise DataError(f"{name}={count} windows of {what}", f"{len(mine)} of them at most")
        chosen, _ = pick(len(mine), wanted, stream)
        drawn.append(mine[chosen.numpy()])
    return np.sort(np.concatenate(drawn))


def _find(root: Path) -> list[Path]:
    """The file of all subjects, or the files of one subject each."""
    path = find_file(root, "WISDM", f"{_FILE}.gz", _FILE)
    if path is not None:
        return [path]
    for parent in (root / "WISDM", root):
        for folder in _FOLDERS:
            paths = sorted((parent / folder).glob("data_*_accel_watch.txt"))
            if paths:
                return paths
    raise DataError(
        f"no {_FILE}.gz in {root / 'WISDM'}",
        f"it, or {_FOLDERS[0]}/data_<subject>_accel_watch.txt there",
    )


def _read(paths: list[Path]) -> _Series:
    """The records of all files, in their order."""
    parts = [_read_one(path) for path in paths]
    return _Series(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _read_one(path: Path) -> _Series:
    """The records of a file that are of the five activities; lines that are no records are left
    out."""
    content = read_bytes(path)
    with warnings.catch_warnings():
        # a first line that is too long is cut, with a warning; its seventh field tells
        warnings.simplefilter("ignore", pd.errors.ParserWarning)
        frame = pd.read_csv(
            io.BytesIO(content.replace(b";", b",")),
            header=None,
            names=["subject", "activity", "time", "x", "y", "z", "end"],
            index_col=False,
            on_bad_lines="skip",
            quoting=csv.QUOTE_NONE,
            encoding="latin-1",
            low_memory=False,
        )
    columns = ("subject", "time", "x", "y", "z")
    values = [pd.to_numeric(frame[name], errors="coerce").to_numpy(float) for name in columns]
    good = np.isfinite(values).all(0)
    good &= (frame["activity"].notna() & frame["end"].isna()).to_numpy()
    activity = pd.Index(list(_ACTIVITIES)).get_indexer(frame["activity"])
    keep = good & (activity >= 0)
    subject, time, x, y, z = (column[keep] for column in values)
    return _Series(subject, activity[keep].astype(np.int64), time, np.stack([x, y, z], 1))
