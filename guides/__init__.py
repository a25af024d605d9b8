"""Posterior families: one file for each."""

from .codebook import Codebook
from .delta import Delta
from .depth import CategoricalDepth, Deterministic, Marginal
from .dropout import VariationalDropout
from .mean_field import MeanField
from .pruned import Pruned
from .spliced import Spliced
from .structure import StructureFamily
from .words import parse
from .zero_mean import ZeroMean

__all__ = [
    "CategoricalDepth",
    "Codebook",
    "Delta",
    "Deterministic",
    "Marginal",
    "MeanField",
    "Pruned",
    "Spliced",
    "StructureFamily",
    "VariationalDropout",
    "ZeroMean",
    "parse",
]
