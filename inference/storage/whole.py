"""Files that are there as a whole or not at all, whenever a run is killed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .lock import confirm


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to, which takes its place once the block is over."""
    confirm(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        if path.exists() and not path.is_file():  # a device would be replaced, too
            raise FileExistsError(f"{path} is no file")
        open(beside, "xb").close()  # exclusive, which follows no link
        yield beside
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)  # it would keep a full disk full


def write_whole(path: Path, write: Callable[[Any], object], mode: str = "wb") -> None:
    """Write a file by a function that takes the open file; see :func:`replacing`."""
    encoding = "utf-8" if mode == "w" else None
    with replacing(path) as beside, open(beside, mode, encoding=encoding) as file:
        write(file)
