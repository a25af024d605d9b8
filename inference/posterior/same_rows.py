"""The same rows in two data sets, each on a scale of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ...data import Dataset

# In standard deviations of the first set's rows: rounding of a standardised number in single
# precision and of its scale, where the mean is up to some thousand deviations.
TOLERANCE = 1e-3


def same_inputs(first: Dataset, other: Dataset, split: str) -> bool:
    """True if the inputs of a split are those of another set, each standardised by training rows
    of its own, as sets of different seeds are."""
    if first.input_shape != other.input_shape:
        return False
    return _near(first.split(split)[0], other.standardised_as(first).split(split)[0])


def same_targets(first: Dataset, other: Dataset, split: str) -> bool:
    """True if the targets of a split are those of another set."""
    ours, theirs = first.split(split)[1], other.split(split)[1]
    if first.task != other.task or ours.shape != theirs.shape:
        return False
    if first.task == "classification":
        return torch.equal(ours, theirs.to(ours.device))
    ours, theirs = original_targets(first, split), original_targets(other, split).to(ours.device)
    scale = first.y_std.double()
    return _near(ours / scale, theirs / scale)


def original_targets(data: Dataset, split: str) -> Tensor:
    """Targets of a split ``(N, T)`` that are no classes, in original units, float64."""
    return in_original_units(data, data.split(split)[1])


def in_original_units(data: Dataset, values: Tensor) -> Tensor:
    """Standardised targets ``(*, T)`` in original units, float64: in single precision a mean of
    many deviations would leave them few digits."""
    return values.double() * data.y_std.double() + data.y_mean.double()


@torch.no_grad()
def on_scale_of(x: Tensor, first: Dataset, other: Dataset) -> Tensor:
    """Inputs ``(N, *)``, standardised as ``first`` is, on the scale of ``other``, without
    gradients."""
    if torch.equal(first.x_mean, other.x_mean.to(first.x_mean)) and torch.equal(
        first.x_std, other.x_std.to(first.x_std)
    ):
        return x
    rows = {
        f"{what}_{split}": getattr(first, f"{what}_{split}")[:0].to(x.device)
        for what in "xy"
        for split in ("train", "val", "test")
    }
    return replace(first, **(rows | {"x_test": x})).standardised_as(other).x_test


def _near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.to(one.device).double(), atol=TOLERANCE)
