"""Which weights are coded together: a random assignment that the receiver repeats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...data import PyroccamError
from .counter import philox

_PLACES = 1  # the stream of the keys by which weights are ordered


def assignment(seed: int, weights: int) -> NDArray[np.int64]:
    """A random order of all weights, ``(weights,)``; blocks are consecutive parts of it.

    Weights are sorted by keys of 64 bits from the counter, and by their number where two keys are
    the same.

    Arguments:
        seed: below 2^64.
    """
    number = np.arange(weights, dtype=np.uint64)
    zero = np.zeros_like(number)
    words = philox((number, zero, zero, zero + np.uint64(_PLACES)), (seed & 0xFFFFFFFF, seed >> 32))
    return np.argsort(words[0] << np.uint64(32) | words[1], kind="stable")


def block_sizes(weights: int, blocks: int) -> NDArray[np.int64]:
    """Weights in each block, ``(blocks,)``, that differ by at most one, the larger ones first."""
    if not 1 <= blocks <= weights:
        raise PyroccamError(
            f"{weights} weights cannot be coded in {blocks} blocks: expected 1 to {weights}."
        )
    least, more = divmod(weights, blocks)
    return np.full(blocks, least) + (np.arange(blocks) < more)
