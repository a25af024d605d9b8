"""Guides over weights by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..models.bayesian import BayesianNetwork
from ..models.checks import unknown_name
from ..models.layers.local_reparameterisation import Scales
from .delta import Delta
from .dropout import VariationalDropout
from .mean_field import MeanField, NetworkGuide
from .zero_mean import ZeroMean

__all__ = ["parse"]


def _delta(model: BayesianNetwork, scales: Scales = "example") -> NetworkGuide:
    if scales != "example":
        raise ValueError(f"scales={scales!r}: a delta guide draws nothing, so it has no scales=.")
    return Delta(model)


_GUIDES: dict[str, Callable[..., NetworkGuide]] = {
    "mean-field": MeanField,
    "dropout-weight": partial(VariationalDropout, rate="weight"),
    "dropout-neuron": partial(VariationalDropout, rate="neuron"),
    "dropout-layer": partial(VariationalDropout, rate="layer"),
    "delta": _delta,
    "zero-mean": ZeroMean,
    "zero-mean-uniform": partial(ZeroMean, noise="uniform"),
    "zero-mean-rademacher": partial(ZeroMean, noise="rademacher"),
}


def parse(text: str, model: BayesianNetwork, **options: Any) -> NetworkGuide:
    """A guide from its name: ``mean-field``, ``dropout-weight``, ``dropout-neuron``,
    ``dropout-layer``, ``delta``, ``zero-mean``, ``zero-mean-uniform`` or ``zero-mean-rademacher``.

    A number after the names of dropout is the log α at the start, ``dropout-layer:2``.

    Arguments:
        model: that it is for.
        options: such as ``scales``; a delta guide has none.

    Raises:
        ValueError: for an unknown name, with the nearest, or an option that the guide has not.
    """
    text, colon, number = text.partition(":")
    if text not in _GUIDES:
        raise ValueError(unknown_name("guide", text, _GUIDES))
    if colon:
        if not text.startswith("dropout"):
            raise ValueError(f"The guide {text!r} takes no number, got {number!r}.")
        try:
            options["log_alpha"] = float(number)
        except ValueError:
            raise ValueError(
                f"Guide {text}:{number}: give log alpha as a number, {text}:2."
            ) from None
    if text != "mean-field" and options.pop("max_scale", None) is not None:
        raise ValueError(
            f"max_scale= is of the guide 'mean-field', the guide {text!r} has none: set it to null."
        )
    return _GUIDES[text](model, **options)
