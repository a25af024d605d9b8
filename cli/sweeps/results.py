"""What the runs of a sweep came to: a table, a CSV file, and one summary for each setting."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from filelock import FileLock

from ...data import PyroccamError
from ...inference.storage import seal, write_json, write_whole
from ..runs import METRICS, Cell, Table, read_json, spread_of
from .plan import Trial, cells_of

RESULTS = "results.csv"
_LEARNT = ("depth_chosen", "nonzero_percent", "file_bytes", "entropy")
_SHOWN = ("nll", *_LEARNT, "val_nll")  # beside the first score; results.csv has all


def unmet(folder: Path) -> str | None:
    """Why no network of a finished run meets what was asked, if so."""
    found = read_json(folder / "metrics.json").get("path", {}).get("unmet")
    return None if found is None else str(found)


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run that are compared: scores of the test rows, then what was learnt."""
    test = metrics["test"]
    found = dict(test.get("ensemble", test))
    for part in (metrics.get("structure") or {}, metrics.get("depth") or {}):
        found |= {name: part[name] for name in _LEARNT if name in part}
    found |= {name: metrics.get(name) for name in ("parameters", "val_nll", "seconds")}
    return {
        name: float(value) if isinstance(value, int | float) else math.nan
        for name, value in found.items()
    }


def write_results(
    folder: Path, trials: Sequence[Trial], failed: Mapping[str, str]
) -> dict[str, list[dict[str, float]]]:
    """Write ``results.csv``, a row for each run, and ``metrics.json`` of each setting."""
    rows: list[dict[str, Any]] = []
    finished: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        swept = {k: v if isinstance(v, str) else json.dumps(v) for k, v in trial.swept.items()}
        row = {"run": trial.name, **swept, "seed": trial.seed, "state": "waiting"}
        if (folder / trial.name / "metrics.json").is_file():
            metrics = read_json(folder / trial.name / "metrics.json")
            finished.setdefault(trial.cell, []).append(metrics)
            row |= {"state": "done", **numbers_of(metrics)}
        if trial.name in failed:
            row |= {"state": "failed", "error": failed[trial.name]}
        rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))

    def write(file: Any) -> None:
        out = csv.DictWriter(file, columns, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)

    with FileLock(folder / ".results.lock", timeout=60):  # several machines end at one moment
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
    write_json(folder / "metrics.json", {"repeats": found, "spread": spread})
    seal(folder)


def table(trials: Sequence[Trial], numbers: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """Settings and results, with mean and standard deviation over the seeds."""
    names = list(dict.fromkeys(name for found in numbers.values() for one in found for name in one))
    scores = [name for name in METRICS if name in names]
    shown = list(dict.fromkeys([*scores[:1], *(name for name in _SHOWN if name in names)]))
    head = [METRICS.get(name, name.replace("_", " ")) for name in shown]
    rows = []
    for cell, own in cells_of(trials).items():
        found = numbers.get(cell, [])
        settings = [str(value) for value in own[0].swept.values()] or [cell]
        count = str(len(found)) if len(found) == len(own) else f"{len(found)} of {len(own)}"
        texts = (count, *(_spread(found, name) for name in shown))
        rows.append([*map(Cell, settings), *(Cell(text, 0.0) for text in texts)])
    return Table("", [*(trials[0].swept or ["runs"]), "seeds", *head], rows)


def _spread(found: Sequence[Mapping[str, float]], name: str) -> str:
    values = [one[name] for one in found if name in one]
    if not all(map(math.isfinite, values)):
        return "not finite"
    sd = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{sd}" if values else ""


def finished_cells(folder: Path) -> list[Path]:
    """The folders of the settings of a sweep of which there are finished runs; of any other folder
    itself."""
    if not (folder / RESULTS).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/metrics.json"))
    if not found:
        raise PyroccamError(f"{folder} is a sweep without a finished run", "one that is done")
    return found
