"""Results that a script has already, and goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from ...inference.posterior.metrics import mean_spread
from ...inference.storage.checkpoint import versions, write_json
from ..runs.config import RunConfig, changed_settings
from ..runs.run import Outcome, run

__all__ = ["add_seeds", "refuse_other_settings"]


def refuse_other_settings(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A file holds runs of one setting.

    Raises:
        typer.BadParameter: if it was run with another.
    """
    if changed := changed_settings(before, now):
        raise typer.BadParameter(
            f"{path} was run with other settings: {'; '.join(changed)}. Give another --out, or "
            "delete it."
        )


def add_seeds(
    path: Path,
    seeds: int,
    method: str,
    data: str,
    *,
    row: Callable[[Outcome], dict[str, Any]],
    numbers: Callable[[dict[str, Any]], dict[str, float]],
    say: Callable[[dict[str, Any]], str],
    runs: Path | None,
    device: str,
    beside: Mapping[str, Any] | None = None,
    **resolved: Any,
) -> None:
    """Run the seeds that a file lacks, and write it after each.

    Arguments:
        path: with ``config``, ``runs``, their ``spread`` and ``versions``.
        seeds: 0, 1, ..., so many.
        method, data, resolved: for :meth:`~pyroccam.experiments.runs.config.RunConfig.resolve`.
        row: what is kept of a run; with its ``seed``.
        numbers: of a row, those of which the spread is written.
        say: of a row, a line to print.
        runs: folder in which the runs stay, or ``None``.
        device: of the runs.
        beside: what else the file says, such as published numbers.
    """
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": []}
    for seed in range(seeds):
        config, dataset = RunConfig.resolve(method, data, seed=seed, **resolved)
        described = config.without_seed()
        if found["runs"]:
            refuse_other_settings(path, found["config"], described)
        if seed in {one["seed"] for one in found["runs"]}:
            continue
        folder = None if runs is None else runs / f"{path.stem}-{seed}"
        outcome = run(config, dataset, out=folder, device=device, resume=folder is not None)
        found["config"] = described
        found["runs"].append(row(outcome))
        spread = mean_spread([numbers(one) for one in found["runs"]])
        found |= {"spread": spread, "versions": versions(), **(beside or {})}
        write_json(path, found)
        print(say(found["runs"][-1]), flush=True)
