"""Cards, which a notebook shows of things: what it is, how good, how small, and what is next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_MOST = 12  # rows of a table
_BOX = "border: 1px solid #ccc; border-radius: 4px; padding: 0.6em 1em; display: inline-block"


def card(
    title: str,
    facts: Mapping[str, Any],
    sentences: Iterable[str] = (),
    rows: Sequence[Mapping[str, Any]] = (),
    following: str = "",
) -> str:
    """A card as HTML, in which every text is escaped.

    Arguments:
        title: what it is of.
        facts: numbers and texts, by what they are.
        sentences: for a person.
        rows: a small table, numbers and texts by the names of their columns.
        following: code that a person would write next.
    """
    parts = [f"<b>{escape(title)}</b>"]
    if facts:
        parts.append(_table([[("th", name), ("td", value)] for name, value in facts.items()]))
    parts += [f"<p>{escape(one)}</p>" for one in sentences]
    if rows:
        names = list(dict.fromkeys(name for row in rows for name in row))
        body = [[("td", row.get(name, "")) for name in names] for row in rows[:_MOST]]
        parts.append(_table([[("th", name) for name in names], *body]))
    if len(rows) > _MOST:
        parts.append(f"<p>and {len(rows) - _MOST} more</p>")
    if following:
        parts.append(f"<p>Next: <code>{escape(following)}</code></p>")
    return f'<div style="{_BOX}">{"".join(parts)}</div>'


def _table(cells: Sequence[Sequence[tuple[str, Any]]]) -> str:
    lines = (
        "".join(f'<{tag} style="text-align: left">{_text(value)}</{tag}>' for tag, value in line)
        for line in cells
    )
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
