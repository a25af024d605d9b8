"""Numbers of runs: which there are, how they are written, and which run has the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ...inference.posterior.metrics import mean_spread
from ...inference.posterior.predict import DRAWS
from ..runs.summary import METRICS
from .html import Cell

__all__ = [
    "HIGHER",
    "Network",
    "best_of",
    "cell",
    "listed",
    "networks",
    "one_of_each",
    "training_seconds",
    "whole",
]

HIGHER = {"accuracy", "f1", "auroc"}
FALSE_ALARM = 0.05


@dataclass(frozen=True)
class Network:
    """A network of a run, whole or cut, over its seeds.

    Attributes:
        name: for a reader.
        kind: ``whole``, ``small`` or ``other``: what the runs of different methods have in common.
        test: metrics on the test rows, by seed.
        parameters: by seed; empty where it has no number of its own.
        seconds: for a batch, by seed; empty where it was not measured.
    """

    name: str
    kind: str
    test: list[dict[str, float]]
    parameters: list[int]
    seconds: list[float]


def networks(seeds: Sequence[dict[str, Any]]) -> list[Network]:
    """All networks that a run reports, the whole first.

    Arguments:
        seeds: ``metrics.json`` of each; they report the same networks, or those that all report
            are taken.
    """
    first = seeds[0]
    found: list[Network] = []

    def add(name: str, kind: str, *path: str, part: str = "") -> None:
        tests = [test for one in seeds if (test := _at(one, path)) is not None]
        if len(tests) < len(seeds):
            return
        sizes, times = (
            [one[part][key] for one in seeds if key in one.get(part, {})] if part else []
            for key in ("parameters", "seconds_per_batch")
        )
        if kind == "whole":
            sizes = whole(seeds)[0]
        if not times and path in (("test",), ("test", "deterministic")):  # one network
            times = whole(seeds)[1]
        found.append(Network(name, kind, tests, sizes, times))

    if "ensemble" in first["test"]:
        add(f"mean of {DRAWS} drawn networks", "whole", "test", "ensemble")
        add("one drawn network", "other", "test", "stochastic")
        add("posterior means", "other", "test", "deterministic", part="mean")
    else:
        add("all depths" if "pruned" in first else "network", "whole", "test")
    add("cut at the chosen depth", "small", "pruned", "test", part="pruned")
    add("chosen depth alone", "other", "single_exit", "test", part="single_exit")
    add("trained at that depth", "other", "ddn", "test", part="ddn")
    add("cut and rounded", "small", "compressed", "test", part="compressed")
    add("chosen structure, cut out", "small", "discretised", "test", part="discretised")
    add("chosen structure, afresh", "other", "retrained", "test", part="retrained")
    if "random" in first:
        tests, sizes = ([r[k] for r in first["random"]["runs"]] for k in ("test", "parameters"))
        name = f"{len(tests)} structures at random"
        more = " (there are no more)" if first["random"].get("all") else ""
        found.append(Network(name + more, "other", tests, sizes, []))
    return found


def whole(seeds: Sequence[dict[str, Any]]) -> tuple[list[int], list[float]]:
    """Parameters and seconds of the network before the cut."""
    for part in ("compressed", "discretised", "pruned"):
        if all(part in one for one in seeds):
            sizes = [int(one[part]["parameters_before"]) for one in seeds]
            return sizes, [float(one[part]["seconds_per_batch_before"]) for one in seeds]
    return [int(one["parameters"]) for one in seeds], []


def _at(metrics: dict[str, Any], path: Sequence[str]) -> dict[str, float] | None:
    found: Any = metrics
    for key in path:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return {name: found[name] for name in METRICS if found.get(name) is not None}


def cell(values: Sequence[float], form: str = ".4f", best: bool = False) -> Cell:
    """A number, or the mean of several with their standard deviation; empty without any.

    Arguments:
        values: one for each seed.
        form: of Python's format.
        best: in bold.
    """
    if not values:
        return Cell("")
    spread = mean_spread([{"value": float(v)} for v in values])["value"]
    mean, sd = spread["mean"], spread["sd"]
    text = format(mean, form) if sd is None else f"{mean:{form}} ± {sd:{form}}"
    return Cell(text, mean, best)


def one_of_each(values: Sequence[float]) -> str:
    """Whole numbers, one for each seed, once where all are the same."""
    return listed([f"{v:,.0f}" for v in ([values[0]] if len({*values}) == 1 else values)])


def listed(values: Sequence[object]) -> str:
    """``a, b and c``."""
    shown = [str(value) for value in values]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def training_seconds(metrics: dict[str, Any]) -> float:
    """Training time of one seed. Seeds that were trained together each report the time of all."""
    return float(metrics["seconds"]) / max(int(metrics.get("engine", {}).get("replicates", 1)), 1)


def best_of(columns: Sequence[Sequence[float]], higher: bool) -> int | None:
    """Which of several runs is the best, if that is more than chance.

    The best mean must differ from each other mean by Welch's t-test at 5 %, divided by the number
    of pairs of runs (Bonferroni), since each run might have been the best.

    Arguments:
        columns: of each run a value for each seed.
        higher: whether more is better.

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
