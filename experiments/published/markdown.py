"""Markdown tables of result files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["header", "plus_minus", "read_all", "row"]


def read_all(folder: Path, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Result files by their name: those of these names that there are, or all in a folder."""
    found = (
        sorted(folder.glob("*.json")) if names is None else [folder / f"{n}.json" for n in names]
    )
    return {path.stem: json.loads(path.read_text()) for path in found if path.exists()}


def plus_minus(m: dict[str, Any], digits: int = 4, scale: float = 1.0) -> str:
    """A mean and, where it is known, its standard deviation."""
    sd = "" if m["sd"] is None else f" ± {scale * m['sd']:.{digits}f}"
    return f"{scale * m['mean']:.{digits}f}{sd}"


def row(*cells: object) -> str:
    """A row of a table."""
    return "| " + " | ".join(str(c) for c in cells) + " |"


def header(*cells: str) -> list[str]:
    """The first two rows of a table."""
    return [row(*cells), row(*["---"] * len(cells))]
