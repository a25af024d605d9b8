"""Formulas become MathML when pages are built.

A browser draws MathML by itself, so that no script and no font has to be fetched, and a formula
that cannot be read is a warning of the build instead of a red word on a page.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

__all__ = ["mathml", "setup"]

_CONVERTER = LatexToMathML(fancy_error=False)
_LOG = logging.getLogger(__name__)


def mathml(latex: str, block: bool) -> str:
    """A ``<math>`` element.

    Arguments:
        latex: the formula; Greek letters and signs may be written as themselves.
        block: on a line of its own.

    Raises:
        LatexError: for what is no formula.
    """
    converted: str = _CONVERTER.convert_with_local_state(latex, displaystyle=block)
    return converted


def _converted(node: nodes.math | nodes.math_block) -> str:
    latex = node.astext()
    try:
        return mathml(latex, isinstance(node, nodes.math_block))
    except LatexError as error:
        _LOG.warning("formula %r: %s", latex, str(error).strip(), location=node, type="mathml")
        return nodes.unescape(latex)


def _visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_converted(node))
    raise nodes.SkipNode


def _visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})</span>')
    translator.body.append(_converted(node))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers ``html_math_renderer = "mathml"``."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
