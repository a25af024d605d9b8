"""Symbols into bits and back: one entropy coder for a whole file, and the tables it needs.

Symbols are coded by asymmetric numeral systems (ANS): with the probabilities ``q`` a symbol costs
``-log2 q`` bits, without rounding up to whole bits as a Huffman code does. ANS decodes any string
of bits to something, so a damaged file cannot crash the decoder. The probabilities are part of the
file: counts, one byte each, rounded to 4 significant bits, which costs under 0.001 bits per symbol.
All of them are exact binary fractions, so that every machine decodes with the same ones.
"""

from __future__ import annotations

from typing import Any

import constriction  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from ...data import PyroccamError
from .decode_pocc import COUNTS, Symbols

Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
_model = constriction.stream.model


class PackedFileError(PyroccamError):
    """A file that cannot be read: another format, cut off, damaged, or too large."""


def bytes_of_counts(counts: NDArray[Any]) -> Bytes:
    """Counts as bytes, to the nearest of :data:`COUNTS`; only 0 becomes 0."""
    above = np.searchsorted(COUNTS, counts).clip(0, 255)
    below = np.maximum(above - 1, 0)
    nearer = np.where(COUNTS[above] - counts <= counts - COUNTS[below], above, below)
    return nearer.astype(np.uint8)


def density_bytes(ones: NDArray[Any], size: int) -> Bytes:
    """The share of ones among ``size``, as bytes that index :data:`DENSITIES`."""
    with np.errstate(divide="ignore"):
        odds = np.log2(ones / (size - ones))
    nearest = np.rint(8 * odds.clip(-16, 16) + 128).clip(1, 254)
    return np.where(ones == 0, 0, np.where(ones == size, 255, nearest)).astype(np.uint8)


class SymbolWriter:
    """Collects tables and symbols; :meth:`finish` codes the symbols.

    ``bits`` is the ideal length, in bits, of what was pushed so far; ``version`` the lowest version
    of a file that has these writings.
    """

    def __init__(self) -> None:
        self.version = 1
        self.tables = bytearray()
        self.bits = 0.0
        self._pushed: list[tuple[Any, ...]] = []

    def number(self, value: int) -> None:
        """A whole number into the tables: 7 bits per byte, the sign in the lowest bit."""
        value = 2 * value if value >= 0 else -2 * value - 1
        while value >= 128:
            self.tables.append(value % 128 + 128)
            value //= 128
        self.tables.append(value)

    def table(self, table: Bytes) -> None:
        """Bytes into the tables; the reader must know how many."""
        self.tables += table.tobytes()

    def categorical(self, symbols: NDArray[Any], table: Bytes) -> None:
        """Symbols under the counts of ``table``, which goes into the tables by the caller."""
        present, weights = _present(table)
        if len(present) < 2 or not len(symbols):
            return  # nothing to tell apart
        rank = np.zeros(len(table), dtype=np.int32)
        rank[present] = np.arange(len(present), dtype=np.int32)
        cost = -np.log2(weights / weights.sum())
        ranks = rank[symbols]
        self.bits += float(np.bincount(ranks, minlength=len(present)) @ cost)
        self._pushed.append((ranks, _model.Categorical(weights, perfect=False)))

    def bernoulli(self, symbols: NDArray[Any], p: Floats) -> None:
        """Zeros and ones under probabilities of their own, each strictly between 0 and 1."""
        if len(symbols):
            self.bits += float(-np.log2(np.where(symbols, p, 1 - p)).sum())
            self._pushed.append((symbols.astype(np.int32), _model.Bernoulli(perfect=False), p))

    def raw(self, symbols: NDArray[Any], widths: NDArray[Any]) -> None:
        """Whole numbers of ``widths`` bits each (1 ... 23), all equally likely."""
        if len(symbols):
            self.bits += float(widths.sum())
            sizes = np.left_shift(1, widths.astype(np.int32))
            self._pushed.append((symbols.astype(np.int32), _model.Uniform(), sizes))

    def finish(self) -> bytes:
        """The coded symbols, in words of 4 bytes, at most 8 bytes above the ideal length."""
        coder = constriction.stream.stack.AnsCoder()
        for symbols, *model in reversed(self._pushed):  # a stack: last in, first out
            coder.encode_reverse(symbols, *model)
        return coder.get_compressed().astype("<u4").tobytes()


class SymbolReader(Symbols):
    """The inverse of :class:`SymbolWriter`, called in the same order, and quick.

    Raises:
        ValueError: in every method, if the tables end too early.
    """

    def __init__(self, tables: bytes, coded: bytes) -> None:
        self.tables, self.at = tables, 0
        if len(coded) % 4:
            raise PackedFileError("The coded weights are no whole number of words.")
        words = np.frombuffer(coded, dtype="<u4").astype(np.uint32)
        if len(words) and words[-1] == 0:
            raise PackedFileError("The coded weights end in an impossible word.")
        self._coder = constriction.stream.stack.AnsCoder(words)

    def categorical(self, count: int, table: Bytes) -> Ints:
        present, weights = _present(table)
        if count and not len(present):
            raise PackedFileError("A table of counts is empty.")
        if len(present) < 2 or not count:
            return np.full(count, present[0] if len(present) else 0, dtype=np.int32)
        ranks = self._coder.decode(_model.Categorical(weights, perfect=False), count)
        return present.astype(np.int32)[ranks]

    def bernoulli(self, p: Floats) -> Ints:
        if not len(p):
            return np.zeros(0, dtype=np.int32)
        return self._coder.decode(_model.Bernoulli(perfect=False), p)

    def raw(self, widths: NDArray[Any]) -> Ints:
        if not len(widths):
            return np.zeros(0, dtype=np.int32)
        return self._coder.decode(_model.Uniform(), np.left_shift(1, widths.astype(np.int32)))

    def close(self) -> None:
        """Everything must have been used."""
        if self.at != len(self.tables) or not self._coder.is_empty():
            raise PackedFileError("There is more in the file than its weights need.")


def _present(table: Bytes) -> tuple[NDArray[np.int64], Floats]:
    present = np.flatnonzero(table)
    return present, COUNTS[table[present]].astype(np.float64)
