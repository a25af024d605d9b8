"""Layers with random weights: which of a network they are, and how their outputs are drawn."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .affine import AFFINE, Affine, affine_kind
    from .bayesian_layer import BayesianLayer, convolves, power
    from .choice import (
        Chosen,
        choose_layers,
        hooks_of,
        layers_called,
        order_of_use,
        outputs_in_evaluation,
        refuse_shared,
    )

__getattr__, __dir__ = lazy_names(__name__)
