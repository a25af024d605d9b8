"""The runs of a sweep on workers of Dask: each starts the process that a pool would start here."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...data import PyroccamError
from .plan import Trial
from .pool import GRACE, Pool, Slot, end, environment, is_locked, let_go, started

LOOK = 0.5  # seconds between looks at a process


class ClusterPool(Pool):
    """A :class:`Pool` whose processes are on workers of Dask, which see the same folder.

    Arguments:
        scheduler: address, ``tcp://...`` or ``tls://...``.
        workers: runs at once; the threads of the workers if ``None``.
    """

    def __init__(
        self, scheduler: str, folder: Path, trials: Iterable[Trial], options: Sequence[str],
        device: str, workers: int | None, threads: int,
    ) -> None:  # fmt: skip
        try:
            from distributed import Client

            self.client: Any = Client(scheduler, set_as_default=False)
        except (ImportError, OSError, TypeError, ValueError) as error:  # tls:// raises TypeError
            found = f"--scheduler {scheduler}: {error}"
            raise PyroccamError(found, "one that runs, and pip install 'pyroccam[dask]'") from error
        count = workers or sum(self.client.nthreads().values()) or 1
        slots = [Slot(device, environment(threads))] * count
        super().__init__(folder.resolve(), trials, slots, options)

    def __exit__(self, *exception: object) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self.client.close()

    def _start(self, trial: Trial, slot: Slot) -> Any:
        given = self._words(trial, slot), slot.environment, str(self._log(trial)), os.getcwd()
        future = self.client.submit(train, *given, pure=False, retries=0)
        return _Remote(future, self.folder / trial.name, self._log(trial))


class _Remote:
    """A task, as a pool looks at a process."""

    def __init__(self, future: Any, folder: Path, log: Path) -> None:
        self._future, self._folder, self._log = future, folder, log
        self.stdin, self.returncode = self, 0

    def poll(self) -> int | None:
        from distributed import KilledWorker

        if not self._future.done():
            return None
        self.returncode = -9  # with its worker
        if self._future.status == "finished":
            self.returncode = self._future.result()
        elif self._future.status == "error":
            error = self._future.exception()
            if not isinstance(error, KilledWorker):
                self.returncode = 1
                with open(self._log, "a", encoding="utf-8") as said:
                    said.write(f"Error: {' '.join(str(error).split()) or repr(error)}\n")
        return self.returncode

    def close(self) -> None:
        self._future.cancel()

    def wait(self, seconds: float = 0.0) -> None:
        """For the lock of the folder, which is free once the process is gone."""
        until = time.monotonic() + seconds
        while is_locked(self._folder):
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("train", seconds)
            time.sleep(LOOK)

    def kill(self) -> None:
        """Nothing more: the process is of another machine."""


def train(words: Sequence[str], own: dict[str, str], log: str, present: str) -> int:
    """Train a run on this machine, in the present folder of the driver, until it ends or nobody
    wants it; its exit code."""
    from distributed import get_worker
    from distributed.worker import thread_state

    tasks: Any = get_worker().state.tasks
    process = started(words, own, Path(log), present)
    while process.poll() is None:
        task = tasks.get(thread_state.key)
        if task is None or task.state == "cancelled":
            let_go(process)
            end(process, time.monotonic() + GRACE)
        time.sleep(LOOK)
    let_go(process)
    return process.returncode
