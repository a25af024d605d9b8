"""One writer for the folder of a run: who holds it, and whether it is still the same folder."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ...data import PyroccamError

LOCK = ".lock"
HOLDER = ".lock.txt"


class FolderInUse(PyroccamError, RuntimeError):
    """A folder into which another fit writes."""


class FolderLost(PyroccamError, RuntimeError):
    """A folder that was removed, or replaced by another, while a fit wrote into it."""


def refuse_links(folder: Path) -> None:
    """Refuse a folder with links, pipes or devices in it, at any depth: who writes through a
    stranger's link writes anywhere. The folder itself may be a link, which is a person's own."""
    for parent, folders, files in os.walk(folder):
        for path in (os.path.join(parent, name) for name in (*folders, *files)):
            odd = os.path.islink(path) or not (os.path.isdir(path) or os.path.isfile(path))
            if odd and os.path.lexists(path):  # what is written meanwhile may be gone
                raise PyroccamError(f"{path} is a link, a pipe or a device", "files and folders")


_held: dict[Path, tuple[int, int]] = {}  # by this process, with what its lock was then


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder, which is made if it is not there.

    The operating system drops the lock with the process that holds it, so a killed run leaves a
    file but no lock: the next one takes it, and removes what was half written. What holds a folder
    may claim it again.
    """
    folder = Path(os.path.abspath(folder))
    folder.mkdir(parents=True, exist_ok=True)
    if folder not in _held:
        refuse_links(folder)
    lock = FileLock(folder / LOCK, timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUse(f"{folder} is being written by {_holder(folder)}") from None
    if folder not in _held:
        _held[folder] = _identity(folder / LOCK)
        for left in folder.rglob(".*.????????.part"):  # by a write that was killed
            # A folder with a lock of its own may be another's, who is writing.
            if not any((up / LOCK).exists() for up in left.parents if folder in up.parents):
                left.unlink(missing_ok=True)
        _write_holder(folder)
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            del _held[folder]
            with suppress(OSError):  # the folder may be gone
                (folder / HOLDER).unlink()
        lock.release()


def confirm(path: Path) -> None:
    """Refuse to write into a claimed folder that is no longer the one that was claimed."""
    path = Path(os.path.abspath(path))
    for folder, known in list(_held.items()):  # other threads may begin and end
        if path.is_relative_to(folder) and _identity(folder / LOCK) != known:
            raise FolderLost(f"{folder} was removed or replaced while it was being written")


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _write_holder(folder: Path) -> None:
    """Say who holds a lock, beside it: on some systems a locked file cannot be read."""
    since, command = time.strftime("%Y-%m-%d %H:%M:%S"), " ".join(sys.argv)[:200]
    said = f"process {os.getpid()} on {socket.gethostname()}, since {since} ({command})"
    with suppress(OSError):
        (folder / HOLDER).write_text(said)


def _holder(folder: Path) -> str:
    try:
        return (folder / HOLDER).read_text()[:500]
    except (OSError, ValueError):
        return "another fit"
