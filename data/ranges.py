"""Ranges that stand in the types of options, and the one check that reads them.

A field ``epochs: Count = 40`` of :class:`Options`, or an argument ``how: Literal["mean", "draw"]``
of a function that is :func:`checked`, takes nothing else.
"""

from __future__ import annotations

import builtins
import difflib
import inspect
import math
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Integral, Real
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

from .errors import PyroccamError, shown

F = TypeVar("F", bound=Callable[..., Any])

HAS = {
    "DepthPrior": ("log_probs",), "Fit": ("model", "guide"), "Repeats": ("fits",),
    "TargetSpec": ("N", "task"),
}  # fmt: skip
"""What is asked of a value whose class its door cannot import, by the name of the type."""


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

    def holds(self, value: Any) -> bool:
        """True for a number of the interval."""
        return _finite(value) in self

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


@dataclass(frozen=True)
class Rule:
    """A condition on a value beside its type, and its words."""

    words: str
    holds: Callable[[Any], bool]

    def __str__(self) -> str:
        return f"({self.words})"


Finite = Annotated[float, Between()]
Positive = Annotated[float, Between(0.0, ends="()")]
NotNegative = Annotated[float, Between(0.0)]
Share = Annotated[float, Between(0.0, 1.0, "()")]
ShareOrZero = Annotated[float, Between(0.0, 1.0, "[)")]
Fraction = Annotated[float, Between(0.0, 1.0)]
Whole = Annotated[int, Between(0)]
Count = Annotated[int, Between(1)]
AtLeastTwo = Annotated[int, Between(2)]
Seed = Annotated[int, Between(0, 2**63 - 1)]


class Options:
    """The base of a dataclass of options: what its types do not allow cannot be made."""

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, kind in kinds_of(own).items():
            if hasattr(self, name):
                check(name, getattr(self, name), kind)


def checked(function: F) -> F:
    """A function whose arguments are looked at first, by their types.

    Numbers, texts, truth values, choices (``Literal``), ``None``, classes, and sequences and
    mappings of those are looked at; of a type that only checkers know, what :data:`HAS` says.

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
    """Refuse a value that a type does not allow."""
    if not allows(kind, value):
        choices = [c for c in _choices(kind) if isinstance(c, str)]
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise PyroccamError(f"{name}={shown(value)}", described(kind), hint)


def nearest(name: str, known: Collection[str]) -> str:
    """The known name that is nearest to one that is not, or nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return repr(close[0]) if close else ""


@cache
def kinds_of(owner: Any) -> dict[str, Any]:
    """The types of arguments or fields that say what is allowed; those of ``*args`` and
    ``**kwargs``, and those that allow anything, do not."""
    found: dict[str, Any] = {}
    code = getattr(owner, "__code__", None)
    several = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :] if code else ()
    for one in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        names = _Names(vars(builtins) | vars(sys.modules[one.__module__]))
        for name, kind in inspect.get_annotations(one).items():
            try:
                found[name] = eval(kind, {}, names) if isinstance(kind, str) else kind
            except (AttributeError, NameError, TypeError):
                continue
    apart = {"return", *several}
    return {name: kind for name, kind in found.items() if name not in apart and _says(kind)}


class _Names(dict[str, Any]):
    """The names of a module, and of what only checkers of types import there."""

    def __missing__(self, name: str) -> ForwardRef:
        return ForwardRef(name)


def _says(kind: Any) -> bool:
    """True where a type allows some values only that can be told apart here."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return all(_says(k) for k in get_args(kind))
    return kind is None or origin in (Annotated, Literal) or name_of(kind) in HAS or _is_class(kind)


def _is_class(kind: Any) -> bool:
    """True of a type that a value can be asked for."""
    protocol = kind is Any or getattr(kind, "_is_protocol", False)
    return not protocol and isinstance(get_origin(kind) or kind, type)


def name_of(kind: Any) -> str:
    """The name of a type, also of one that only checkers know."""
    return getattr(kind, "__forward_arg__", getattr(kind, "__name__", ""))


def allows(kind: Any, value: Any) -> bool:
    """True of a value that a type allows, as far as can be told without using it up."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(allows(k, value) for k in inner)
    if origin is Literal:
        return any(value is c or (type(value) is type(c) and value == c) for c in inner)
    if origin is Annotated:
        return allows(inner[0], value) and all(rule.holds(value) for rule in _rules(kind))
    if kind is None or kind is types.NoneType:
        return value is None
    if has := HAS.get(name_of(kind)):
        return all(hasattr(value, name) for name in has)
    if kind in (int, float):
        number: type = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool) and _computes(value)
    if origin is type:
        return isinstance(value, type)
    if origin is not None and issubclass(origin, Mapping):
        return hasattr(value, "items") and all(allows(inner[-1], v) for _, v in value.items())
    if origin is not None and issubclass(origin, Iterable):
        return _allows_each(inner, value)
    return not _is_class(kind) or isinstance(value, origin or kind)


def _allows_each(inner: tuple[Any, ...], value: Any) -> bool:
    """True of several values that are each allowed; what can be read once is not read."""
    if isinstance(value, (str, bytes, type)) or hasattr(value, "items"):
        return False
    try:
        found = iter(value)
    except TypeError:  # a tensor without a dimension among them
        return False
    if found is value:
        return True
    if len(inner) > 1 and inner[-1] is not ...:
        return len(value) == len(inner) and all(map(allows, inner, value))
    return all(allows(inner[0], one) for one in value)


def _rules(kind: Any) -> list[Between | Rule]:
    """What stands beside a type."""
    return [one for one in get_args(kind)[1:] if isinstance(one, Between | Rule)]


def _computes(value: Any) -> bool:
    """False for NaN, and for whole numbers that are too large for a float."""
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _finite(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number that is too large for one
        return math.inf


def _choices(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return [*get_args(kind)]
    return [c for k in get_args(kind) for c in _choices(k)]


def described(kind: Any) -> str:
    """What a type allows, in words.

    Example:
        >>> described(Share | None), described(Literal["a", "b"])
        ('a number in (0, 1) or None', "'a' or 'b'")
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType, Literal):
        parts = [*map(repr, inner)] if origin is Literal else [*map(described, inner)]
        return " or ".join([", ".join(parts[:-1]), parts[-1]]) if parts[1:] else parts[0]
    if origin is Annotated:
        return " ".join([described(inner[0]), *map(str, _rules(kind))])
    if origin is type:
        return "a class"
    if origin is not None and issubclass(origin, Iterable):
        each = "for each name " if issubclass(origin, Mapping) else "a list, each "
        return each + described(inner[-2 if inner[-1] is ... else -1])
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    if kind is None or kind is types.NoneType:
        return "None"
    return words.get(kind) or f"a {name_of(origin or kind)}"
