"""Types of a method's options, whose ranges stand in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from ...data import Between, Rule, check
from ...models.likelihoods import words as likelihoods

Rounds = Annotated[int, Between(1, 100)]
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
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return float(value) if plain is float else value  # type: ignore[arg-type]
