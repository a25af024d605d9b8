"""Bits, rates, and plain networks in small files."""

from .bits import LayerBits, bit_precision
from .packed import PackedFileError, PackedSize, is_described, read, write
from .quantise import Codebook, FixedPoint, Significand, quantised
from .rates import Rates, group_rates

__all__ = [
    "Codebook",
    "FixedPoint",
    "LayerBits",
    "PackedFileError",
    "PackedSize",
    "Rates",
    "Significand",
    "bit_precision",
    "group_rates",
    "is_described",
    "quantised",
    "read",
    "write",
]
