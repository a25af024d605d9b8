"""``arXiv:1705.08665`` in a docstring becomes a link."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["linked", "setup"]

# Not within a literal or a link.
_PAPER = re.compile(r"(?<![`<\w/])arXiv:(\d{4}\.\d{4,5})(?![`\w])")


def linked(text: str) -> str:
    """The text in reStructuredText, with links."""
    return _PAPER.sub(r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", text)


def _docstring(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    lines[:] = [linked(line) for line in lines]


def setup(app: Sphinx) -> dict[str, Any]:
    """Docstrings are read with links in them."""
    app.connect("autodoc-process-docstring", _docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
