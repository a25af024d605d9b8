"""Posterior families: one file for each."""

from typing import TYPE_CHECKING

from ..data import lazy_names

if TYPE_CHECKING:
    from .base import Guide, NetworkGuide, Schedule, Traits, sums_out
    from .conditional import Conditional
    from .depth import CategoricalDepth, DepthGuide, Deterministic, Marginal
    from .dropout import VariationalDropout
    from .edges import StructureFamily
    from .factors import Factor
    from .mean_field import MeanField
    from .mean_kl import MeanKL
    from .parsing import parse
    from .points import Book, Delta, Mask, Points, Switch, WholeSteps
    from .samples import Samples
    from .zero_mean import ZeroMean

__all__ = [
    "Book",
    "CategoricalDepth",
    "Conditional",
    "Delta",
    "DepthGuide",
    "Deterministic",
    "Factor",
    "Guide",
    "Marginal",
    "Mask",
    "MeanField",
    "MeanKL",
    "NetworkGuide",
    "Points",
    "Samples",
    "Schedule",
    "StructureFamily",
    "Switch",
    "Traits",
    "VariationalDropout",
    "WholeSteps",
    "ZeroMean",
    "parse",
]

__getattr__, __dir__ = lazy_names(__name__)
