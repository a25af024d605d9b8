"""Random integers from a counter, the same on every machine, wherever one begins to read; and which
weights are coded together, a random assignment that the receiver repeats.

Philox4x32-10 maps a counter of four 32-bit words and a key of two to four words that nobody can
tell from random ones. There is no state: sender and receiver compute the words of any candidate of
any block alone. Only integers are used, so there is nothing to round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # that hold 32 bits each: their products need 64

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """Philox4x32-10: four arrays of one shape, uint64, from four; all numbers, those of the key
    among them, are below 2^32.

    References:
        Salmon, Moraes, Dror, Shaw 2011, Parallel random numbers: as easy as 1, 2, 3, SC11; its test
        vectors are those of the library Random123.

    Example:
        >>> zero = np.zeros(1, np.uint64)
        >>> [hex(int(word[0])) for word in philox((zero, zero, zero, zero), (0, 0))]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = counter
    for number in range(_ROUNDS):
        own = [
            np.uint64((k + number * step) & 0xFFFFFFFF)
            for k, step in zip(key, _KEY_STEPS, strict=True)
        ]
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> _SHIFT) ^ b ^ own[0], second & _LOW
        c, d = (first >> _SHIFT) ^ d ^ own[1], first & _LOW
    return a, b, c, d


def halves(seed: int, stream: int, block: int, rows: range, columns: int) -> NDArray[np.uint16]:
    """Random numbers below 2^16, ``(len(rows), columns)``, eight of each counter.

    The number in row r and column c of a block is the one at place c mod 8 of the counter
    (c // 8, r, block, stream); a word has its lower half first. The key is the seed, below 2^64.
    """
    groups = -(-columns // 8)
    shape = (len(rows), groups)
    row = np.arange(rows.start, rows.stop, dtype=np.uint64)
    counter = (
        np.broadcast_to(np.arange(groups, dtype=np.uint64), shape),
        np.broadcast_to(row[:, None], shape),
        np.full(shape, block, np.uint64),
        np.full(shape, stream, np.uint64),
    )
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    found = np.empty((*shape, 4, 2), np.uint16)
    for place, word in enumerate(words):
        found[..., place, 0] = word & np.uint64(0xFFFF)
        found[..., place, 1] = word >> np.uint64(16)
    return found.reshape(len(rows), 8 * groups)[:, :columns]


_PLACES = 1  # the stream of the keys by which weights are ordered


def assignment(seed: int, weights: int) -> NDArray[np.int64]:
    """A random order of all weights, ``(weights,)``; blocks are consecutive parts of it.

    Weights are sorted by keys of 64 bits from the counter, and by their number where two keys are
    the same; the seed is below 2^64.
    """
    number = np.arange(weights, dtype=np.uint64)
    zero = np.zeros_like(number)
    words = philox((number, zero, zero, zero + np.uint64(_PLACES)), (seed & 0xFFFFFFFF, seed >> 32))
    return np.argsort(words[0] << np.uint64(32) | words[1], kind="stable")


def block_sizes(weights: int, blocks: int) -> NDArray[np.int64]:
    """Weights in each block, ``(blocks,)``, that differ by at most one, the larger ones first."""
    least, more = divmod(weights, blocks)
    return np.full(blocks, least) + (np.arange(blocks) < more)
