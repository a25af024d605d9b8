"""Folders in which data files are kept, and how files are opened."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import DataError, PyroccamError
from .limits import ask

_CHUNK = 2**20


def resolve_root(data_root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all data files, which need not exist: as given, or of the environment variable
    `PYROCCAM_DATA`, or else `~/.cache/pyroccam`."""
    chosen = data_root or os.environ.get("PYROCCAM_DATA") or "~/.cache/pyroccam"
    try:
        folder = Path(chosen).expanduser()
        folder.exists()
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise DataError(f"data_root={chosen!r} ({error})", "the name of a folder") from error
    return folder


def refuse_no_file(path: Path) -> None:
    """Refuse what has a path but no content of its own: a folder, a device that never ends, a
    pipe that never begins."""
    try:
        there, whole, folder = path.exists(), path.is_file(), path.is_dir()
    except (ValueError, OSError) as error:
        raise DataError(f"{str(path)!r} cannot be a file ({error})") from error
    if not there:
        raise DataError(f"no file {path}")
    if not whole:
        raise DataError(f"{path} is {'a folder' if folder else 'a device or a pipe'}", "a file")


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns what goes wrong while a library reads a file, which should be `what`, into one kind of
    error.

    On broken files readers raise whatever their parts happen to raise (`struct.error`,
    `NotImplementedError`, `RecursionError`, ...), and no list of those would be complete.
    """
    if not path.is_dir():
        refuse_no_file(path)
    try:
        yield
    except PyroccamError:
        raise
    except MemoryError as error:
        raise DataError(f"{path} needs more memory than there is", "a smaller file") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of a reader
            raise DataError(f"{path} cannot be read ({error.strerror})") from error
        reason = " ".join(str(error).split()) or type(error).__name__
        own = isinstance(error, AttributeError | LookupError | TypeError)  # of the reader's parts
        if own or " object at 0x" in reason:
            reason = "its reader fails"
        raise DataError(f"{path} is not {what} ({reason})") from error


def read_bytes(path: Path, times: float = 2.0) -> bytes:
    """The content of a file, unpacked if its name ends in `.gz`, for a caller that takes `times`
    bytes for each of it at its peak, itself included: twice the content is what reading alone
    takes."""
    packed = path.suffix == ".gz"
    parts, size = [], 0
    with (
        reading(path, "a whole gzip file" if packed else "a whole file"),
        path.open("rb") as file,
    ):
        # the size that a gzip file tells at its end may be a lie, and so it is not looked at
        source = gzip.GzipFile(fileobj=file) if packed else file
        if not packed:
            ask(times * path.stat().st_size, str(path))
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            ask(times * size, f"{path}, and it goes on," if packed else str(path))
            parts.append(chunk)
    return b"".join(parts)
