"""The driver of a sweep: has its runs trained, says how far it is, puts results together.

It holds nothing that is not written: the same command goes on where it was killed, and may be given
on several machines at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...data import PyroccamError
from ...inference.storage import refuse_links
from ...inference.training import StopSignal
from .. import Part, PlainConsole
from ..runs import METRICS, read_json
from .cluster import ClusterPool
from .plan import Trial, cells_of
from .pool import Pool, slots_of
from .results import RESULTS, numbers_of, table, write_results

LOOK = 0.1  # seconds between looks at the processes


@dataclass(frozen=True)
class Ended:
    """How a sweep ended."""

    left: int
    failed: dict[str, str]


def run_sweep(
    console: PlainConsole,
    folder: Path,
    trials: Sequence[Trial],
    *,
    options: Sequence[str] = (),
    workers: int | None = None,
    threads: int = 1,
    device: str = "auto",
    scheduler: str | None = None,
) -> Ended:
    """Check a sweep, and have every run of it trained, here or by a scheduler of Dask. A signal
    stops it, after all is saved."""
    if folder.exists():
        refuse_links(folder)
        results = folder / RESULTS
        if results.is_file() and not results.read_bytes().startswith(b"run,"):
            raise PyroccamError(f"{results} is not that of a sweep", "another --out")
    for own in cells_of(trials).values():
        own[0].check()
    folder.mkdir(parents=True, exist_ok=True)
    options = [*options, f"--threads={threads}"]
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task("runs", total=len(trials), now="")
    processes = (
        Pool(folder, trials, slots_of(device, workers, threads), options)
        if scheduler is None
        else ClusterPool(scheduler, folder, trials, options, device, workers, threads)
    )
    with StopSignal() as stop, bar, processes as pool:
        before = sum((folder / trial.name / "metrics.json").is_file() for trial in trials)
        then = f", {before:,} of them finished before" if before else ""
        console.say(f"{len(trials):,} runs{then}.")
        while pool.left and not stop:
            for trial in pool.look():
                console.say(*_line(folder, trial, pool.failed))
            now = f"{pool.running} running"
            bar.update(task, completed=len(trials) - pool.left, now=now)
            time.sleep(LOOK)
    console.print(table(trials, write_results(folder, trials, pool.failed)))
    return Ended(pool.left, pool.failed)


def _line(folder: Path, trial: Trial, failed: dict[str, str]) -> list[Part]:
    """A run that ended, in words."""
    if trial.name in failed:
        return [f"{trial.name}: ", ("failed", "red"), f": {failed[trial.name]}"]
    found = numbers_of(read_json(folder / trial.name / "metrics.json"))
    scores = [f"{METRICS[key]} {found[key]:.4f}" for key in METRICS if key in found][:3]
    return [f"{trial.name}: {', '.join(scores)} in {found['seconds']:.0f} s"]
