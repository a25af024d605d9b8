"""Results that a script has already, and goes on from."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["refuse_other_settings"]


def refuse_other_settings(path: Path, before: object, now: object) -> None:
    """A file holds runs of one setting.

    Raises:
        typer.BadParameter: if it was run with another.
    """
    if before != now:
        raise typer.BadParameter(
            f"{path} was run with other settings; give another --out, or delete it."
        )
