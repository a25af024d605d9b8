"""Arrays of float32 into symbols, without loss: few distinct digits, few bits.

Rounding happens before (:mod:`~pyroccam.inference.rounding.quantise`); here the zeros, the digits
and the values that occur are looked at, and the cheapest of these writings is taken:

* *floats*: sign, exponent and the first digits as one symbol with its own probability; the digits
  after them as they are, for they carry nothing a table could predict. How many digits join the
  symbol is chosen: more digits fit the distribution better and need a longer table.
* *multiples*: the step, and for each weight a sign and the size of its whole number, under a
  probability of its own.
* *codebook*: the distinct values once, and an index for each weight.
* *raw*: 16 or 32 bits each, for arrays too short for a table.

Zeros are taken out first: one bit per weight under the density of its row, its column, or of all
(the same number of bits as coding the distances between kept weights), or under one that is learnt
from the rows before, which needs no table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .decode_pocc import (
    COUNTS,
    DENSITIES,
    DIGITS,
    MOST_ROWS,
    digit_widths,
    learnt_mask,
    multiples,
)
from .entropy import SymbolWriter, bytes_of_counts, density_bytes

Array = NDArray[Any]
LARGEST_ALPHABET = 2**14  # symbols of a layer that have a probability of their own
LARGEST_CODEBOOK = 2**12
MOST_OF_SMALLEST = 8  # steps in the smallest number of a layer
LARGEST_LEARNT = 2**22  # numbers whose mask is tried in several ways, each as slow as reading
_LEARNT = 3  # the axis of a mask that is none
# What a table costs, roughly, after the tables are compressed: an entry, and an empty place.
ENTRY_BITS, EMPTY_BITS = 7.0, 0.1


class _Split(NamedTuple):
    """Nonzero numbers taken apart. A number of exponent e has ``width(e)`` digits."""

    sign: Array
    exponent: Array  # above the least
    fraction: Array  # the digits after the leading one
    lowest: int  # the least exponent
    floor: int  # no digit lies below 2^floor
    digits: int  # most digits of any number

    def widths(self) -> Array:
        return digit_widths(self.exponent, self.lowest, self.floor, self.digits)


def put_floats(writer: SymbolWriter, values: NDArray[np.float32], rows: int) -> str:
    """Write finite numbers.

    Arguments:
        writer: tables and symbols go there.
        values: flat, ``(n,)``; a zero loses its sign.
        rows: of the matrix the numbers are from; divides ``n``.

    Returns:
        The writing that was taken: ``zeros``, ``floats``, ``multiples``, ``codebook`` or ``raw``.
    """
    kept = _put_mask(writer, values != 0, rows)
    return _put_nonzero(writer, values[kept], books=True)


# -- which numbers are not zero -------------------------------------------------------------------


def _put_mask(writer: SymbolWriter, kept: Array, rows: int) -> Array:
    if kept.all():
        writer.number(0)
        return kept
    ways: list[tuple[float, int, Array]] = []
    for axis, groups in enumerate((1, rows, len(kept) // rows)):  # all together, rows, columns
        size = len(kept) // groups
        matrix = kept.reshape(-1, groups).T if axis == 2 else kept.reshape(groups, -1)
        ones = matrix.sum(1)
        table = density_bytes(ones, size)
        p = DENSITIES[table].clip(1e-9, 1 - 1e-9)
        bits = -(ones * np.log2(p) + (size - ones) * np.log2(1 - p)).sum() + ENTRY_BITS * groups
        ways.append((float(bits), axis, table))
    bits, axis, table = min(ways, key=lambda way: way[0])
    small = rows <= MOST_ROWS and len(kept) <= LARGEST_LEARNT
    if rows > 1 and small and _put_learnt_mask(writer, kept, rows, bits):
        return kept
    writer.number(1 + axis)
    writer.table(table)
    places = np.arange(len(kept))
    size = len(kept) // len(table)
    p = DENSITIES[table[places % len(table) if axis == 2 else places // size]]
    open_ = (p > 0) & (p < 1)
    writer.bernoulli(kept[open_], p[open_])
    return kept


class _Known:
    """A mask as if it were read: what a reader would learn on the way is what a writer needs."""

    def __init__(self, numbers: list[int], tables: list[Array], kept: list[Array]) -> None:
        self._numbers, self._tables, self._kept = iter(numbers), iter(tables), iter(kept)
        self.p: list[Array] = []

    def number(self) -> int:
        return next(self._numbers)

    def table(self, size: int) -> Array:
        return next(self._tables)

    def bernoulli(self, p: Array) -> Array:
        self.p.append(p)
        return next(self._kept)


def _put_learnt_mask(writer: SymbolWriter, kept: Array, rows: int, most: float) -> bool:
    """Write a mask by densities that are learnt on the way, if that takes fewer bits than
    ``most``."""
    matrix = kept.reshape(rows, -1)
    ones = matrix.sum(1)
    whole = density_bytes(np.array([ones.sum()]), kept.size)
    by_row = density_bytes(ones, matrix.shape[1])
    ways: list[tuple[float, list[int], list[Array], Array, Array]] = []
    for told in (0, 1):
        open_ = (by_row > 0) & (by_row < 255) if told else np.ones(rows, dtype=bool)
        tables = [whole, by_row] if told else [whole]
        symbols = matrix[open_]
        for start in (4, 16, 64):
            known = _Known([start, told], tables, list(symbols))
            learnt_mask(known, kept.size, rows)
            p = np.concatenate([*known.p, np.zeros(0)])
            flat = symbols.reshape(-1)
            bits = -np.log2(np.where(flat, p, 1 - p)).sum() + ENTRY_BITS * (1 + told * rows)
            ways.append((float(bits), [start, told], tables, flat, p))
    least, numbers, tables, flat, p = min(ways, key=lambda way: way[0])
    if least >= most:
        return False
    writer.version = 2
    for number in (1 + _LEARNT, *numbers):
        writer.number(number)
    for table in tables:
        writer.table(table)
    writer.bernoulli(flat, p)
    return True


# -- numbers that are not zero --------------------------------------------------------------------

_RAW16, _RAW32, _BOOK, _FLOATS, _STEPS = range(5)
_NAMES = ("raw", "raw", "codebook", "floats", "multiples")


def _put_nonzero(writer: SymbolWriter, values: NDArray[np.float32], *, books: bool) -> str:
    if not len(values):
        return "zeros"
    split = _split(values)
    leading, floats_bits, complete = _best_leading(split)
    costs = {_RAW32: 32.0 * len(values), _FLOATS: floats_bits}
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if np.array_equal(halves.astype(np.float32), values):
        costs[_RAW16] = 16.0 * len(values)
    # Where all digits may join the symbol, every value has its own probability already.
    some = values[:: 1 + len(values) // 2**14]
    step = None
    if books and not complete and len(np.unique(some)) <= LARGEST_CODEBOOK:
        book, index, counts = np.unique(values, return_inverse=True, return_counts=True)
        if len(book) <= LARGEST_CODEBOOK:
            costs[_BOOK] = _table_bits(counts) + _best_leading(_split(book))[1]
            step = _step_of(book)
    if step is not None:
        sizes = _sizes(values, step)
        costs[_STEPS] = 40.0 + len(values) + _table_bits(np.bincount(sizes)[1:])
    kind = min(costs, key=lambda k: costs[k])
    writer.number(kind)
    if kind == _BOOK:
        writer.number(len(book))
        _put_nonzero(writer, book, books=False)
        table = bytes_of_counts(counts)
        writer.table(table)
        writer.categorical(index, table)
    elif kind == _FLOATS:
        _put_split(writer, split, leading)
    elif kind == _STEPS and step is not None:
        _put_multiples(writer, values, step)
    else:
        words = (halves if kind == _RAW16 else values).view(np.uint16)
        writer.raw(words, np.full(len(words), 16))
    return _NAMES[kind]


# -- whole multiples of a step --------------------------------------------------------------------


def _step_of(values: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """A step ``(1,)`` of which all are whole multiples as float32 multiplies them, if there is one
    of which the smallest is a small multiple."""
    size = np.abs(values).astype(np.float64)
    least, most = size.min(), size.max()
    for multiple in range(1, MOST_OF_SMALLEST + 1):
        number = np.rint(multiple * (most / least))
        if number > LARGEST_ALPHABET:
            return None
        near = np.array([most / number], dtype=np.float32)  # right but for its last digit or two
        for ulps in (0, 1, -1, 2, -2):
            step = (near.view(np.int32) + ulps).view(np.float32)
            if not 0 < step[0] < np.inf:
                continue
            with np.errstate(over="ignore"):
                found = multiples(step, _sizes(values, step), (values < 0).astype(np.int64))
            if np.array_equal(found, values):
                return step
    return None


def _sizes(values: NDArray[np.float32], step: NDArray[np.float32]) -> NDArray[np.int64]:
    return np.rint(np.abs(values).astype(np.float64) / step).astype(np.int64)


def _put_multiples(
    writer: SymbolWriter, values: NDArray[np.float32], step: NDArray[np.float32]
) -> None:
    writer.version = 2
    size = _sizes(values, step)
    writer.raw(step.astype("<f4").view("<u2"), np.full(2, 16))
    writer.number(int(size.max()))
    table = bytes_of_counts(np.bincount(size)[1:])
    writer.table(table)
    writer.categorical(size - 1, table)
    writer.raw(values < 0, np.ones(len(size), dtype=np.int32))


# -- floats: sign, exponent, digits ---------------------------------------------------------------


def _split(values: NDArray[np.float32]) -> _Split:
    mantissa, exponent = np.frexp(values.astype(np.float64))
    whole = (np.abs(mantissa) * 2**DIGITS).astype(np.int32)
    last = whole & -whole  # the lowest digit that is set
    trailing = np.log2(last).astype(np.int32)
    lowest, floor = int(exponent.min()), int((exponent + trailing).min()) - DIGITS
    digits = DIGITS - int(trailing.min())
    relative = exponent.astype(np.int32) - lowest
    widths = digit_widths(relative, lowest, floor, digits)
    fraction = (whole >> (DIGITS - widths)) - np.left_shift(1, widths - 1)
    sign = (values < 0).astype(np.int32)
    return _Split(sign, relative, fraction, lowest, floor, digits)


def _symbols(split: _Split, leading: int) -> Array:
    """Sign, exponent and the ``leading`` digits after the first as one number."""
    widths = split.widths() - 1
    top = np.where(
        widths >= leading,
        split.fraction >> (widths - leading).clip(0),
        split.fraction << (leading - widths).clip(0),
    )
    return ((2 * split.exponent + split.sign) << leading) | top


def _best_leading(split: _Split) -> tuple[int, float, bool]:
    """How many digits join the symbol, the bits of everything, and whether all might have."""
    exponents = int(split.exponent.max()) + 1
    most = min(split.digits - 1, int(np.log2(LARGEST_ALPHABET / (2 * exponents))))
    counts = np.bincount(_symbols(split, most), minlength=2 * exponents << most)
    per_width = np.bincount(split.widths() - 1, minlength=DIGITS)
    best = (0, float("inf"))
    for leading in range(most, -1, -1):
        raw = (np.arange(DIGITS) - leading).clip(0) @ per_width
        bits = _table_bits(counts) + float(raw)
        if bits < best[1]:
            best = (leading, bits)
        counts = counts.reshape(-1, 2).sum(1) if leading else counts
    return *best, most == split.digits - 1


def _table_bits(counts: Array) -> float:
    """Bits of symbols that occur so often, with their table."""
    used = counts[counts > 0]
    told = COUNTS[bytes_of_counts(used)]
    coded = -(used * np.log2(told / told.sum())).sum()
    return float(coded) + ENTRY_BITS * len(used) + EMPTY_BITS * len(counts) + 16


def _put_split(writer: SymbolWriter, split: _Split, leading: int) -> None:
    exponents = int(split.exponent.max()) + 1
    for number in (split.lowest, split.floor, split.digits, leading, exponents):
        writer.number(number)
    symbols = _symbols(split, leading)
    table = bytes_of_counts(np.bincount(symbols, minlength=2 * exponents << leading))
    writer.table(table)
    writer.categorical(symbols, table)
    left = split.widths() - 1 - leading
    some = left > 0
    writer.raw(split.fraction[some] & (np.left_shift(1, left[some]) - 1), left[some])
