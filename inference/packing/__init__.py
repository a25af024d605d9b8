"""Bits, rates, and plain networks in small files, or in files for other programs."""

from typing import TYPE_CHECKING

from ...data.door import lazy_names

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_names(__name__)
