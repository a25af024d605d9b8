"""Dashes between a name and what is said of it, as in print.

Smart quotes would do it, but would also make one dash of the two that begin an option on the
command line.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

__all__ = ["setup"]


def _dash(app: Sphinx, document: nodes.document) -> None:
    for text in list(document.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: Sphinx) -> dict[str, Any]:
    """After a page was read."""
    app.connect("doctree-read", _dash)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
