"""How long whole runs take, compilation and evaluation included.

    python -m pyroccam.benchmarks.runs

The README's fit of the spirals, eager against compiled with the compiler's cache empty and full,
and five seeds together against one after the other. Every run is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from ..inference.fits.fitting import pick_device
from ..inference.storage.checkpoint import write_json
from .cache import VARIABLE
from .harness import Quartiles
from .machine import describe, folder_name
from .report import brief, markdown, number
from .steps import RESULTS, DeviceName, Out, Threads

__all__ = ["Run", "app", "runs_table", "summarise"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)


@dataclass(frozen=True)
class Run:
    """A way to run.

    Attributes:
        name: of the row.
        job: its runs are compared with the first of the same job.
        arguments: of :func:`~pyroccam.benchmarks.one_run.one_run`.
        cache: the runs of a round that name the same cache share it; it starts empty.
    """

    name: str
    job: str
    arguments: dict[str, Any]
    cache: str


ONE, FIVE = "one fit", "five seeds"
_SEEDS = {"seeds": [0, 1, 2, 3, 4]}

RUNS = (
    Run("eager", ONE, {"seeds": [0], "compile": False}, "eager"),
    Run("as fit decides", ONE, {"seeds": [0], "compile": None}, "eager"),
    Run("compiled, empty cache", ONE, {"seeds": [0], "compile": True}, "one"),
    Run("compiled, full cache", ONE, {"seeds": [0], "compile": True}, "one"),
    Run("one after the other, eager", FIVE, {**_SEEDS, "compile": False}, "eager"),
    Run("one after the other, compiled, empty cache", FIVE, {**_SEEDS, "compile": True}, "turn"),
    Run("together, empty cache", FIVE, {**_SEEDS, "compile": True, "together": True}, "together"),
    Run("together, full cache", FIVE, {**_SEEDS, "compile": True, "together": True}, "together"),
)


@dataclass
class Outcome:
    """Measurements of one way, a value for each round."""

    name: str
    job: str
    seconds: list[float] = field(default_factory=list)
    process_seconds: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of a fit.")] = 2000,
    job: Annotated[str | None, typer.Option(help=f"'{ONE}' or '{FIVE}'; both if left out.")] = None,
    threads: Threads = 1,
    device: DeviceName = "cpu",
    out: Out = RESULTS,
) -> None:
    """Time whole fits of the spirals, from data to the learnt structure.

    Writes runs.json (anew, with what was chosen) and prints a table in Markdown. Seconds are those
    inside the process after its imports; the file has those of the whole process too.
    """
    torch.set_num_threads(threads)
    where = pick_device(device)
    if job not in (None, ONE, FIVE):
        raise typer.BadParameter(f"--job is {ONE!r} or {FIVE!r}, got {job!r}")
    chosen = [run for run in RUNS if job in (None, run.job)]
    found = {(run.job, run.name): Outcome(run.name, run.job) for run in chosen}
    common = {"threads": threads, "device": str(where), "steps": steps}
    for round in range(rounds):
        with tempfile.TemporaryDirectory() as caches:
            for run in chosen:
                outcome = found[run.job, run.name]
                if outcome.error is None:
                    _take(run, {**run.arguments, **common}, Path(caches), outcome)
                said = outcome.error or f"{outcome.seconds[-1]:.1f} s"
                console.print(f"round {round + 1} of {rounds}: {run.job}, {run.name}: {said}")
    rows = summarise(found.values())
    write_json(
        out / folder_name(where) / "runs.json",
        {"steps": steps, "rounds": rounds, "machine": describe(where),
         "runs": [asdict(row) for row in rows]},
    )  # fmt: skip
    print(runs_table(rows))


def _take(run: Run, arguments: dict[str, Any], caches: Path, outcome: Outcome) -> None:
    """One run in a process of its own."""
    cache = caches / run.cache
    cache.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pyroccam.benchmarks.one_run", json.dumps(arguments)]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env={**os.environ, VARIABLE: str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    elapsed = time.perf_counter() - start
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        outcome.error = lines[-1]
        return
    result = json.loads(done.stdout.strip().splitlines()[-1])
    outcome.seconds.append(result["seconds"])
    outcome.process_seconds.append(elapsed)
    outcome.runs.append(result)


def summarise(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Fill in the ratios to the first way of the same job, round by round."""
    rows = list(outcomes)
    first: dict[str, Outcome] = {}
    for row in rows:
        base = first.setdefault(row.job, row)
        if row.error is None and base.error is None:
            row.ratio = [a / b for a, b in zip(row.seconds, base.seconds, strict=True)]
    return rows


def runs_table(rows: Iterable[Outcome]) -> str:
    """Medians over rounds."""
    cells = []
    for row in rows:
        if row.error is not None:
            cells.append([f"{row.job}: {row.name}", f"fails: {brief(row.error)}", "", ""])
            continue
        seconds = Quartiles.of(row.seconds)
        ratio = number(Quartiles.of(row.ratio).median) if row.ratio else ""
        spread = f"{number(seconds.lower)} to {number(seconds.upper)}"
        cells.append([f"{row.job}: {row.name}", number(seconds.median), spread, ratio])
    return markdown(("run", "seconds", "quartiles", "time / first of its kind"), cells)


if __name__ == "__main__":
    app(prog_name="python -m pyroccam.benchmarks.runs")
