"""Guides over weights by name, for the command line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from ..data import PyroccamError
from ..models import BayesianNetwork, kinds, unknown_name
from .base import NetworkGuide


def words() -> dict[str, tuple[type[NetworkGuide], Mapping[str, Any]]]:
    """The class of every word, and what is given to it."""
    door = sys.modules[__package__]
    for name in door.__all__:  # a class is known when it is imported
        getattr(door, name)
    return {
        word: (kind, given)
        for kind in kinds(NetworkGuide)
        for word, given in vars(kind).get("words", {}).items()
    }


def parse(text: str, model: BayesianNetwork, **options: Any) -> NetworkGuide:
    """A guide from its name: ``mean-field``, ``dropout-weight``, ``dropout-neuron``,
    ``dropout-layer``, ``delta``, ``zero-mean``, ``zero-mean-uniform`` or ``zero-mean-rademacher``.

    A number after the names of dropout is the log α at the start, ``dropout-layer:2``.

    Arguments:
        model: that it is for.
        options: such as ``scales``; a delta guide has none.

    Raises:
        PyroccamError: for an unknown name, with the nearest, or an option that the guide has not.
    """
    text, colon, number = text.partition(":")
    known = words()
    if text not in known:
        raise PyroccamError(unknown_name("guide", text, known))
    make, given = known[text]
    takes = inspect.signature(make).parameters
    if colon:
        if "log_alpha" not in takes:
            raise PyroccamError(f"The guide {text!r} takes no number, got {number!r}.")
        try:
            options["log_alpha"] = float(number)
        except ValueError:
            raise PyroccamError(f"the guide {text}:{number}", f"a number, {text}:2") from None
    for name in [name for name in options if name not in takes]:
        value = options.pop(name)
        if {"scales": "example", "max_scale": None, "scale": None}.get(name, ...) != value:
            raise PyroccamError(f"{name}={value!r} of the guide {text!r}", "none", "set it to null")
    return make(model, **given, **options)
