"""What the runs of a sweep came to: a table, a CSV file, and one summary for each setting."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from ...inference.posterior.metrics import mean_spread
from ...inference.storage.checkpoint import seal, write_json
from ...inference.storage.whole import write_whole
from ..runs.opening import RunError, read_json
from ..runs.repeats import spread_of
from ..runs.summary import METRICS
from .plan import PLAN, Plan, planning
from .store import State

__all__ = ["RESULTS", "finished_cells", "numbers_of", "read_metrics", "table", "write_results"]

RESULTS = "results.csv"
_LEARNT = ("depth_chosen", "nonzero_percent", "file_bytes", "entropy")
_SHOWN = ("nll", *_LEARNT, "val_nll")  # beside the first score; results.csv has all


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """What a run measured, or ``None`` if it has not finished."""
    path = folder / "metrics.json"
    return read_json(path) if path.is_file() else None


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run that are compared: scores of the test rows, then what was learnt."""
    test = metrics["test"]
    found = dict(test.get("ensemble", test))
    structure = metrics.get("depth") or metrics.get("structure") or {}
    for name in _LEARNT:
        for part in (structure, metrics.get("structure") or {}):
            found |= {name: part[name]} if name in part else {}
    found |= {name: metrics.get(name) for name in ("parameters", "val_nll", "seconds")}
    return {
        name: float(value) if isinstance(value, int | float) else math.nan
        for name, value in found.items()
    }


def write_results(
    folder: Path, plan: Plan, states: Mapping[str, State]
) -> dict[str, list[dict[str, float]]]:
    """Write ``results.csv``, a row for each run, and ``metrics.json`` of each setting.

    Returns:
        The numbers of the finished runs, by setting.
    """
    rows: list[dict[str, Any]] = []
    finished: dict[str, list[dict[str, Any]]] = {}
    for cell, trials in plan.cells.items():
        settings = {k: v if isinstance(v, str) else json.dumps(v)
                    for k, v in plan.settings_of(cell).items()}  # fmt: skip
        found = []
        for trial in trials:
            metrics = read_metrics(folder / trial.name)
            state = states.get(trial.name)
            word = "waiting" if state is None else state.word
            row = {"run": trial.name, **settings, "seed": trial.seed, "state": word}
            row["error"] = (state and state.error) or ""
            if metrics is not None:
                found.append(metrics)
                row |= numbers_of(metrics)
            rows.append(row)
        if found:
            finished[cell] = found
    columns = list(dict.fromkeys(name for row in rows for name in row))

    def write(file: Any) -> None:
        out = csv.DictWriter(file, columns, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)

    with planning(folder):  # drivers of several machines end at the same moment
        for cell, found in finished.items():
            _write_cell(folder / cell, found)
        write_whole(folder / RESULTS, write, "w")
    return {cell: [numbers_of(one) for one in found] for cell, found in finished.items()}


def _write_cell(folder: Path, found: list[dict[str, Any]]) -> None:
    """The summary of the seeds of a setting, as ``pyroccam fit --repeats`` writes it."""
    try:
        spread = spread_of(found)
    except (ValueError, TypeError):  # a number of one of them is not finite
        spread = {}
    content = {"repeats": found, "spread": spread}
    path = folder / "metrics.json"
    if not path.is_file() or json.loads(path.read_text(encoding="utf-8")) != content:
        write_json(path, content)
        seal(folder)


def table(plan: Plan, numbers: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """Settings and results, with mean and standard deviation over the seeds."""
    names = list(dict.fromkeys(name for found in numbers.values() for one in found for name in one))
    scores = [name for name in METRICS if name in names]
    shown = list(dict.fromkeys([*scores[:1], *(name for name in _SHOWN if name in names)]))
    head = [METRICS.get(name, name.replace("_", " ")) for name in shown]
    settings_of = plan.swept or ("runs",)
    named = [Column(name, overflow="fold") for name in settings_of]
    out = Table(*named, "seeds", *head, box=None)
    for column in out.columns[len(settings_of) :]:
        column.justify, column.no_wrap = "right", True
    for cell, trials in plan.cells.items():
        found = numbers.get(cell, [])
        settings = [str(value) for value in plan.settings_of(cell).values()] or [cell]
        count = str(len(found)) if len(found) == len(trials) else f"{len(found)} of {len(trials)}"
        out.add_row(*settings, count, *(_spread(found, name) for name in shown))
    return out


def _spread(found: Sequence[Mapping[str, float]], name: str) -> str:
    values = [one[name] for one in found if name in one]
    if not values:
        return ""
    if not all(map(math.isfinite, values)):
        return "not finite"
    spread = mean_spread([{name: value} for value in values])[name]
    sd = spread["sd"]
    return f"{spread['mean']:.4g}" + ("" if sd is None else f" ± {sd:.2g}")


def finished_cells(folder: Path) -> list[Path]:
    """The folders of the settings of a sweep of which there are finished runs; of any other folder
    itself.

    Raises:
        RunError: for a sweep without any.
    """
    if not (folder / PLAN).is_file():
        return [folder]
    found = [folder / cell for cell in Plan.read(folder).cells]
    found = [cell for cell in found if (cell / "metrics.json").is_file()]
    if not found:
        raise RunError(
            f"{folder} is a sweep without a finished run",
            hint=f"go on with it: pyroccam sweep {folder}",
        )
    return found
