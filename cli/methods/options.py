"""Types of a method's options, whose ranges stand in them, and the check that reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from ...data import (
    Between,
    Count,
    Fraction,
    NotNegative,
    Positive,
    PyroccamError,
    Share,
    Whole,
    check,
)
from ...models.likelihoods import words as likelihoods

__all__ = [
    "Count",
    "Fraction",
    "Layers",
    "Likelihood",
    "NotNegative",
    "Part",
    "Positive",
    "Rounds",
    "Rule",
    "Share",
    "Threshold",
    "Whole",
    "taken",
]


@dataclass(frozen=True)
class Rule:
    """A condition on a value beside its type."""

    words: str
    holds: Callable[[Any], bool] = lambda value: True

    def __str__(self) -> str:
        return f"({self.words})"


Rounds = Annotated[int, Between(1, 100)]
Part = Annotated[float, Between(0.0, 1.0, "[)")]
Threshold = Literal["validation", "valley", "noise"] | float | Mapping[str, float]
"""Where a network is cut."""

Layers = str | float | Sequence[str] | None
"""``hidden``, ``penultimate`` or names of layers; a number is a name, too, such as the ``1`` of a
``torch.nn.Sequential``."""
Likelihood = Annotated[
    str, Rule(f"a likelihood: {', '.join(likelihoods())}", lambda word: word in likelihoods())
]


def taken(name: str, value: object, hint: object) -> Any:
    """The value of an option, as its type has it."""
    check(name, value, hint)
    own = [hint, *(one for one in get_args(hint) if get_origin(one) is Annotated)]
    rules = [rule for one in own for rule in get_args(one) if isinstance(rule, Rule)]
    for rule in rules:
        if value is not None and not rule.holds(value):
            raise PyroccamError(f"{name}={value!r:.60}", rule.words)
    if not _computes(value):
        raise PyroccamError(f"{name}={value!r:.60}", "numbers that can be computed with")
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return float(value) if plain is float else value  # type: ignore[arg-type]


def _computes(value: Any) -> bool:
    """False for NaN, and for whole numbers that are too large for a float, at any depth."""
    if isinstance(value, Mapping):
        return all(map(_computes, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_computes, value))
    try:
        return not isinstance(value, int | float) or not math.isnan(float(value))
    except OverflowError:
        return False
