"""How the time of a step grows with depth, width, batch and the number of replicates.

    python -m pyroccam.benchmarks.growth

Learnt depth on the spirals; each size is varied by itself. Several replicates are stepped one
after the other by the eager contenders, and together by the compiled one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from ..inference.figures import save
from ..inference.fits.fitting import pick_device
from ..inference.storage.checkpoint import write_json
from .cache import empty_cache
from .figures import Line, lines
from .harness import Measured, Plan, measure
from .machine import describe, folder_name
from .report import brief, markdown, number
from .steps import RESULTS, DeviceName, Out, ReportOnly, Threads
from .workloads.depth import BASE, DepthProblem, depth_workload

CONTENDERS = (BASE, "pyroccam eager", "pyroccam compiled")

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)


@dataclass(frozen=True)
class Sizes:
    """One size of the problem; the others stay as here."""

    depth: int = 20
    width: int = 20
    batch: int = 200
    replicates: int = 1


AXES: dict[str, tuple[int, ...]] = {
    "depth": (5, 10, 20, 50, 100),
    "width": (10, 20, 50, 100, 200),
    "batch": (50, 100, 200, 400, 800, 1600),
    "replicates": (1, 2, 4, 8, 16),
}

LABELS = {
    "depth": "deepest depth D",
    "width": "width",
    "batch": "batch",
    "replicates": "replicates (ms for all of them)",
}


@app.command()
def main(
    axes: Annotated[
        list[str] | None, typer.Argument(help="depth, width, batch, replicates; all if left out.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 7,
    seconds: Annotated[
        float, typer.Option(help="About how long a turn of the base lasts; sets the steps.")
    ] = 0.2,
    largest: Annotated[
        int | None, typer.Option(help="Leave out sizes beyond this one.", show_default=False)
    ] = None,
    threads: Threads = 1,
    device: DeviceName = "cpu",
    out: Out = RESULTS,
    report: ReportOnly = False,
) -> None:
    """Measure the time of a step of learnt depth (spirals) at growing sizes.

    Writes growth.json and growth.png, and prints a table in Markdown. A panel that is measured
    again replaces the old one in the file.
    """
    torch.set_num_threads(threads)
    where = pick_device(device)
    chosen = axes or list(AXES)
    unknown = [axis for axis in chosen if axis not in AXES]
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(AXES)}")
    path = out / folder_name(where) / "growth.json"
    if not report:
        before = json.loads(path.read_text())["points"] if path.exists() else []
        with empty_cache():
            points = [p for p in before if p["axis"] not in chosen]
            for point in _points(chosen, largest, rounds, seconds, where):
                points.append(point)  # written as they come: an interrupted run has its points
                points.sort(key=lambda p: (list(AXES).index(p["axis"]), p["at"]))
                found = {"sizes": asdict(Sizes()), "machine": describe(where), "points": points}
                write_json(path, found)
    if not path.exists():
        raise typer.BadParameter(f"--report: there is no {path}")
    found = json.loads(path.read_text())
    rows = [
        (p["axis"], p["at"], [Measured.from_json(c) for c in p["contenders"]])
        for p in found["points"]
    ]
    print(growth_table(rows))
    save(lines(panels(rows), "Time of a step of learnt depth"), path.with_suffix(""))


def _points(
    chosen: Iterable[str], largest: int | None, rounds: int, seconds: float, where: torch.device
) -> Iterator[dict[str, Any]]:
    done: dict[Sizes, list[dict[str, Any]]] = {}  # the panels have one point in common
    for axis in chosen:
        for at in AXES[axis]:
            if largest is not None and at > largest:
                continue
            sizes = Sizes(**{axis: at})
            if sizes not in done:
                console.rule(f"{axis} = {at}")
                done[sizes] = _measure(sizes, rounds, seconds, where)
            yield {"axis": axis, "at": at, "contenders": done[sizes]}


def _measure(
    sizes: Sizes, rounds: int, seconds: float, where: torch.device
) -> list[dict[str, Any]]:
    network = {"width": sizes.width, "max_depth": sizes.depth}
    problem = DepthProblem("mlp", network, batch=sizes.batch)

    def at(plan: Plan, names: Iterable[str]) -> list[Measured]:
        workload = depth_workload(
            "growth", "growth", problem, where, names, replicates=sizes.replicates
        )
        return measure(workload, plan, where, {}, console.print).contenders

    trial = at(Plan(rounds=1, steps=3, warmup=2, settle=0), [BASE])[0]
    ms = trial.ms.median if trial.ms else 1e3 * seconds
    plan = Plan(rounds, max(1, round(1e3 * seconds / ms)), warmup=3, settle=1)
    return [asdict(row) for row in at(plan, CONTENDERS)]


def growth_table(rows: Iterable[tuple[str, int, list[Measured]]]) -> str:
    """Milliseconds of a step, and in brackets how many times as long as the base's it is."""
    cells = []
    for axis, at, measured in rows:
        by_name = {row.name: row for row in measured}
        cells.append([f"{axis} = {at}", *(_ms(by_name[name]) for name in CONTENDERS)])
    header = (f"{name}, ms" if name == BASE else f"{name}, ms (times base)" for name in CONTENDERS)
    return markdown(("size", *header), cells)


def _ms(row: Measured) -> str:
    if row.ms is None:
        return f"fails: {brief(row.error, 60)}"
    ratio = "" if row.ratio is None or row.name == BASE else f" ({number(row.ratio.median)})"
    return number(row.ms.median) + ratio


def panels(rows: Iterable[tuple[str, int, list[Measured]]]) -> dict[str, dict[str, Line]]:
    """Points as lines, one panel for each axis."""
    found: dict[str, dict[str, Line]] = {}
    for axis, at, measured in rows:
        panel = found.setdefault(LABELS[axis], {})
        for row in measured:
            line = panel.setdefault(row.name, {"at": [], "ms": [], "lower": [], "upper": []})
            if row.ms is not None:
                line["at"].append(at)
                line["ms"].append(row.ms.median)
                line["lower"].append(row.ms.lower)
                line["upper"].append(row.ms.upper)
    return found


if __name__ == "__main__":
    app(prog_name="python -m pyroccam.benchmarks.growth")
