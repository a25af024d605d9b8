"""Bits, rates, and plain networks in small files, or in files for other programs."""

from .bits import LayerBits, bit_precision
from .exporting import ExportError, export
from .fusing import fused
from .packed import PackedFileError, PackedSize, is_described, read, write
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
    "bit_precision",
    "export",
    "fused",
    "group_rates",
    "is_described",
    "quantised",
    "read",
    "write",
]
