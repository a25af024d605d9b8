"""Markdown tables of the evidence by every estimator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..markdown import header, read_all, row

__all__ = ["evidence"]

REFEREES = ("exact", "annealed")


def evidence(folder: Path) -> Iterator[str]:
    """For each ladder: how far estimates are from the referee, and which member each would take.

    An estimate is above by more than its error where it exceeds the referee by more than twice the
    standard error of both: no lower bound should be.
    """
    for name, content in read_all(folder).items():
        runs = content["runs"]
        yield f"**{name}** ({content['says']}):"
        yield ""
        yield from header(
            "estimator", "less the referee, nats", "largest difference",
            "above by more than its error", "of models", "takes what predicts best", "seconds",
        )  # fmt: skip
        for estimator in content["estimators"]:
            yield from _line(estimator, runs)
        yield ""


def _line(estimator: str, runs: list[dict[str, Any]]) -> Iterator[str]:
    found = [(r["estimates"][estimator], _referee(r)) for r in runs]
    found = [(own, other) for own, other in found if "value" in own]
    if not found:
        return
    apart = [own["value"] - other["value"] for own, other in found]
    above = sum(
        own["value"] - other["value"] > 2 * (own["error"] ** 2 + other["error"] ** 2) ** 0.5 + 1e-6
        for own, other in found
    )
    seeds = sorted({r["seed"] for r in runs})
    right = sum(_taken(estimator, runs, s) == _best(runs, s) for s in seeds)
    yield row(
        estimator,
        f"{fmean(apart):+.2f}",
        f"{max(apart, key=abs):+.2f}",
        "" if estimator in REFEREES else above,
        len(found),
        f"{right} of {len(seeds)}" if len(found) == len(runs) else "",  # of some it cannot choose
        f"{median(own['seconds'] for own, _ in found):.2g}",
    )


def _referee(run: dict[str, Any]) -> dict[str, Any]:
    estimates = run["estimates"]
    return next(estimates[name] for name in REFEREES if "value" in estimates[name])


def _taken(estimator: str, runs: list[dict[str, Any]], seed: int) -> str | None:
    values = {
        r["member"]: r["estimates"][estimator]["value"]
        for r in runs
        if r["seed"] == seed and "value" in r["estimates"][estimator]
    }
    return max(values, key=values.__getitem__, default=None)


def _best(runs: list[dict[str, Any]], seed: int) -> str:
    losses = {r["member"]: r["held_out"] for r in runs if r["seed"] == seed}
    return min(losses, key=losses.__getitem__)
