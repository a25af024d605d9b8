"""Markdown tables of the evidence by every estimator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..markdown import header, plus_minus, read_all, row
from .paths import WAYS

__all__ = ["evidence", "labels", "paths"]

REFEREES = ("exact", "annealed")
PARTS = ("bound", "file", "draw")


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


def paths(folder: Path) -> Iterable[str]:
    """The ways to end a training, beside the published ones."""
    for name, found in read_all(folder).items():
        measure = "accuracy" if name == "seven-nine" else "RMSE"
        yield from header(f"{name} ({len(found['runs'])} seeds), {measure}", *WAYS)
        for part, label in (("test", "test rows"), ("noisy", "noise of 0.5 on the inputs")):
            spread = found["spread"][part]
            yield row(label, *(plus_minus(spread[way], 3) for way in WAYS))
            if (published := found["published"].get(part)) is not None:
                yield row("published", *(f"{value:g}" for value in published))
        bounds = found["spread"]["bounds"]
        cells = (plus_minus(bounds[way], 3) if way in bounds else "" for way in WAYS)
        yield row("bound, nats a row", *cells)
        steps = (sorted({run["steps"].get(way, "") for run in found["runs"]}) for way in WAYS)
        yield row("ended after step", *(", ".join(map(str, one)) for one in steps))
        yield ""


def labels(folder: Path) -> Iterable[str]:
    """Bits that send the labels, in kilobits, by every model and code; weights first."""
    for name, found in read_all(folder).items():
        runs = found["runs"]
        uniform = runs[0]["uniform"] / 1000
        yield from header(
            f"{name}, uniform {uniform:.2f} kbit", "accuracy, %", "bound", "file and the rest",
            "draw and the rest", "prequential",
        )  # fmt: skip
        for coder in dict.fromkeys(run["coder"] for run in runs):
            own = [run for run in runs if run["coder"] == coder]
            accuracy = fmean(100 * run["accuracy"] for run in own)
            coded = fmean(sum(run["blocks"]) for run in own) / 1000
            cells = (_two_parts([run.get(part) for run in own]) for part in PARTS)
            yield row(f"{coder} ({len(own)})", f"{accuracy:.1f}", *cells, f"{coded:.2f}")
        yield row(
            "switching between all", "", "", "", "", plus_minus(found["switching"]["bits"], 2, 1e-3)
        )
        if (published := found["published"]) is not None:
            yield row("published", "", "", "", "", f"{published['prequential']:.2f}")
        yield ""


def _two_parts(found: list[dict[str, Any] | None]) -> str:
    """The sum of the two parts of a message, and each of them."""
    known = [tuple(one.values()) for one in found if one is not None and "refused" not in one]
    if not known:
        return ""
    first, second = (fmean(one[k] for one in known) / 1000 for k in (0, 1))
    return f"{first + second:.2f} ({first:.2f} + {second:.2f})"
