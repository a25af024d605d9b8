"""Class labels, amounts, counts or marks, which targets are: one rule for arrays, archives and
tables."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .checks import check_finite, refuse_rows
from .errors import DataError
from .labels import check_labels

Task = Literal["classification", "regression", "counts", "multi-label"]
"""One of several classes; numbers, standardised; counts as they are; a 0 or 1 for each label."""

FEW = 20
"""Whole numbers with at most this many distinct values look like class labels."""


def check_amounts(name: str, y: Tensor, task: Task) -> Tensor:
    """Targets of any task but classification (B, T), where (B,) is read as T = 1, in a floating
    type: counts are whole numbers from 0 on, those of labels 0 or 1."""
    y = y[:, None] if y.ndim == 1 else y
    if y.ndim != 2 or y.shape[1] == 0:
        raise DataError(f"{name} has shape {tuple(y.shape)}", "(rows,) or (rows, targets)")
    y = y if y.is_floating_point() else y.double()
    check_finite(name, y)
    if task == "counts":
        bad, expected = (y < 0) | (y != y.round()), "whole numbers from 0 on, for task='counts'"
    elif task == "multi-label":
        bad, expected = (y != 0) & (y != 1), "0 or 1 for each label, for task='multi-label'"
    else:
        return y
    refuse_rows(name, y, bad, expected)
    return y


def check_targets(name: str, y: Tensor, task: Task, classes: int | None) -> Tensor:
    """Targets of any task: see :func:`check_labels` and :func:`check_amounts`."""
    labels = task == "classification"
    return check_labels(name, y, classes) if labels else check_amounts(name, y, task)


def decide_task(
    name: str, *parts: Tensor, asked: Task | None = None, classes: object = None
) -> Task:
    """The task that is asked for; classification where there are classes, their number or their
    names; or else that which targets speak of. Nothing that can be read both ways is guessed.

    * Text, truth values, and numbers of a whole-number type with at most 20 distinct values
      are class labels.
    * Other numbers are targets of a regression, but for those that might be labels as well:
      whole numbers that repeat (three times or more on average) and are either few
      (labels that became floats: 0.0, 1.0, 2.0) or without a gap (labels of a hundred classes,
      or counts). There the task has to be said.
    """
    if asked is not None or classes:
        return asked or "classification"
    if len({part.is_floating_point() for part in parts}) > 1:
        types = ", ".join(str(part.dtype).removeprefix("torch.") for part in parts)
        raise DataError(f"{name} and other splits are of the types {types}", "one type, or task=")
    y = torch.cat([part.flatten() for part in parts])
    if y.dtype == torch.bool:
        return "classification"
    if y.is_floating_point() and not bool((y.isfinite() & (y == y.round())).all()):
        return "regression"
    values = y.unique()
    few = len(values) <= FEW
    if few and not y.is_floating_point():
        return "classification"
    # Python's numbers: the width of a range of int64 may not fit into int64
    gapless = int(values[-1]) - int(values[0]) == len(values) - 1
    repeats = 1 < len(values) <= y.numel() // 3
    if repeats and (few or gapless):
        first = ", ".join(f"{value:g}" for value in values[:3].tolist())
        found = f"{name} has {len(values)} distinct whole numbers ({first}, ...)"
        raise DataError(found, "task='classification' or task='regression'")
    return "regression"
