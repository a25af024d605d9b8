"""Knowledge of a trained pair: moments, draws, predictions, their scores and spread."""

from typing import TYPE_CHECKING

from ...data.door import lazy_names

if TYPE_CHECKING:
    from . import metrics
    from .depth import (
        exact_depth_posterior,
        total_variation,
    )
    from .ensemble import EnsembleNetwork
    from .posteriors import posterior_of
    from .uncertainties import out_of_domain, uncertainty

__all__ = [
    "EnsembleNetwork",
    "exact_depth_posterior",
    "metrics",
    "out_of_domain",
    "posterior_of",
    "total_variation",
    "uncertainty",
]

__getattr__, __dir__ = lazy_names(__name__)
