"""The runs of a sweep as processes: each is ``pyroccam fit --resume`` in a folder of its own, and
that folder is all that is known of its state.

The operating system drops the lock of a folder with the process that holds it, however that ends. A
folder without its numbers whose lock is free is taken up, from its checkpoint; one that is locked
is another's, perhaps on another machine, and is waited for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ...inference.storage import LOCK
from .. import BUSY, STOPPED
from .plan import Trial
from .results import unmet

HOPELESS = 10
"""Times that a run is killed without getting further, after which that is its own doing: it may
need more memory than there is."""

WORKER = "pyroccam.cli.sweeps.worker"
NAP = 2.0  # seconds between looks at runs that others have
GRACE = 120.0  # seconds in which what is stopped may save
_WRITTEN = (".pt", ".safetensors", ".csv")
_ENDED_BY_SIGNAL = (STOPPED, 128 + 15)


@dataclass(frozen=True)
class Slot:
    """A place for one process at a time."""

    device: str
    environment: Mapping[str, str]


def environment(threads: int) -> dict[str, str]:
    """What a process with so many threads is told."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def slots_of(device: str, workers: int | None, threads: int) -> list[Slot]:
    """The places of a machine: of ``auto``, one for every CUDA device, or for every core of a
    machine without any.
    """
    import torch

    own = environment(threads)
    found = torch.cuda.device_count() if device == "auto" else 0
    if found:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = seen.split(",")[:found] if seen else [*map(str, range(found))]
        turns = (names[k % found] for k in range(workers or found))
        return [Slot("cuda", {**own, "CUDA_VISIBLE_DEVICES": name}) for name in turns]
    usual = 1 if device.startswith("cuda") else max(1, _cores() // threads)
    return [Slot("cpu" if device == "auto" else device, own)] * (workers or usual)


def _cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Processes that train runs. It is a context, at whose end they stop, and save."""

    def __init__(
        self, folder: Path, trials: Iterable[Trial], slots: Sequence[Slot], options: Sequence[str]
    ) -> None:
        self.folder, self.options = folder, [*options]
        self.waiting = deque(trials)
        self.failed: dict[str, str] = {}
        self._free = [*slots]
        self._running: list[tuple[Trial, Slot, subprocess.Popen[bytes]]] = []
        self._deaths: dict[str, list[int]] = defaultdict(list)
        self._next_look = 0.0

    @property
    def left(self) -> int:
        """Runs that are not finished."""
        return len(self.waiting) + len(self._running)

    @property
    def running(self) -> int:
        """Runs that are trained here."""
        return len(self._running)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for _trial, _slot, process in self._running:
            let_go(process)
        until = time.monotonic() + GRACE
        for trial, _slot, process in self._running:
            end(process, until)
            if not self._finished(trial):
                self.waiting.append(trial)
        self._running = []

    def look(self) -> list[Trial]:
        """Take note of runs that ended, here or elsewhere, and start others."""
        ended = []
        for one in [one for one in self._running if one[2].poll() is not None]:
            trial, slot, process = one
            self._running.remove(one)
            self._free.append(slot)
            let_go(process)
            if self._ended(trial, process.returncode):
                ended.append(trial)
            else:
                self.waiting.append(trial)
        if self._free and time.monotonic() >= self._next_look:
            ended += self._fill()
        return ended

    def _fill(self) -> list[Trial]:
        """Start runs that nobody has, as long as there are places."""
        done, others = [], []
        while self._free and self.waiting:
            trial = self.waiting.popleft()
            if self._finished(trial):
                done.append(trial)
            elif is_locked(self.folder / trial.name):
                others.append(trial)
            else:
                slot = self._free.pop()
                self._running.append((trial, slot, self._start(trial, slot)))
        self.waiting.extend(others)
        if self._free:
            self._next_look = time.monotonic() + NAP
        return done

    def _start(self, trial: Trial, slot: Slot) -> subprocess.Popen[bytes]:
        return started(self._words(trial, slot), slot.environment, self._log(trial))

    def _words(self, trial: Trial, slot: Slot) -> list[str]:
        folder = self.folder / trial.name
        folder.parent.mkdir(parents=True, exist_ok=True)
        own = [f"--device={slot.device}", "--resume", f"--out={folder}"]
        return [*trial.words, *self.options, *own]

    def _log(self, trial: Trial) -> Path:
        """What its processes said."""
        return self.folder / f"{trial.name}.log"

    def _finished(self, trial: Trial) -> bool:
        """True for a run with its numbers; it failed if no network of it meets what was asked."""
        folder = self.folder / trial.name
        if not (folder / "metrics.json").is_file() or is_locked(folder):
            return False
        if (why := unmet(folder)) is not None:
            self.failed[trial.name] = why
        return True

    def _ended(self, trial: Trial, code: int) -> bool:
        """True unless a run whose process ended has to be taken up again."""
        if self._finished(trial):
            return True
        if code in (BUSY, *_ENDED_BY_SIGNAL):
            return False
        if code >= 0:
            self.failed[trial.name] = _last_words(self._log(trial)) or f"exit code {code}"
            return True
        deaths = self._deaths[trial.name]
        deaths.append(_stamp(self.folder / trial.name))
        if len(deaths) < HOPELESS or len({*deaths[-HOPELESS:]}) > 1:
            return False
        self.failed[trial.name] = (
            f"It was killed {HOPELESS} times without getting further: memory may be too small"
        )
        return True


def started(
    words: Sequence[str], environment: Mapping[str, str], log: Path, present: str | None = None
) -> subprocess.Popen[bytes]:
    """A process of ``pyroccam`` that ends with this one, in another present folder if given."""
    # Nothing in the present folder is a module of Python's or of torch's.
    command = [sys.executable, "-P", "-m", WORKER, *words]
    with open(log, "ab") as said:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, **environment}, cwd=present, start_new_session=True,
        )  # fmt: skip


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe by which a process knows that there is a driver."""
    if process.stdin is not None:
        with suppress(OSError):  # it is dead
            process.stdin.close()


def end(process: subprocess.Popen[bytes], until: float) -> None:
    """Wait for a process that was let go, and kill it if it is still there by then."""
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # it cannot be killed from here
            process.wait()


def is_locked(folder: Path) -> bool:
    if not (folder / LOCK).is_file():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True


def _last_words(log: Path) -> str:
    """What a process said in the end: why it could not go on."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line for line in lines if line.startswith(("Error: ", "Unexpected error: "))]
    return (said or lines or [""])[-1].removeprefix("Error: ")[:2000]


def _stamp(folder: Path) -> int:
    """How far a run is: when the last checkpoint or row of a history was written; 0 without any."""
    times = (path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix in _WRITTEN)
    return max(times, default=0)
