"""Bits, rates, and plain networks in small files, or in files for other programs."""

from .fusing import fused
from .quantise import Codebook, FixedPoint, Multiples, Significand, quantised

__all__ = [
    "Codebook",
    "FixedPoint",
    "Multiples",
    "Significand",
    "fused",
    "quantised",
]
