"""The driver of a sweep: has workers train its runs, says how far it is, puts results together.

It holds nothing that is not written: another one goes on where it was killed, and several may drive
the same sweep, on as many machines.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...inference.training.terminal import StopSignal
from ..console import PlainConsole
from ..runs.summary import METRICS
from .plan import Plan
from .results import numbers_of, read_metrics, table, write_results
from .store import State, Store
from .team import Team

__all__ = ["Ended", "cores", "devices_of", "drive"]

LOOK = 0.5  # seconds between looks at the database, at least
SHARE = 50  # and at least so many times what a look takes


@dataclass(frozen=True)
class Ended:
    """How a sweep ended.

    Attributes:
        left: how many runs are not finished: some, if it was stopped.
        failed: runs that cannot be done, with the reasons.
    """

    left: int
    failed: dict[str, str]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices_of(device: str, workers: int | None, threads: int) -> list[str]:
    """The device of each worker: of ``auto``, every CUDA device has one, or every core of a machine
    without any.

    Arguments:
        device: as of ``pyroccam fit``.
        workers: how many, if it was said.
        threads: CPU threads of each.
    """
    import torch

    found = torch.cuda.device_count() if device == "auto" else 0
    if found:
        return [f"cuda:{k % found}" for k in range(workers or found)]
    if device.startswith("cuda"):
        return [device] * (workers or 1)
    return ["cpu"] * (workers or max(1, cores() // threads))


def drive(
    folder: Path,
    plan: Plan,
    store: Store,
    console: PlainConsole,
    devices: Sequence[str],
    threads: int = 1,
    again: bool = False,
) -> Ended:
    """Have every run of a sweep trained. A signal stops it, after all is saved.

    Arguments:
        folder: of the sweep, with its plan in it.
        plan, store: its runs, and their states.
        console: on which it is told.
        devices: for each worker, that of its runs.
        threads: CPU threads of each.
        again: also try the runs that failed.

    Raises:
        WorkersFail: if workers end before they have done anything.
    """
    _enter(folder, plan, store, again)
    told = _Told(console, folder, _mine(plan, store))
    with StopSignal() as stop, told.bar:
        if told.left:
            with Team(folder, store.address, devices, threads) as team:
                while told.left and not stop:
                    began = time.perf_counter()
                    told.look(_mine(plan, store))
                    team.look(told.finished)
                    until = began + max(LOOK, SHARE * (time.perf_counter() - began))
                    while time.perf_counter() < until and not (stop or team.ended):
                        time.sleep(0.05)
        states = _mine(plan, store)
        told.look(states)
    console.print(table(plan, write_results(folder, plan, states)))
    failed = {name: s.error or "" for name, s in states.items() if s.word == "failed"}
    return Ended(told.left, failed)


def _enter(folder: Path, plan: Plan, store: Store, again: bool) -> None:
    """Put into the database what it lacks: all at first, and what is to be done once more."""
    states = store.states()

    def lacks(name: str) -> bool:
        state = states.get(name)
        if state is None or (again and state.word == "failed"):
            return True
        # Who deletes the folder of a run wants it trained again.
        return state.word == "done" and not (folder / name / "metrics.json").is_file()

    store.add([trial.name for trial in plan.trials if lacks(trial.name)])


def _mine(plan: Plan, store: Store) -> dict[str, State]:
    states = store.states()
    return {trial.name: states[trial.name] for trial in plan.trials if trial.name in states}


class _Told:
    """What a person sees of a sweep: a line for each run that ends, and a bar on a terminal."""

    def __init__(self, console: PlainConsole, folder: Path, states: Mapping[str, State]) -> None:
        self.console, self.folder = console, folder
        self.over = {name for name, state in states.items() if state.finished}
        self.total, self.finished = len(states), len(self.over)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("runs", total=self.total, completed=self.finished, now="")
        before = f", {self.finished:,} of them finished before" if self.finished else ""
        console.say(f"{self.total:,} runs{before}.")

    @property
    def left(self) -> int:
        return self.total - self.finished

    def look(self, states: Mapping[str, State]) -> None:
        for name, state in states.items():
            if state.finished and name not in self.over:
                self.over.add(name)
                self.console.say(*self._line(name, state))
        self.finished = len(self.over)
        words = Counter(state.word for state in states.values())
        now = f"{words['running']} running" + (
            f", {words['failed']} failed" if words["failed"] else ""
        )
        self.bar.update(self.task, completed=self.finished, now=now)

    def _line(self, name: str, state: State) -> list[str | tuple[str, str]]:
        if state.word == "failed":
            return [f"{name}: ", ("failed", "red"), f": {state.error}"]
        metrics = read_metrics(self.folder / name)
        if metrics is None:  # it was deleted at once
            return [f"{name}: done"]
        found = numbers_of(metrics)
        scores = [f"{METRICS[key]} {found[key]:.4f}" for key in METRICS if key in found][:3]
        often = f", attempt {len(state.attempts)}" if len(state.attempts) > 1 else ""
        return [f"{name}: {', '.join(scores)} in {found['seconds']:.0f} s{often}"]
