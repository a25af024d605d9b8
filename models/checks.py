"""Names, numbers and choices that a person gives, and what is said of those that cannot be."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any, TypeVar

from torch import Tensor

from ..data import ranges
from ..data.errors import PyroccamError

__all__ = [
    "as_number",
    "kinds",
    "nearest",
    "one_of",
    "positive",
    "shown",
    "unknown_name",
    "whole",
]

K = TypeVar("K")


def kinds(of: type[K]) -> Iterator[type[K]]:
    """All classes below one that are defined, a person's own included."""
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest known name, or nothing."""
    close = ranges.nearest(name, list(known))
    return f" Did you mean {close}?" if close else ""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest that does."""
    known = sorted(known)
    return f"Unknown {what} {name!r}.{nearest(name, known)} Known: {', '.join(known)}."


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


def positive(name: str, value: float) -> None:
    """Check a hyperparameter.

    Raises:
        PyroccamError: if it is not a positive finite number; TypeError: if it is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PyroccamError(f"{name} must be a number, got {value!r}.")
    if not (value > 0.0 and math.isfinite(value)):
        raise PyroccamError(f"{name} must be positive and finite, got {value}.")


def one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    """Check a choice.

    Raises:
        PyroccamError: naming what can be chosen.
    """
    if value not in known:
        raise PyroccamError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def whole(name: str, value: object, least: int = 0, most: int | None = None) -> int:
    """Check a count.

    Raises:
        PyroccamError: if it is no whole number, less than ``least``, or more than ``most``.
    """
    top = math.inf if most is None else most
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= top:
        limit = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise PyroccamError(f"{name} must be a whole number {limit}, got {shown(value)}.")
    return value


def shown(value: Any) -> str:
    """A value as it may stand in a message: cut short, and printable on every terminal."""
    text = _short.repr(value)
    return text.encode("ascii", "backslashreplace").decode() if not text.isprintable() else text


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlevel = 3
