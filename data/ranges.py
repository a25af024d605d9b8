"""Ranges that stand in the types of options, and the one check that reads them.

A field ``epochs: Count = 40`` of :class:`Options`, or an argument ``how: Literal["mean", "draw"]``
of a function that is :func:`checked`, takes nothing else.
"""

from __future__ import annotations

import difflib
import inspect
import math
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from .errors import PyroccamError, shown

__all__ = [
    "AtLeastTwo", "Between", "Count", "Finite", "Fraction", "NotNegative", "Options", "Positive",
    "Share", "ShareOrZero", "Whole", "allows", "check", "checked", "kinds_of", "nearest",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Between:
    """The finite numbers of an interval, and its ends as mathematicians write them.

    Example:
        >>> print(Between(0.0, 1.0, "(]"))
        in (0, 1]
    """

    low: float = -math.inf
    high: float = math.inf
    ends: str = "[]"

    def __contains__(self, value: float) -> bool:
        at_end = (value == self.low and "[" in self.ends) or (
            value == self.high and "]" in self.ends
        )
        return math.isfinite(value) and (self.low < value < self.high or at_end)

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"
        if self.low > -math.inf:
            return f"of at least {self.low:g}" if "[" in self.ends else f"above {self.low:g}"
        return "that is finite"


Finite = Annotated[float, Between()]
Positive = Annotated[float, Between(0.0, ends="()")]
NotNegative = Annotated[float, Between(0.0)]
Share = Annotated[float, Between(0.0, 1.0, "()")]
ShareOrZero = Annotated[float, Between(0.0, 1.0, "[)")]
Fraction = Annotated[float, Between(0.0, 1.0)]
Whole = Annotated[int, Between(0)]
Count = Annotated[int, Between(1)]
AtLeastTwo = Annotated[int, Between(2)]


class Options:
    """The base of a dataclass of options: what its types do not allow cannot be made.

    Raises:
        PyroccamError: naming the first field that its type does not allow.
    """

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, kind in kinds_of(own).items():
            if hasattr(self, name):
                check(name, getattr(self, name), kind)


def checked(function: F) -> F:
    """A function whose arguments are looked at first, by their types.

    Numbers, texts, truth values, choices (``Literal``), ``None``, and sequences and mappings of
    those are looked at; any other type is taken as it comes.

    Raises:
        PyroccamError: naming the first argument that its type does not allow.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        kinds = kinds_of(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in kinds:
                check(name, value, kinds[name])
        return function(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def check(name: str, value: object, kind: Any) -> None:
    """Refuse a value that a type does not allow.

    Raises:
        PyroccamError: with what was given, and what is expected.
    """
    if not allows(kind, value):
        choices = [c for c in _choices(kind) if isinstance(c, str)]
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise PyroccamError(f"{name}={shown(value)}", _described(kind), hint)


def nearest(name: str, known: Collection[str]) -> str:
    """The known name that is nearest to one that is not, or nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return repr(close[0]) if close else ""


@cache
def kinds_of(owner: Any) -> dict[str, Any]:
    """The types of arguments or fields that say what is allowed; those that only checkers of types
    know, and those of ``*args`` and ``**kwargs``, do not."""
    found: dict[str, Any] = {}
    code = getattr(owner, "__code__", None)
    several = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :] if code else ()
    for one in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        names = vars(sys.modules[one.__module__])
        for name, kind in inspect.get_annotations(one).items():
            try:
                found[name] = eval(kind, names) if isinstance(kind, str) else kind
            except (NameError, TypeError):
                continue
    apart = {"return", *several}
    return {name: kind for name, kind in found.items() if name not in apart and _says(kind)}


def _says(kind: Any) -> bool:
    """True where a type allows some values only that can be told apart here."""
    if kind in (int, float, bool, str) or get_origin(kind) in (Annotated, Literal):
        return True
    if get_origin(kind) in (Union, types.UnionType):
        return all(k is types.NoneType or _says(k) for k in get_args(kind))
    return _holds(kind) is not None and _says(get_args(kind)[-1])


def _holds(kind: Any) -> type | None:
    """The abstract container that a type is one of, if its content has a type."""
    origin = get_origin(kind)
    if not isinstance(origin, type) or not get_args(kind) or origin is tuple:
        return None
    return next((base for base in (Mapping, Collection) if issubclass(origin, base)), None)


def allows(kind: Any, value: Any) -> bool:
    """True of a value that a type allows."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(allows(k, value) for k in inner)
    if origin is Literal:
        return any(value is c or (type(value) is type(c) and value == c) for c in inner)
    if origin is Annotated:
        ranges = [r for r in inner[1:] if isinstance(r, Between)]
        return allows(inner[0], value) and all(_finite(value) in r for r in ranges)
    if origin is not None:
        container = _holds(kind)
        if container is None:
            return True
        if isinstance(value, str) or not isinstance(value, container):
            return False
        if container is Collection and isinstance(value, Mapping):
            return False
        each: Any = value.values() if isinstance(value, Mapping) else value
        return all(allows(inner[-1], one) for one in each)
    if kind in (int, float):
        number: type = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return value is None if kind is types.NoneType or kind is None else isinstance(value, kind)


def _finite(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number that is too large for one
        return math.inf


def _choices(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return [*get_args(kind)]
    return [c for k in get_args(kind) for c in _choices(k)]


def _described(kind: Any) -> str:
    """What a type allows, in words.

    Example:
        >>> _described(Share | None), _described(Literal["a", "b"])
        ('a number in (0, 1) or None', "'a' or 'b'")
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType, Literal):
        parts = [*map(repr, inner)] if origin is Literal else [*map(_described, inner)]
        return " or ".join([", ".join(parts[:-1]), parts[-1]]) if parts[1:] else parts[0]
    if origin is Annotated:
        return " ".join([_described(inner[0]), *map(str, inner[1:])])
    if origin is not None:
        each = "for each name " if issubclass(origin, Mapping) else "a list, each "
        return each + _described(inner[-1])
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    return "None" if kind is types.NoneType else words.get(kind, getattr(kind, "__name__", ""))
