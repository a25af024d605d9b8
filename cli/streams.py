"""Standard output and error of a command, prepared before anything is imported or printed."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def _note(message: Warning | str, *where: Any, **more: Any) -> None:
    """A warning without the line of code that gave it, which is none of a person's."""
    print(f"Note: {message}", file=sys.stderr)


def prepare() -> None:
    """Let warnings be notes, and names of files hold bytes that are no text."""
    warnings.showwarning = _note
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
