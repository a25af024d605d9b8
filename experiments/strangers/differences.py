"""How ours differs from the ordinary training: in one cell over seeds, and over all cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from scipy import stats

__all__ = [
    "ERRORS", "MEASURES", "Interval", "Verdict", "error_of", "intervals", "relative", "signed_rank",
]  # fmt: skip

ERRORS = 2.0
"""Standard errors to both sides of a mean difference. Of three seeds 95 % would take 4.3 of them
(Student's t), of two 12.7: a mark says that the seeds agree, no more."""

Verdict = Literal["win", "tie", "loss", "one seed"]


@dataclass(frozen=True)
class Interval:
    """A mean difference over seeds, ours minus the other's: the lower, the better.

    Attributes:
        mean: of the differences.
        half: half of the width, two standard errors; of one seed infinite, as nothing is known.
        seeds: how many there are.
    """

    mean: float
    half: float
    seeds: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> Interval:
        """The interval of paired differences, one for each seed."""
        n = len(differences)
        half = ERRORS * stdev(differences) / math.sqrt(n) if n > 1 else math.inf
        return cls(fmean(differences), half, n)

    @property
    def verdict(self) -> Verdict:
        """``win`` or ``loss`` where the interval leaves out zero, or else ``tie``; none of one."""
        if self.seeds < 2:
            return "one seed"
        if abs(self.mean) <= self.half:
            return "tie"
        return "win" if self.mean < 0 else "loss"


def error_of(test: dict[str, float]) -> float:
    """The share of wrong answers, or the root mean square error."""
    return 1 - test["accuracy"] if "accuracy" in test else test["rmse"]


MEASURES: dict[str, Callable[[dict[str, float]], float]] = {
    "error": error_of,
    "NLL": lambda test: test["nll"],
    "ECE": lambda test: test.get("ece", math.nan),
}


def intervals(cells: list[dict[str, Any]]) -> dict[str, Interval]:
    """The intervals of a set and network by measure, of those that it has."""
    found = {}
    for name, measure in MEASURES.items():
        both = [(one["ours"]["compressed"]["test"], one["ordinary"]["test"]) for one in cells]
        differences = [measure(ours) - measure(other) for ours, other in both]
        if not any(map(math.isnan, differences)):
            found[name] = Interval.of(differences)
    return found


def relative(ours: float, other: float) -> float:
    """A difference of errors without their unit, from -1 to 1, so that sets can be ranked."""
    return (ours - other) / (ours + other) if ours + other else 0.0


def signed_rank(differences: Iterable[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test; without any difference it is 1."""
    some = [one for one in differences if one]
    return float(stats.wilcoxon(some).pvalue) if some else 1.0
