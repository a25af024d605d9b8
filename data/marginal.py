"""What the targets of a data set are, whatever the inputs: shares of classes, or two moments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Marginal(NamedTuple):
    """Sums over training targets, from which the simplest prediction is made.

    Attributes:
        rows: N.
        counts: Rows of each class (C,), whole numbers; None where targets are no classes.
        mean: Mean of each target (T,), float64, as they are scaled; None of classes.
        variance: Their variance (T,), float64, with N - 1 in the denominator; None of classes.
    """

    rows: int
    counts: Tensor | None
    mean: Tensor | None
    variance: Tensor | None

    @classmethod
    def of(cls, y: Tensor, classes: int | None) -> Marginal:
        """That of targets in memory: labels (N,) of classes, or targets (N, T)."""
        if classes is not None:
            return cls(len(y), torch.bincount(y, minlength=classes), None, None)
        amounts = y.double()
        return cls(len(y), None, amounts.mean(0), amounts.var(0))
