"""Notebooks from the folder beside ``docs``, with the outputs that are in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

__all__ = ["copy", "listing"]


def copy(source: Path, target: Path) -> list[str]:
    """Copies what has changed, and takes away what is gone.

    Arguments:
        source: where ``*.ipynb`` lie; it may be empty, or not there.
        target: below the pages.

    Returns:
        their names without the ending, sorted.
    """
    target.mkdir(parents=True, exist_ok=True)
    found = {path.name: path for path in sorted(source.glob("*.ipynb"))}
    for old in target.glob("*.ipynb"):
        if old.name not in found:
            old.unlink()
    for name, path in found.items():
        copied = target / name
        if not copied.exists() or copied.read_bytes() != path.read_bytes():
            shutil.copyfile(path, copied)
    return [path.stem for path in found.values()]


def listing(names: list[str]) -> Iterable[str]:
    """A table of contents, or a sentence where there is nothing."""
    if not names:
        return ["There are none yet."]
    return [".. toctree::", "   :maxdepth: 1", "", *(f"   /generated/notebooks/{n}" for n in names)]
