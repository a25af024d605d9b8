"""Posterior families: one file for each."""

from .delta import Delta
from .depth import CategoricalDepth, Deterministic, Marginal
from .dropout import VariationalDropout
from .mean_field import MeanField
from .words import parse

__all__ = [
    "CategoricalDepth",
    "Delta",
    "Deterministic",
    "Marginal",
    "MeanField",
    "VariationalDropout",
    "parse",
]
