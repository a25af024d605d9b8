"""A worker of a sweep: takes runs up, one after the other, until all are finished.

The lock of a run's folder says who has the run. The operating system drops it with the process
that holds it, so a run that is said to be running, and whose folder is free, was given up: it is
taken up again, and goes on from its checkpoint. The states in the database follow that lock, and
change only while it is held.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .plan import Plan, Trial
from .store import State, Store

__all__ = ["HOPELESS", "Worker", "start"]

HOPELESS = 10
"""Times that a run is taken up without getting further, after which its workers' deaths are taken
for its own doing: it may need more memory than there is. Others come before it all the while."""

NAP, LONGEST = 2.0, 300.0  # seconds between looks at runs that others have
SHARE = 100  # and at least so many times what a look takes
MISSES = 3  # runs in a row that others have, after which a list is read again
_GRACE = 60.0  # seconds in which what is stopped may save


@dataclass(frozen=True)
class Worker:
    """What a process needs to train runs of a sweep.

    Arguments:
        folder: of the sweep.
        plan: its runs.
        store: their states.
        device: of the runs.
    """

    folder: Path
    plan: Plan
    store: Store
    device: str = "auto"

    @property
    def name(self) -> str:
        """Host and process."""
        return f"{socket.gethostname()}:{os.getpid()}"

    def work(self) -> None:
        """Train until every run is finished, by this worker or by others."""
        trials = {trial.name: trial for trial in self.plan.trials}
        while True:
            began = time.perf_counter()
            states = self.store.states()
            took = time.perf_counter() - began
            left = [s for s in states.values() if not s.finished and s.name in trials]
            if not left:
                return
            misses, trained = 0, False
            for state in _order(left):
                if self._try(state, trials[state.name]):
                    misses, trained = 0, True
                else:
                    misses += 1
                if trained and misses == MISSES:  # the list is old
                    break
            if not trained:
                # Of many workers that wait, none should keep the database busy.
                time.sleep(min(max(NAP, SHARE * took), LONGEST) * random.uniform(0.5, 1.5))

    def _try(self, state: State, trial: Trial) -> bool:
        """Train a run, unless another worker has it."""
        from ...inference.storage.lock import FolderInUse, claimed

        try:
            with claimed(self.folder / trial.name):
                now = self.store.look(state)
                if now.finished:
                    return False
                self._take(now, trial)
                return True
        except FolderInUse:
            return False

    def _take(self, state: State, trial: Trial) -> None:
        folder = self.folder / trial.name
        stamp = _stamp(folder)
        tried = (*state.attempts, stamp)
        if len(tried) > HOPELESS and len({*tried[-HOPELESS - 1 :]}) == 1:
            self.store.fail(
                state,
                f"Its worker was killed {HOPELESS} times without getting further. There may be too "
                "little memory: try fewer workers, or a smaller batch_size.",
            )
            return
        self.store.take(state, tried, self.name)
        print(f"{trial.name}: attempt {len(tried)}", flush=True)
        try:
            with _failing(self.store, state):
                value = self._train(trial)
                self.store.finish(state, value)
        except KeyboardInterrupt:  # Interrupted, too: all is saved
            self.store.put_back(state, state.attempts)
            raise

    def _train(self, trial: Trial) -> float:
        """The validation NLL of a run, which is trained unless it was before."""
        from ..runs.budget import Budget
        from ..runs.paces import within
        from ..runs.run import RunOptions, run
        from ..runs.summary import refuse_unmet

        folder, asked = self.folder / trial.name, trial.asked
        if not (folder / "metrics.json").is_file():
            began = time.perf_counter()
            config, data = asked.resolve(trial.seed)
            options = RunOptions(
                resume=True, device=self.device, progress=False, compare=self.plan.compare,
                figures=self.plan.figures,
            )  # fmt: skip
            if asked.budget is not None:
                length, sets = Budget.parse(asked.budget), dict(asked.sets or {})
                config = within(length, config, data, options, folder, sets, began)
            run(config, data, out=folder, options=options)
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        refuse_unmet(metrics)
        found = metrics.get("val_nll")
        return float("inf") if found is None else float(found)


def _order(left: Sequence[State]) -> list[State]:
    """What to try first: runs that wait, in their order but for as many as there are workers, so
    that not all of them try the same one. What is said to be running is most often just that. A run
    whose workers died comes after those with fewer deaths."""
    left = sorted(left, key=lambda state: len(state.attempts))
    waiting = [state for state in left if state.word == "waiting"]
    running = [state for state in left if state.word == "running"]
    first = 2 * len(running) + 1
    return [*random.sample(waiting[:first], len(waiting[:first])), *waiting[first:], *running]


@contextmanager
def _failing(store: Store, state: State) -> Iterator[None]:
    """What fails is said of its run, and the next one is taken up."""
    from ..boundary import told

    try:
        yield
    except Exception as error:
        traceback.print_exc()
        parts, _ = told(error)
        said = "".join(part if isinstance(part, str) else part[0] for part in parts)
        store.fail(state, said.removeprefix("Error: "))


def _stamp(folder: Path) -> int:
    """How far a run is: when the last checkpoint or row of a history was written; 0 without any."""
    times = (path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix in _WRITTEN)
    return max(times, default=0)


_WRITTEN = (".pt", ".safetensors", ".csv")


def _leave_with(driver: int) -> None:
    """End, as by SIGTERM, once the other end of a pipe is gone: its driver was killed."""

    def wait() -> None:
        while os.read(driver, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def start(
    folder: Path, address: str, device: str, threads: int, log: Any, module: str = __name__
) -> subprocess.Popen[bytes]:
    """A worker in a process of its own, which ends with the one that started it.

    Arguments:
        folder, device, threads: as of :class:`Worker`.
        address: of the database. It may hold a password, so it is told by the pipe whose end says
            that the other process is gone, and not by the command.
        log: open file, for what it says.
        module: that is run.
    """
    command = [sys.executable, "-m", module, str(folder), device, str(threads)]
    own = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    own["PYTHONSAFEPATH"] = "1"  # nothing in the present folder is a module, a stranger's torch.py
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=own
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it is dead already, as whoever waits for it will see
        process.stdin.write(f"{address}\n".encode())
        process.stdin.flush()
    return process


def main(arguments: Sequence[str] | None = None) -> int:
    """A worker that :func:`start` started."""
    parser = argparse.ArgumentParser(description="A worker of a sweep; `pyroccam sweep` starts it.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("device")
    parser.add_argument("threads", type=int)
    asked = parser.parse_args(arguments)
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as told:
        address = told.readline().decode().rstrip("\n")
    _leave_with(sys.stdin.fileno())
    import torch

    torch.set_num_threads(asked.threads)
    plan = Plan.read(asked.folder)
    store = Store(address, plan.study)
    try:
        Worker(asked.folder, plan, store, asked.device).work()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
