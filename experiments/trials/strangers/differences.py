"""How ours differs from the ordinary training, in one cell over seeds and over all cells, and which
share of the parameters is left by ours and by the rivals while they are as good."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from scipy import stats

__all__ = [
    "ERRORS", "FEW", "MEASURES", "Interval", "Verdict", "error_of", "intervals",
    "left_by_channels", "left_by_magnitude", "left_by_ours", "left_by_rivals", "over_seeds",
    "relative", "signed_rank",
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


Cell = dict[str, Any]

FEW = 1 / 3
"""A network of which less is left has become small."""

LOST = 0.02
"""Nats of the validation rows that a rival may lose to the ordinary training."""


def left_by_ours(cell: Cell) -> float:
    """The share of the parameters that are not zero in the network that is handed back."""
    small = cell["ours"]["compressed"]
    return float(small["nonzero"] / small["parameters_before"])


def left_by_magnitude(cell: Cell) -> float | None:
    """The smallest share of the weights with which magnitude pruning is as good as the ordinary
    training; 1 if it never is, and ``None`` if it was not tried."""
    return _smallest(cell, "pruned")


def left_by_channels(cell: Cell) -> float | None:
    """The same of pruning by channels; ``None``, too, where the library cannot prune."""
    return _smallest(cell, "structured")


def left_by_rivals(cell: Cell) -> float | None:
    """The smaller of both, of what there is."""
    known = [one for f in (left_by_magnitude, left_by_channels) if (one := f(cell)) is not None]
    return min(known, default=None)


def over_seeds(left: Callable[[Cell], float | None], cells: list[Cell]) -> float | None:
    """The mean over the seeds in which it is known."""
    known = [one for cell in cells if (one := left(cell)) is not None]
    return fmean(known) if known else None


def _smallest(cell: Cell, key: str) -> float | None:
    if key not in cell:
        return None
    most = cell["ordinary"]["val_nll"] + LOST
    losses = [(one["val_nll"], one["left"]) for one in cell[key]]
    # The loss of a training that came to nothing is infinite, and null in the file.
    return min([1.0, *(left for loss, left in losses if loss is not None and loss <= most)])
