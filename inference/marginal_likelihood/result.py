"""The value of an estimator of the evidence, with what is known of its error and its cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...data.errors import PyroccamError

__all__ = ["Direction", "LogEvidence", "log_mean"]

Direction = Literal["exact", "below", "either", "code"]


@dataclass(frozen=True)
class LogEvidence:
    """An estimate of ``log p(y)`` of all training rows, given what the model holds as numbers: the
    noise of a regression, parameters of a prior, weights without one.

    Attributes:
        by: name of the estimator.
        value: in nats, over all rows. Regression targets are standardised.
        error: in nats: the standard error of ``value``, which of a bound is not its distance from
            the evidence. Of Laplace's method, which has none, how
            far a sum over draws from its normal is from it, and the standard error of that.
        direction: where the evidence lies. ``exact``: at the value. ``below``: the value is below
            it in expectation. ``either``: on either side. ``code``: the value is that of another
            distribution of the same targets, and minus it a code length of its own.
        rows: N.
        passes: of one network forward through all rows, with or without a backward pass.
        seconds: that it took.
        doubt: why value and error should not be believed, a sentence; ``None`` where nothing was
            noticed.
        details: further numbers, by name.
    """

    by: str
    value: float
    error: float
    direction: Direction
    rows: int
    passes: float
    seconds: float
    doubt: str | None = None
    details: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def per_row(self) -> float:
        """Nats for each row."""
        return self.value / self.rows

    @property
    def bits(self) -> float:
        """Bits that send the targets of all rows, ``-value / ln 2``."""
        return -self.value / math.log(2.0)


def log_mean(values: list[float]) -> tuple[float, float]:
    """``log mean exp`` of independent estimates of a logarithm, and its standard error by the delta
    method, ``sd(w) / (mean(w) sqrt R)`` with ``w = exp(value)``.

    Raises:
        PyroccamError: for fewer than two.

    Example:
        >>> log_mean([0.0, 0.0])
        (0.0, 0.0)
    """
    count = len(values)
    if count < 2:
        raise PyroccamError(
            f"log_mean got {count} values, expected 2 or more: one shows no error.\n"
            "Repeat the estimate."
        )
    top = max(values)
    ratios = [math.exp(v - top) for v in values]
    mean = sum(ratios) / count
    variance = sum((r - mean) ** 2 for r in ratios) / (count - 1)
    return top + math.log(mean), math.sqrt(variance / count) / mean
