"""Tables of structure selection: regimes, hyperparameters, structures against random ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyroccam.inference.posterior.metrics import mean_spread

from ..markdown import header, plus_minus, read_all, row
from .hyperparameters import COMPARED, CRITERIA, NOISES, PROBLEMS
from .kinds_of_noise import KINDS

__all__ = ["by_price", "hyperparameters", "kinds_of_noise", "regimes", "structures"]

_WHO = {"prior": "prior ≫ data", "equal": "equal", "likelihood": "data ≫ prior"}


def regimes(folder: Path) -> Iterable[str]:
    """How probable the expected model is, and in how many seeds it is the winner."""
    found = read_all(folder, ["toy"]).get("toy")
    if found is None:
        return
    cells: dict[str, dict[float, dict[str, Any]]] = {}
    for one in found["cells"]:
        cells.setdefault(one["regime"], {})[one["temperature"]] = one
    temperatures = sorted({t for own in cells.values() for t in own})
    yield from header(
        "mean q of the expected model (seeds won)", *(f"T = {t:g}" for t in temperatures)
    )
    for regime, own in cells.items():
        first = own[temperatures[0]]
        shown = [
            f"{one['spread']['q_expected']['mean']:.2f} "
            f"({one['winners'][one['expected']]}/{sum(one['winners'].values())})"
            for one in (own[t] for t in temperatures)
        ]
        yield row(f"{_WHO[regime]} (λ = {first['kl_weight']:g}): {first['expected']}", *shown)


def hyperparameters(folder: Path) -> Iterable[str]:
    """The objective that each method reached, how fast, and what its network is worth."""
    for problem in PROBLEMS:
        for criterion in CRITERIA:
            stem = f"{problem}-{criterion}-"
            every = read_all(folder, [f"{stem}{method}" for method in COMPARED])
            files = {n.removeprefix(stem): found for n, found in every.items() if found["spread"]}
            if files:
                yield from _criterion(problem, criterion, files)
                yield ""


def kinds_of_noise(folder: Path) -> Iterable[str]:
    """Errors without noise and with each kind of it, beside the source's."""
    for name, found in read_all(folder).items():
        spread, published = found["spread"], found["published"]
        digits, scale = (1, 100.0) if name.startswith("mnist") else (2, 1.0)
        label = "accuracy, %" if digits == 1 else "RMSE"
        yield from header(
            f"{name} ({len(found['runs'])}), {label}", "without", *(f"at {sd}" for sd in NOISES)
        )
        for kind in KINDS:
            cells = [spread["none"], *(spread[f"{kind} {sd}"] for sd in NOISES)]
            yield row(kind, *(plus_minus(cell, digits, scale) for cell in cells))
        if published is not None:
            yield row("published", *(f"{scale * value:.{digits}f}" for value in published))
        yield ""


def _criterion(problem: str, criterion: str, files: dict[str, Any]) -> Iterable[str]:
    first = next(iter(files.values()))
    measures = [name.partition(" ")[2] for name in first["spread"] if name.startswith("test ")]
    measure = "accuracy" if "accuracy" in measures else "rmse"
    digits, scale = (1, 100.0) if measure == "accuracy" else (2, 1.0)
    label = "accuracy, %" if measure == "accuracy" else "RMSE"
    yield from header(
        f"{problem}, {criterion} (seeds)", "Q", "outer steps to 99 % of the gain",
        "to the best of random search", label, *(f"with noise {sd}" for sd in NOISES),
    )  # fmt: skip
    for method, found in files.items():
        spread = found["spread"]
        parts = ["test", *(f"noise {sd}" for sd in NOISES)]
        failed = sum("failed" in run for run in found["runs"])
        count = f"{len(found['runs']) - failed}" + (f", {failed} failed" if failed else "")
        yield row(
            f"`{method}` ({count})", plus_minus(spread["Q"], 1), plus_minus(spread["reached"], 0),
            "" if method == "random" else _passed(found, files.get("random")),
            *(plus_minus(spread[f"{part} {measure}"], digits, scale) for part in parts),
        )  # fmt: skip


def _passed(found: dict[str, Any], random: dict[str, Any] | None) -> str:
    """Outer steps until Q is that of the best of all tries at random, seed by seed: mean, sd, and
    of how many seeds."""
    if random is None:
        return ""
    best = {run["seed"]: run["Q"] for run in random["runs"] if "failed" not in run}
    runs = [run for run in found["runs"] if "failed" not in run and run["seed"] in best]
    steps = [passing(run["history"], best[run["seed"]]) for run in runs]
    passed = [{"steps": float(step)} for step in steps if step is not None]
    if not passed:
        return "never"
    shown = plus_minus(mean_spread(passed)["steps"], 1)
    return shown if len(passed) == len(steps) else f"{shown} ({len(passed)} of {len(steps)})"


def passing(history: Sequence[float], value: float) -> int | None:
    """The outer step at which Q is at least a value; ``None`` if it never is."""
    return next((k for k, q in enumerate(history, start=1) if q >= value), None)


def structures(folder: Path) -> Iterable[str]:
    """The learnt structure against those drawn at random, of about the same size."""
    for stem, found in read_all(folder).items():
        spread, runs = found["spread"], found["runs"]
        measure = "accuracy" if "mixture accuracy" in spread else "rmse"
        yield from header(f"{stem} ({len(runs)} seeds)", measure, "NLL", "parameters")
        sizes = {
            "mixture": [run["parameters_before"] for run in runs],
            "cut out": [run["parameters"] for run in runs],
            "afresh": [run["parameters"] for run in runs],
            "random": [one["parameters"] for run in runs for one in run["random"]],
        }
        for part, counts in sizes.items():
            low, high = min(counts), max(counts)
            yield row(
                _PARTS[part], plus_minus(spread[f"{part} {measure}"]),
                plus_minus(spread[f"{part} nll"], 3),
                f"{low:,}" if low == high else f"{low:,} to {high:,}",
            )  # fmt: skip
        yield ""


_PARTS = {
    "mixture": "all alternatives together",
    "cut out": "the most probable structure, cut out",
    "afresh": "the same, trained afresh",
    "random": "random structures",
}


def by_price(folder: Path) -> Iterable[str]:
    """Structures that are chosen at some weights of their price, and the random ones beside."""
    for found in read_all(folder).values():
        yield from header(
            f"{found['config']['data']}, seed", "λ", "parameters", "accuracy, %",
            "random ones no larger: worse, %", "the best of these, %",
        )  # fmt: skip
        for run in found["runs"]:
            for one in run["networks"]["path"]:
                others = run["networks"]["random"]
                rivals = [r["accuracy"] for r in others if r["parameters"] <= one["parameters"]]
                worse = sum(a < one["accuracy"] for a in rivals)
                yield row(
                    run["seed"], f"{one['weight']:g}", f"{one['parameters']:,}",
                    f"{100 * one['accuracy']:.1f}",
                    f"{100 * worse / len(rivals):.0f} of {len(rivals)}" if rivals else "",
                    f"{100 * max(rivals):.1f}" if rivals else "",
                )  # fmt: skip
        yield ""
