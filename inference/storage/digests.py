"""Digests of files beside them, so that a file that changed is not taken for what was written."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ...data import PyroccamError
from .whole import write_whole

FILE = "digests.json"
_CHUNK = 2**20
_LARGEST = 2**24  # bytes of the file of digests itself; a run has some tens of files


class DamagedFile(PyroccamError):
    """A file is not what was written: damaged, cut off, exchanged, or edited by hand."""


def digest_of(path: Path) -> str:
    """The blake2b digest of a file, read in pieces, as 64 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def write_digests(folder: Path, names: Iterable[str]) -> None:
    """The digests of some files of a folder go to ``digests.json`` in it, in place of others."""
    found = {name: digest_of(_inside(folder, name)) for name in sorted(names)}
    text = json.dumps(found, indent=2) + "\n"
    write_whole(folder / FILE, lambda file: file.write(text), "w")


def check_digests(folder: Path, needed: Iterable[str] = (), may_lack: Iterable[str] = ()) -> bool:
    """Compare the files of a folder with what was written, where that was recorded.

    Returns:
        ``True`` if all recorded files were compared; ``False`` if nothing was recorded: the folder
        has no ``digests.json``, as those written by older versions.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        return False
    recorded = _recorded(path)
    for name in needed:
        if name not in recorded:
            raise _damaged(folder, f"{path} has no digest of {name}")
    deleted = {name for name in may_lack if not os.path.lexists(folder / name)}
    for name in (name for name in recorded if name not in deleted):
        file = _inside(folder, name)
        if not file.is_file():
            raise _damaged(folder, f"{file} is missing, or no file")
        try:
            same = digest_of(file) == recorded[name]
        except OSError as error:
            raise _damaged(folder, f"{file} cannot be read: {error.strerror}") from error
        if not same:
            raise _damaged(folder, f"{file} is not what was written")
    return True


def _damaged(folder: Path, given: str) -> DamagedFile:
    return DamagedFile(given, hint=f"copy {folder} again from where it came, or write it anew")


def _recorded(path: Path) -> dict[str, str]:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            raise PyroccamError("no file, or too large")
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise _damaged(path.parent, f"{path} cannot be read") from error
    if not isinstance(found, dict) or not all(isinstance(digest, str) for digest in found.values()):
        raise _damaged(path.parent, f"{path} is no list of digests")
    return found


def _inside(folder: Path, name: str) -> Path:
    """The path of a name, which may not lead out of the folder: to a device, say, without end."""
    parts = PurePosixPath(name).parts
    if not parts or "/" in parts[0] or ".." in parts or not name.isprintable():
        raise DamagedFile(f"{folder / FILE} names {name!r}", "a file in its folder")
    return folder.joinpath(*parts)
