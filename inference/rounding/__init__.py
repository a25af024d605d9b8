"""How many digits of each number are needed, and networks with no more than these."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .bits import MOST, ExponentRule, LayerBits, SignificandRule, bit_precision
    from .pricing import priced
    from .quantise import (
        Codebook,
        FixedPoint,
        Multiples,
        Rounding,
        Significand,
        cluster,
        quantised,
        rest_bits,
    )
    from .rates import Layer, Rates, compression_rates, layers_of

__all__ = [
    "Codebook",
    "FixedPoint",
    "Multiples",
    "Significand",
    "quantised",
]

__getattr__, __dir__ = lazy_names(__name__)
