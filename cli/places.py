"""Places that a command writes to, tried before anything is computed."""

from __future__ import annotations

from datetime import datetime
from itertools import count
from pathlib import Path

from ..data import PyroccamError


def need_folder(path: Path | None) -> None:
    """Refuse, before anything is computed, a folder that cannot be made."""
    for part in () if path is None else (path, *path.parents):
        if part.exists():
            if not part.is_dir():
                raise PyroccamError(f"--out {path}: {part} is a file", "a folder")
            return


def need_file(path: Path | None) -> None:
    """Refuse, before anything is computed, a file that cannot be written."""
    if path is not None and path.is_dir():
        raise PyroccamError(f"--out {path} is a folder", "a file")
    need_folder(None if path is None else path.parent)


def new_folder(method: str, data: str) -> Path:
    """The folder of a run that was given none."""
    name = "".join(c if c.isalnum() and c.isascii() else "-" for c in Path(data).stem[:40])
    begun = f"{method}-{name}-{datetime.now():%Y%m%d-%H%M%S}"
    folders = (Path("runs") / f"{begun}{f'-{k}' if k else ''}" for k in count())
    return next(folder for folder in folders if not folder.exists())
