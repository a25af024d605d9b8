"""Whole numbers in bits: of fixed width, of any size, and by a Huffman code of their sizes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


class DamagedBits(ValueError):
    """Bits that nothing was written as."""


class BitWriter:
    """Collects bits, the highest of a number first."""

    def __init__(self) -> None:
        self._bits: list[int] = []

    def __len__(self) -> int:
        return len(self._bits)

    def fixed(self, value: int, width: int) -> None:
        """A number below 2^width."""
        self._bits += [value >> i & 1 for i in range(width - 1, -1, -1)]

    def number(self, value: int) -> None:
        """A number of any size, in groups of four bits, each behind one that says if it is not the
        last."""
        groups = [value & 15]
        while value := value >> 4:
            groups.append(value & 15)
        for place, group in enumerate(groups):
            self.fixed(int(place + 1 < len(groups)), 1)
            self.fixed(group, 4)

    def join(self, other: BitWriter) -> None:
        """The bits of another behind those of this one."""
        self._bits += other._bits

    def raw(self, content: bytes) -> None:
        """Bytes as they are."""
        for byte in content:
            self.fixed(byte, 8)

    def sizes(self, values: Sequence[int], most: int) -> None:
        """Numbers below 2^most: the number of bits of each by a Huffman code that is written in
        front of them, and then its bits but the first.

        Where small numbers are likelier, as by the law of Zipf, that takes close to their entropy.
        """
        found = [(value + 1).bit_length() - 1 for value in values]
        counts = np.bincount(found, minlength=most + 1)
        lengths = code_lengths(counts.tolist())
        for length in lengths:
            self.fixed(length, _LENGTH)
        words = _words(lengths)
        for value, size in zip(values, found, strict=True):
            self.fixed(words[size], lengths[size])
            self.fixed(value + 1 - (1 << size), size)

    def content(self) -> bytes:
        """All bits as bytes; zeros fill the last."""
        return np.packbits(np.array(self._bits, np.uint8)).tobytes()


class BitReader:
    """The inverse of :class:`BitWriter`.

    Raises:
        DamagedBits: by all methods, where the bits end too early.
    """

    def __init__(self, content: bytes) -> None:
        self._bits = np.unpackbits(np.frombuffer(content, np.uint8))
        self._at = 0

    @property
    def left(self) -> int:
        """Bits that are not read."""
        return len(self._bits) - self._at

    def fixed(self, width: int) -> int:
        if width > self.left:
            raise DamagedBits("it ends too early")
        value = 0
        for bit in self._bits[self._at : self._at + width].tolist():
            value = value << 1 | bit
        self._at += width
        return value

    def number(self) -> int:
        value = shift = 0
        more = 1
        while more:
            if shift > 64:
                raise DamagedBits("a number is too long")
            more = self.fixed(1)
            value |= self.fixed(4) << shift
            shift += 4
        return value

    def raw(self, count: int) -> bytes:
        if 8 * count > self.left:
            raise DamagedBits("it ends too early")
        return bytes(self.fixed(8) for _ in range(count))

    def sizes(self, count: int, most: int) -> list[int]:
        lengths = [self.fixed(_LENGTH) for _ in range(most + 1)]
        by_word = {
            (n, word): size
            for size, (n, word) in enumerate(zip(lengths, _words(lengths), strict=True))
            if n
        }
        only = [size for size, n in enumerate(lengths) if n]
        if not only:
            raise DamagedBits("a table of lengths is empty")
        found = []
        for _ in range(count):
            length, word = 0, 0
            while (length, word) not in by_word:
                if length > _LONGEST:
                    raise DamagedBits("a number has no size")
                length, word = length + 1, word << 1 | self.fixed(1)
            size = by_word[length, word]
            found.append((1 << size) - 1 + self.fixed(size))
        return found

    def close(self) -> None:
        """Only the zeros that fill the last byte may be left."""
        if self.left >= 8 or (self.left and self.fixed(self.left)):
            raise DamagedBits("there is more in it than it says")


_LENGTH = 4  # bits of a length in the table
_LONGEST = 15


def code_lengths(counts: Sequence[int]) -> list[int]:
    """Lengths of the words of a Huffman code, in bits, at most 15; 0 for what does not occur."""
    counts = list(counts)
    while True:
        lengths = _huffman(counts)
        if max(lengths, default=0) <= _LONGEST:
            return lengths
        counts = [count and count // 2 + 1 for count in counts]  # flatter, so shorter at most


def _huffman(counts: Sequence[int]) -> list[int]:
    lengths = [0] * len(counts)
    queue = [(count, symbol, [symbol]) for symbol, count in enumerate(counts) if count]
    if len(queue) == 1:
        lengths[queue[0][1]] = 1
    heapq.heapify(queue)
    while len(queue) > 1:
        (n, first, left), (m, _, right) = heapq.heappop(queue), heapq.heappop(queue)
        for symbol in left + right:
            lengths[symbol] += 1
        heapq.heappush(queue, (n + m, first, left + right))
    return lengths


def _words(lengths: Sequence[int]) -> list[int]:
    """The canonical words: shorter ones first, then by symbol."""
    words = [0] * len(lengths)
    word = previous = 0
    for length, symbol in sorted((n, s) for s, n in enumerate(lengths) if n):
        word <<= length - previous
        words[symbol], previous = word, length
        word += 1
    return words
