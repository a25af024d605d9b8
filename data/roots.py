"""Where data files are kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["resolve_root"]


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
