"""Numbers into bits and back: arrays without loss, draws at the price of a KL."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .arrays import put_floats
    from .cosines import cosine_waves, from_frequencies
    from .counter import assignment, block_sizes
    from .decode_pocc import BODY, HEAD, MAGIC, USUAL_TEXT, VERSION, read_tensor
    from .entropy import PackedFileError, SymbolReader, SymbolWriter
    from .integers import BitReader, BitWriter, DamagedBits
    from .normals import candidates, deviation, nearest, scaled
    from .target import MOST_BITS, Target

__getattr__, __dir__ = lazy_names(__name__)
