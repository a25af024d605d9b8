"""Tables of the evidence by every estimator."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..markdown import header, plus_minus, read_all, row
from .candidates import LADDERS
from .estimators import ESTIMATORS, REFEREES
from .paths import WAYS

__all__ = ["choices", "estimators", "labels", "paths"]

Run = dict[str, Any]

ERRORS = 3.0  # standard errors within which two values agree


def estimators(folder: Path) -> Iterable[str]:
    """What each estimator differs from the referee by, in nats, and what all of them choose."""
    files = read_all(folder, LADDERS)
    if not files:
        return
    counts = {name: f"{name} ({len(f['runs'])} models)" for name, f in files.items()}
    yield from header("less the referee, nats", *counts.values(), "agree", "above", "s")
    for name in ESTIMATORS:
        found = {k: [g for r in f["runs"] if (g := gap(r, name))] for k, f in files.items()}
        every = [one for gaps in found.values() for one in gaps]
        if name == "exact" or not every:
            continue
        agree = sum(abs(value) <= ERRORS * error + 1e-6 for value, error in every)
        above = sum(value > ERRORS * error + 1e-6 for value, error in every)
        seconds = statistics.median(
            r["estimates"][name]["seconds"]
            for f in files.values()
            for r in f["runs"]
            if "value" in r["estimates"][name]
        )
        yield row(
            name, *(_range(gaps) for gaps in found.values()), f"{agree} of {len(every)}", above,
            f"{seconds:.1f}",
        )  # fmt: skip
    yield ""
    yield from choices(files)


def gap(run: Run, name: str) -> tuple[float, float] | None:
    """An estimate less that of the referee, and the standard error of this; ``None`` without one,
    or of the referee itself."""
    own, referee = run["estimates"][name], referee_of(run)
    if "value" not in own or own is referee:
        return None
    error = math.hypot(own["error"], referee["error"])
    return own["value"] - referee["value"], error


def referee_of(run: Run) -> Run:
    """The estimate that others are held against: a closed form, if there is one."""
    found: Run = next(e for n in REFEREES if "value" in (e := run["estimates"][n]))
    return found


def _range(gaps: list[tuple[float, float]]) -> str:
    if not gaps:
        return ""
    values = sorted(value for value, _ in gaps)
    return f"{statistics.median(values):+.1f} ({values[0]:+.1f} to {values[-1]:+.1f})"


def choices(files: dict[str, Any]) -> Iterable[str]:
    """The model that each estimator chooses, seed by seed, and what that costs on held-out rows."""
    yield from header("chosen (nats a held-out row worse than the best)", *files)
    names = ["the referee", *(n for n in ESTIMATORS if n not in REFEREES), "held-out rows"]
    for name in names:
        cells = []
        for found in files.values():
            picked, lost = [], []
            for seed in sorted({r["seed"] for r in found["runs"]}):
                runs = [r for r in found["runs"] if r["seed"] == seed]
                known = [r for r in runs if score(r, name) is not None]
                if not known:
                    continue
                best = max(known, key=lambda r: score(r, name) or -math.inf)
                picked.append(best["member"])
                lost.append(best["held_out"] - min(r["held_out"] for r in runs))
            cells.append(f"{', '.join(picked)} ({statistics.fmean(lost):.3f})" if picked else "")
        yield row(name, *cells)
    yield ""


def score(run: Run, name: str) -> float | None:
    """What a model is chosen by, the more the better; ``None`` where it is not known."""
    if name == "held-out rows":
        return -float(run["held_out"])
    found = referee_of(run) if name == "the referee" else run["estimates"][name]
    value = found.get("value")
    return None if value is None else float(value)


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
            "prequential",
        )  # fmt: skip
        for coder in dict.fromkeys(run["coder"] for run in runs):
            own = [run for run in runs if run["coder"] == coder]
            accuracy = statistics.fmean(100 * run["accuracy"] for run in own)
            coded = statistics.fmean(sum(run["blocks"]) for run in own) / 1000
            cells = (_two_parts([run.get(part) for run in own]) for part in ("bound", "file"))
            yield row(f"{coder} ({len(own)})", f"{accuracy:.1f}", *cells, f"{coded:.2f}")
        yield row(
            "switching between all", "", "", "", plus_minus(found["switching"]["bits"], 2, 1e-3)
        )
        if (published := found["published"]) is not None:
            yield row("published", "", "", "", f"{published['prequential']:.2f}")
        yield ""


def _two_parts(found: list[Run | None]) -> str:
    """The sum of the two parts of a message, and each of them."""
    known = [tuple(one.values()) for one in found if one is not None and "refused" not in one]
    if not known:
        return ""
    first, second = (statistics.fmean(one[k] for one in known) / 1000 for k in (0, 1))
    return f"{first + second:.2f} ({first:.2f} + {second:.2f})"
