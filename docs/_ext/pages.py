"""Writing a file that a build makes, and small pieces of reStructuredText."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["first_paragraph", "list_table", "literal", "write"]


def write(path: Path, text: str) -> None:
    """A file whose time changes with its content only, so that a second build is quick."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def first_paragraph(value: object) -> str:
    """The first paragraph of a docstring, in one line.

    Raises:
        ValueError: for an object without one.
    """
    text = inspect.getdoc(value)
    if not text:
        raise ValueError(f"{value!r} has no docstring, of which its line in a table is made.")
    return " ".join(text.split("\n\n")[0].split())


def literal(value: object) -> str:
    """Words as code."""
    return f"``{value}``"


def list_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]
) -> list[str]:
    """Lines of a table; cells are reStructuredText in one line."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {' '.join(map(str, widths))}"]
    lines += ["   :class: words", ""]
    for cells in (header, *rows):
        for position, cell in enumerate(cells):
            lines.append(f"   {'* -' if position == 0 else '  -'} {cell}".rstrip())
    return [*lines, ""]
