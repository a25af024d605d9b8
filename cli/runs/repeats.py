"""Summary of the repeats of a run."""

from __future__ import annotations

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
    out: dict[str, Any] = {}
    ways = [way for way in HOWS if way in found[0]["test"]]
    for way in ways:
        out[way] = mean_spread([one["test"][way] for one in found])
    if not ways:
        out["test"] = mean_spread([one["test"] for one in found])
    for part in ("compressed", "pruned", "single_exit", "ddn", "discretised", "retrained"):
        if part in found[0]:
            out[part] = mean_spread([one[part]["test"] for one in found])
    if "compressed" in found[0]:
        parts = [{**one["structure"], **one["structure"]["rates"]} for one in found]
        out["structure"] = mean_spread(
            [{k: float(v) for k, v in part.items() if isinstance(v, int | float)} for part in parts]
        )
    elif "discretised" in found[0]:
        each = [one["structure"]["entropy"] for one in found]
        out["structure"] = mean_spread([{"entropy": e} for e in each])
    elif "structure" in found[0]:
        keys = ("depth_chosen", "depth_expected", "tv_to_exact")
        out["structure"] = mean_spread([{k: float(f["structure"][k]) for k in keys} for f in found])
    return out
