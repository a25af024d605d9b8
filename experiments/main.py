"""The entry of the command line, which imports nothing before it can be stopped in words."""

from __future__ import annotations

import sys
import warnings
from typing import Any

__all__ = ["fit_in_process", "main"]


def _note(message: Warning | str, *where: Any, **more: Any) -> None:
    """A warning without the line of code that gave it, which is none of a person's."""
    print(f"Note: {message}", file=sys.stderr)


def main() -> None:
    """``pyroccam``, and ``python -m pyroccam.experiments.main``."""
    _prepare()
    try:
        from .cli import app  # torch takes seconds

        app(prog_name="pyroccam")
    except KeyboardInterrupt:
        print("Stopped before anything was done.", file=sys.stderr)
        sys.exit(130)


def fit_in_process(arguments: dict[str, Any]) -> None:
    """``pyroccam fit`` in one of several processes, which ends with its exit code."""
    _prepare()
    import typer

    from .cli import fit

    try:
        fit(**arguments)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)


def _prepare() -> None:
    warnings.showwarning = _note
    for stream in (sys.stdout, sys.stderr):
        # Names of files may hold bytes that are no text.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
