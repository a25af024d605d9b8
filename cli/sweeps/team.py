"""The workers of one machine: as many as asked for, others in place of those that were killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...data.errors import PyroccamError
from .worker import start

__all__ = ["DEATHS", "Team", "WorkersFail"]

DEATHS = 30
"""Workers that are killed, without a run that ends meanwhile, until there are no more of them."""

_GRACE = 120.0  # seconds in which a worker may save what it has
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


class WorkersFail(PyroccamError, RuntimeError):
    """Workers end before they have done anything."""


class Team:
    """Workers of a sweep. It is a context, at whose end they stop, and save.

    Arguments:
        folder: of the sweep; what workers say is in its ``workers``.
        address: of its database.
        devices: for each worker, that of its runs.
        threads: CPU threads of each.
    """

    def __init__(self, folder: Path, address: str, devices: Sequence[str], threads: int) -> None:
        self.folder, self.address, self.threads = folder, address, threads
        self.devices = list(devices)
        self.deaths = self.finished = 0
        own = f"{socket.gethostname()}-{os.getpid()}"
        self.logs = [folder / "workers" / f"{own}-{k}.log" for k in range(len(devices))]
        self.members: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Team:
        (self.folder / "workers").mkdir(exist_ok=True)
        self.members = [self._start(number) for number in range(len(self.devices))]
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            _let_go(member)
            member.terminate()
        until = time.monotonic() + _GRACE
        for member in self.members:
            try:
                member.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        with open(self.logs[number], "ab") as log:
            return start(self.folder, self.address, self.devices[number], self.threads, log)

    def look(self, finished: int) -> None:
        """Start workers in place of those that were killed.

        Arguments:
            finished: runs that are finished by now.

        Raises:
            WorkersFail: if a worker failed, or too many were killed with nothing done.
        """
        if finished > self.finished:
            self.finished, self.deaths = finished, 0
        for number, member in enumerate(self.members):
            code = member.poll()
            if code is None or code == 0:  # at work, or nothing is left for it
                continue
            self.deaths += 1
            if (code > 0 and code not in _STOPPED) or self.deaths > DEATHS:
                last = self.logs[number].read_text(encoding="utf-8", errors="replace").split("\n")
                why = f"exit code {code}" if code > 0 else f"signal {-code}, {self.deaths} in a row"
                raise WorkersFail(
                    f"A worker ended by itself ({why}): {' '.join(last[-3:]).strip()[-300:]}",
                    hint=f"look into {self.logs[number]}; the same command goes on",
                )
            _let_go(member)
            self.members[number] = self._start(number)

    @property
    def ended(self) -> bool:
        """True if a worker has ended that may have to be replaced."""
        return any(member.poll() not in (None, 0) for member in self.members)


def _let_go(member: subprocess.Popen[bytes]) -> None:
    """Close the pipe by which a worker knows that there is a driver."""
    if member.stdin is not None:
        with suppress(OSError):  # it is dead, and has not read all
            member.stdin.close()
