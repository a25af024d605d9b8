"""Guides over weights by name, for the command line."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from ..models.bayesian import BayesianNetwork
from .delta import Delta
from .dropout import VariationalDropout
from .mean_field import MeanField, NetworkGuide

__all__ = ["parse"]

_GUIDES: dict[str, Callable[..., NetworkGuide]] = {
    "mean-field": MeanField,
    "dropout-weight": lambda model, **more: VariationalDropout(model, rate="weight", **more),
    "dropout-neuron": lambda model, **more: VariationalDropout(model, rate="neuron", **more),
    "dropout-layer": lambda model, **more: VariationalDropout(model, rate="layer", **more),
    "delta": lambda model, **more: Delta(model),
}


def parse(text: str, model: BayesianNetwork, **options: Any) -> NetworkGuide:
    """A guide from its name: ``mean-field``, ``dropout-weight``, ``dropout-neuron``,
    ``dropout-layer`` or ``delta``.

    Arguments:
        model: that it is for.
        options: such as ``scales``; a delta guide has none.

    Raises:
        ValueError: for an unknown name, with the nearest.
    """
    if text not in _GUIDES:
        close = difflib.get_close_matches(text, _GUIDES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"Unknown guide {text!r}.{hint} Known: {', '.join(_GUIDES)}.")
    return _GUIDES[text](model, **options)
