"""Names, numbers and choices that a person gives, and what is said of those that cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import TypeVar

from torch import Tensor

from ..data import nearest

K = TypeVar("K")


def kinds(of: type[K]) -> Iterator[type[K]]:
    """All classes below one that are defined, a person's own included."""
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest known name, or nothing."""
    close = nearest(name, list(known))
    return f" Did you mean {close}?" if close else ""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest that does."""
    known = sorted(known)
    return f"Unknown {what} {name!r}.{suggestion(name, known)} Known: {', '.join(known)}."


def as_number(value: object) -> float:
    """A number of Python's, of NumPy's or of torch's; NaN for anything else, truth values
    included, so that one comparison refuses both.

    Example:
        >>> as_number(2), as_number(True), as_number("2")
        (2.0, nan, nan)
    """
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else None
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number that is too large for one
        return -math.inf if value < 0 else math.inf
