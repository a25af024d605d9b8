"""Bits, rates, and plain networks in small files, or in files for other programs."""

from .bits import LayerBits
from .exporting import ExportError
from .fusing import fused
from .packed import PackedFileError, PackedSize
from .quantise import Codebook, FixedPoint, Multiples, Significand, quantised
from .rates import Rates, group_rates

__all__ = [
    "Codebook",
    "ExportError",
    "FixedPoint",
    "LayerBits",
    "Multiples",
    "PackedFileError",
    "PackedSize",
    "Rates",
    "Significand",
    "fused",
    "group_rates",
    "quantised",
]
