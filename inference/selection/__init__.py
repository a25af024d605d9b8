"""Hyperparameters by optimisation at two levels: a pair with levels in, the selected fit out."""

from .bilevel import Selection, select
from .levels import Against, InverseGamma, Level

__all__ = ["Against", "InverseGamma", "Level", "Selection", "select"]
