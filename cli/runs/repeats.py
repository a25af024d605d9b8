"""Summary of the repeats of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...inference import Repeats
from ...inference.posterior import HOWS, mean_spread
from ...inference.storage import seal, write_json
from .. import PlainConsole
from .config import RunConfig
from .execution import Outcome


def put_together(
    console: PlainConsole, outcomes: list[Outcome], config: RunConfig, out: Path
) -> None:
    """Write what the repeats of a run come to."""
    found = [outcome.metrics for outcome in outcomes]
    summary = spread_of(found)
    fits = Repeats([outcome.fit for outcome in outcomes], 0.0)
    try:
        summary["together"] = fits.evaluate(noise=config.options.get("noise", "weights"))
    except ValueError as error:  # every seed has test rows of its own
        console.say(f"{error}: --set data.seed={config.settings['seed']}.")
    write_json(out / "metrics.json", {"repeats": found, "spread": summary})
    seal(out)


def spread_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of what several runs measured, by part of ``metrics.json``."""
    first, tests = found[0], dict[str, list[Any]]()
    for way in HOWS:
        if way in first["test"]:
            tests[way] = [one["test"][way] for one in found]
    tests = tests or {"test": [one["test"] for one in found]}
    for part in ("compressed", "pruned", "single_exit", "ddn", "discretised", "retrained"):
        if all(part in one for one in found):
            tests[part] = [one[part]["test"] for one in found]
    parts = [one.get("structure", {}) for one in found]
    learnt = [_numbers({**part, **part.get("rates", {})}) for part in parts]
    return {name: mean_spread(each) for name, each in {**tests, "structure": learnt}.items()}


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(v) for name, v in found.items() if isinstance(v, int | float)}
