"""Posterior families: one file for each."""

from .base import Guide, NetworkGuide
from .codebook import Codebook
from .conditional import Conditional
from .delta import Delta
from .depth import CategoricalDepth, DepthGuide, Deterministic, Marginal
from .dropout import VariationalDropout
from .edges import StructureFamily
from .mean_field import MeanField
from .mean_kl import MeanKL
from .parsing import parse
from .pruned import Pruned
from .rounded import Rounded
from .spliced import Spliced
from .zero_mean import ZeroMean

__all__ = [
    "CategoricalDepth",
    "Codebook",
    "Conditional",
    "Delta",
    "DepthGuide",
    "Deterministic",
    "Guide",
    "Marginal",
    "MeanField",
    "MeanKL",
    "NetworkGuide",
    "Pruned",
    "Rounded",
    "Spliced",
    "StructureFamily",
    "VariationalDropout",
    "ZeroMean",
    "parse",
]
