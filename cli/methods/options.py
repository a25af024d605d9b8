"""Checks of a method's options, and the words for them, made of the types of its fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ...data.errors import PyroccamError
from ...models.checks import as_number
from ...models.likelihoods import words as likelihoods

__all__ = [
    "FromOne",
    "FromZero",
    "Layers",
    "Likelihood",
    "Nats",
    "NotNegative",
    "Part",
    "Positive",
    "Rounds",
    "Rule",
    "Share",
    "Threshold",
    "taken",
]


@dataclass(frozen=True)
class Rule:
    """A condition on a value beside its type.

    Attributes:
        words: for what is asked, which follow "give".
        holds: the condition, if any.
    """

    words: str
    holds: Callable[[Any], bool] = lambda value: True


FromZero = Annotated[int, Rule("a whole number of at least 0", lambda n: n >= 0)]
FromOne = Annotated[int, Rule("a whole number of at least 1", lambda n: n >= 1)]
Rounds = Annotated[int, Rule("a whole number from 1 to 100", lambda n: 1 <= n <= 100)]
Positive = Annotated[
    float, Rule("a positive, finite number", lambda x: 0 < as_number(x) < math.inf)
]
NotNegative = Annotated[float, Rule("a number of at least 0", lambda x: x >= 0)]
Nats = Annotated[float, Rule("a number of nats, 0 or more", lambda x: x >= 0)]
Share = Annotated[float, Rule("the share of units that is dropped, in (0, 1)", lambda x: 0 < x < 1)]
Part = Annotated[float, Rule("a fraction of the run, in [0, 1)", lambda x: 0 <= x < 1)]
Threshold = Literal["validation", "valley", "noise"] | float | Mapping[str, float]
"""Where a network is cut."""

Layers = Annotated[
    str | float | Sequence[str] | None, Rule("hidden, penultimate, names of layers or null")
]
"""A number is the name of a layer, too, such as the ``1`` of a ``torch.nn.Sequential``."""
Likelihood = Annotated[
    str, Rule(f"a likelihood: {', '.join(likelihoods())}", lambda word: word in likelihoods())
]

_WORDS: dict[object, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    NoneType: "null",
}


def taken(name: str, value: object, hint: object) -> Any:
    """The value of an option, as its type has it.

    Arguments:
        name: of the option.
        value: as JSON has it.
        hint: the type, with rules in ``Annotated``.

    Raises:
        PyroccamError: for a value that is not of it.
    """
    if not _fits(value, hint):
        *first, last = _words(hint)
        asked = f"{', '.join(first)} or {last}" if first else last
        raise PyroccamError(f"{name}={value!r}: give {asked}.")
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return as_number(value) if plain is float else value


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, inner[0]) and all(rule.holds(value) for rule in inner[1:])
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(one, inner[1]) for one in value.values())
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(_fits(one, inner[0]) for one in value)
    if hint is float:
        number = as_number(value)
        too_large = math.isinf(number) and isinstance(value, int)  # for what is computed with it
        return not (math.isnan(number) or too_large)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _words(hint: object) -> list[str]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return [inner[1].words]
    if origin in (Union, UnionType):
        return [words for one in inner for words in _words(one)]
    if origin is Literal:
        return [*inner]
    if origin is Mapping:
        return ["numbers by layer"]
    if origin is Sequence:
        return ["a list of them"]
    return [_WORDS[hint]]
