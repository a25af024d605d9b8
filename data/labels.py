"""Class labels: whole numbers from 0 or names, and how many classes they speak of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checks import check_finite, refuse_rows
from .errors import DataError, listed

_LARGEST = 2**53


def are_names(y: Any) -> bool:
    """True for labels that are text."""
    if isinstance(y, Tensor) or np.ma.is_masked(y):
        return False
    try:
        array = np.asarray(y)
    except ValueError:  # ragged nested lists, of which the checks of numbers tell
        return False
    return array.dtype.kind == "U" or (
        array.dtype.kind in "OT" and array.size > 0 and all(isinstance(v, str) for v in array.flat)
    )


def number_names(name: str, y: Any, names: Sequence[str]) -> np.ndarray:
    """The number of each class that is named (B,): its place in the `names` of all, int64."""
    texts = np.asarray(y).astype(str)
    if texts.ndim != 1:
        raise DataError(f"{name} has shape {texts.shape}", "one class label a row, shape (rows,)")
    places = {one: place for place, one in enumerate(names)}
    numbers = np.array([places.get(text, -1) for text in texts.tolist()], dtype=np.int64)
    refuse_rows(name, texts, numbers < 0, f"one of {listed(map(repr, names))}")
    return numbers


def check_labels(name: str, y: Tensor, classes: int | None = None) -> Tensor:
    """Class labels (B,) as int64: whole numbers 0, 1, ..., `classes` - 1, or of any size."""
    if y.ndim != 1:
        raise DataError(
            f"{name} has shape {tuple(y.shape)}", "one class label a row, shape (rows,)"
        )
    bad = y < 0
    if y.is_floating_point():
        check_finite(name, y)
        # beyond, a float is whole by rounding, and may be no int64
        bad = bad | (y != y.round()) | (y > _LARGEST)
    if classes is not None:
        bad = bad | (y >= classes)
    known = "whole numbers from 0" if classes is None else f"0 to {classes - 1}"
    refuse_rows(name, y, bad, f"class labels, {known}")
    return y.long()


def count_classes(y: Tensor, classes: int | None, class_names: Sequence[str]) -> int:
    """The number of classes: as said, or as many as training labels (B,) show without a gap."""
    if classes is not None:
        if class_names and len(class_names) != classes:
            raise DataError(f"{len(class_names)} class_names", f"{classes}, one a class")
        return classes
    if class_names:
        if len(class_names) < 2:
            raise DataError(f"class_names={list(class_names)}", "at least 2")
        return len(class_names)
    seen = y.unique()  # not bincount: a label of a thousand millions would take gigabytes
    if len(seen) < 2:
        raise DataError(f"y_train has only the label {int(seen[0])}", "at least 2 classes")
    count = int(seen[-1]) + 1
    if len(seen) < count:
        gap = int((seen != torch.arange(len(seen))).nonzero()[0])
        found = f"y_train has labels up to {count - 1}, and none is {gap}"
        raise DataError(found, "labels 0, 1, 2, ... without a gap")
    return count


def refuse_classes(task: str, classes: int | None, class_names: Sequence[str]) -> None:
    """Refuse classes of targets that are none."""
    if classes is not None or class_names:
        found = f"classes={classes}, class_names={tuple(class_names)} for {task}"
        raise DataError(found, "neither")
