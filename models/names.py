"""What is said of a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest", "unknown_name"]


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest that does."""
    known = sorted(known)
    return f"Unknown {what} {name!r}.{nearest(name, known)} Known: {', '.join(known)}."
