"""Numbers of runs: how several are written, and which run has the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

HIGHER = ("accuracy", "f1", "auroc")
FALSE_ALARM = 0.05


def listed(values: Sequence[object]) -> str:
    """``a, b and c``."""
    shown = [str(value) for value in values]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def training_seconds(metrics: Mapping[str, Any]) -> float:
    """Training time of one seed. Seeds that were trained together each report the time of all."""
    return float(metrics["seconds"]) / max(int(metrics.get("engine", {}).get("replicates", 1)), 1)


def best_of(columns: Sequence[Sequence[float]], higher: bool) -> int | None:
    """Which of several runs is the best, if that is more than chance.

    The best mean must differ from each other mean by Welch's t-test at 5 %, divided by the number
    of pairs of runs (Bonferroni), since each run might have been the best.

    Arguments:
        columns: of each run a value for each seed.

    Returns:
        The place of the run; ``None`` where there is no telling, as with a single seed.
    """
    if len(columns) < 2 or any(len(column) < 2 for column in columns):
        return None
    means = [float(np.mean(column)) for column in columns]
    best = max(range(len(columns)), key=lambda k: means[k] if higher else -means[k])
    limit = FALSE_ALARM / len(list(combinations(columns, 2)))
    for k, column in enumerate(columns):
        if k != best and not _differ(columns[best], column) < limit:
            return None
    return best


def _differ(one: Sequence[float], other: Sequence[float]) -> float:
    """The probability of so different means by chance."""
    (m, s), (m2, s2) = ((float(np.mean(c)), float(np.std(c, ddof=1))) for c in (one, other))
    if max(s, s2) <= 1e-12 * max(abs(m), abs(m2)):  # the same each time: no chance in it
        return 1.0 if math.isclose(m, m2, rel_tol=1e-9) else 0.0
    from scipy.stats import ttest_ind_from_stats  # slow to import

    found = ttest_ind_from_stats(m, s, len(one), m2, s2, len(other), equal_var=False)
    return float(found.pvalue)
