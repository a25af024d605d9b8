"""Where data files are kept, and how they are opened."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from .checks import DataError

__all__ = ["AGAIN", "find_file", "read_bytes", "resolve_root"]

AGAIN = "delete the file and download it again"
"""What to try when a file is broken."""


def resolve_root(data_root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all data files.

    Arguments:
        data_root: The folder; None takes the environment variable `PYROCCAM_DATA`, or else
            `~/.cache/pyroccam`.

    Returns:
        The folder, which need not exist.
    """
    chosen = data_root or os.environ.get("PYROCCAM_DATA") or "~/.cache/pyroccam"
    return Path(chosen).expanduser()


def find_file(root: Path, folder: str, *names: str) -> Path | None:
    """The first of the files `names` that is in a folder of the root, or in the root itself."""
    paths = (parent / name for parent in (root / folder, root) for name in names)
    return next((path for path in paths if path.is_file()), None)


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in `.gz`.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error})", hint=AGAIN) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error})") from error
