"""A reader of packed networks (``.pocc``) in one file that can be copied: it needs torch and numpy.

``python decode_pocc.py FILE [OUT]`` writes the tensors of the network, as safetensors, or as a
state dict of ``torch.save`` if ``OUT`` ends in ``.pt``. It runs no code that the file names.

The file, little-endian: 4 bytes ``POcc``, version (2 bytes), checksum of all that follows (8),
digest of the weights (8), four lengths (4 each), then JSON and tables, both compressed, and the
coded weights. The lengths are those of: compressed JSON, JSON, compressed tables, tables.

The weights are coded by asymmetric numeral systems with a state of 64 bits, words of 32 and
probabilities of 24 (Duda, arXiv:1311.2540, in the form of the library constriction 0.4 and 0.5).
What that library decodes is decoded here by Python, more slowly: a million symbols take a second
or two.

A file is of the lowest version that has all of its writings: 2 for whole multiples of a step, and
for densities that are learnt from the rows before.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[Any]

MAGIC, VERSION = b"POcc", 2
MOST_ROWS = 2**14  # of a mask that is learnt from row to row, in Python
HEAD = struct.Struct("<4sH8s8sIIII")
BODY = 14  # where the part under the checksum begins

# Text that descriptions are likely to hold, the likeliest last. It halves the description of a
# small network. Files are read with it: to change it is to change the version.
USUAL_TEXT = (
    b'"LeakyReLU","arguments":{"negative_slope":0.01,"inplace":false}},"Tanh","Sigmoid","Identity"'
    b'"target":"operator.add","target":"operator.getitem","args":[{"node":"target":"torch.cat",'
    b'"target":"torch.flatten","target":"functional.relu","kwargs":{"inplace":false}},'
    b'{"op":"call_method","name":"view","target":"view","args":[{"node":"x"},{"node":"size"},-1]},'
    b'{"type":"Dropout","arguments":{"p":0.5,"inplace":false}},"track_running_stats":true}},'
    b'{"type":"AdaptiveAvgPool2d","arguments":{"output_size":{"tuple":[1,1]}}},"bias":false,'
    b'{"type":"AvgPool2d","arguments":{"kernel_size":2,"stride":2,"padding":0,"ceil_mode":false,'
    b'"count_include_pad":true,"divisor_override":null}},"layer1.0.conv1","downsample.0","fc1"'
    b'"num_batches_tracked":"int64","running_mean","running_var"'
    b'{"type":"MaxPool2d","arguments":{"kernel_size":2,"stride":2,"padding":0,"dilation":1,'
    b'"return_indices":false,"ceil_mode":false}},'
    b'{"type":"BatchNorm2d","arguments":{"num_features":64,"eps":1e-05,"momentum":0.1,"affine":true,'
    b'"track_running_stats":true}},'
    b'{"type":"Conv2d","arguments":{"in_channels":64,"out_channels":64,"kernel_size":{"tuple":[5,5]}'
    b',"kernel_size":{"tuple":[3,3]},"stride":{"tuple":[1,1]},"padding":{"tuple":[0,0]},'
    b'"dilation":{"tuple":[1,1]},"groups":1,"bias":true,"padding_mode":"zeros"}},'
    b'{"type":"Flatten","arguments":{"start_dim":1,"end_dim":-1}},'
    b'{"description":{"format":1,"nodes":[{"op":"placeholder","name":"x","target":"x"},'
    b'{"op":"placeholder","name":"input_1","target":"input"},'
    b'{"op":"call_function","name":"add","target":"{"op":"get_attr","name":"'
    b'{"op":"call_module","name":"_0","target":"0","args":[{"node":"input_1"}]},'
    b'{"op":"call_module","name":"_1","target":"1","args":[{"node":"_0"}]},'
    b'{"op":"output","name":"output","target":"output","args":[{"node":"_4"}]}],"modules":{"0":'
    b'{"type":"ReLU","arguments":{"inplace":false}},"2":'
    b'{"type":"Linear","arguments":{"in_features":500,"out_features":10,"bias":true}}},'
    b'"direct":{},"constants":{},"tied":{},"dtypes":{}}}'
)

# A count in one byte: 0 to 15 as they are, then 8 bytes for each doubling, up to 15 * 2^30.
COUNTS = np.array([*range(16), *((8 + m) << (d + 1) for d in range(30) for m in range(8))])

# Byte b stands for a probability p with log2 of the odds (b - 128) / 8; 0 and 255 are certain.
_odds = np.exp2((np.arange(256) - 128) / 8)
DENSITIES: NDArray[np.float64] = np.rint(65536 * _odds / (1 + _odds)).clip(1, 65535) / 65536
DENSITIES[0], DENSITIES[255] = 0.0, 1.0

DIGITS = 24  # significand bits of a float32, the leading one counted


def digit_widths(exponent: Array, lowest: int, floor: int, digits: int) -> Array:
    """Digits of a number by its exponent above the least: near the floor, 2^floor, it has fewer."""
    return np.minimum(exponent + (lowest - floor), digits).clip(1, DIGITS)


def learnt_mask(source: Any, count: int, rows: int) -> Array:
    """Which numbers of a matrix are not zero, by densities that are learnt from row to row.

    The density of a column begins at that of all, which counts as so many rows, and is then the
    share of what was there. Where the densities of the rows are told as well, odds are multiplied.
    Only sums, products and quotients are used, which every machine rounds alike.

    Arguments:
        source: :class:`Symbols`, or what is read as they are: rows that count for the start, times
            8; whether rows have densities; the density of all, and those of rows.
        count: numbers.
        rows: of the matrix; divides ``count``.
    """
    if rows > MOST_ROWS:
        raise ValueError(f"densities that are learnt have at most {MOST_ROWS} rows, got {rows}")
    start = max(source.number(), 1) / 8
    told = source.number()
    least, most = DENSITIES[1], DENSITIES[254]
    whole = DENSITIES[source.table(1)[0]].clip(least, most)
    by_row = DENSITIES[source.table(rows)] if told else np.full(rows, whole)
    seen = np.zeros(count // rows, np.int64)
    kept = np.zeros((rows, count // rows), bool)
    for i in range(rows):
        if not 0 < by_row[i] < 1:  # nothing, or all
            kept[i] = by_row[i] == 1
        else:
            p = ((seen + start * whole) / (i + start)).clip(least, most)
            odds = p / (1 - p) * (by_row[i] / (1 - by_row[i])) * ((1 - whole) / whole)
            kept[i] = source.bernoulli((odds / (1 + odds)).clip(least, most))
        seen += kept[i]
    return kept.reshape(-1)


def multiples(step: NDArray[np.float32], size: Array, sign: Array) -> NDArray[np.float32]:
    """A step ``(1,)`` times whole numbers, as float32 multiplies them."""
    found: NDArray[np.float32] = step * (size * (1 - 2 * sign)).astype(np.float32)
    return found


def decode(content: bytes) -> dict[str, Tensor]:
    """The tensors of a packed network, by name; those that are tied under both names.

    Arguments:
        content: of the file.

    Raises:
        ValueError: if it is of another kind or version, damaged or cut off.
    """
    if content[:4] != MAGIC or len(content) < HEAD.size:
        raise ValueError("this is no packed network")
    _, version, checksum, digest, *sizes = HEAD.unpack_from(content)
    if not 1 <= version <= VERSION:
        raise ValueError(f"version {version}; this reads versions 1 to {VERSION}")
    if hashlib.blake2b(content[BODY:], digest_size=8).digest() != checksum:
        raise ValueError("the file is damaged or cut off")
    middle = HEAD.size + sizes[0]
    end = middle + sizes[2]
    header = json.loads(_inflate(content[HEAD.size : middle], sizes[1], USUAL_TEXT))
    source = Symbols(_inflate(content[middle:end], sizes[3], b""), content[end:])
    tensors, sums = {}, hashlib.blake2b(digest_size=8)
    for name, shape, dtype in _declared(header):
        tensors[name] = read_tensor(source, shape, dtype)
        sums.update(_bytes(tensors[name] + 0.0 if dtype.is_floating_point else tensors[name]))
    if sums.digest() != digest:
        raise ValueError("the weights decode to other numbers than were written")
    tied = header.get("description", {}).get("tied", {})
    return tensors | {name: tensors[owner] for name, owner in tied.items()}


def _inflate(packed: bytes, size: int, usual: bytes) -> bytes:
    out = zlib.decompressobj(zdict=usual).decompress(packed, size + 1)
    if len(out) != size:
        raise ValueError("a part of the file has another length than it says")
    return out


def _declared(header: dict[str, Any]) -> list[tuple[str, list[int], torch.dtype]]:
    """Name, shape and dtype of every tensor that is coded, in that order."""
    if "description" not in header:
        return [(name, shape, getattr(torch, dtype)) for name, dtype, shape in header["tensors"]]
    described = header["description"]
    shapes: dict[str, list[int]] = {}
    for name, words in described["modules"].items():
        kind = getattr(nn, words["type"], None)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ValueError(f"{words['type']!r} is no module of torch")
        with torch.device("meta"):  # shapes only
            module = kind(**{key: _argument(value) for key, value in words["arguments"].items()})
        for key, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:
                shapes[f"{name}.{key}"] = list(tensor.shape)
    shapes |= {name: words["shape"] for name, words in described["direct"].items()}
    dtypes = described["dtypes"]
    return [
        (name, shape, getattr(torch, dtypes.get(name, "float32")))
        for name, shape in shapes.items()
        if name not in described["tied"]
    ]


def _argument(value: Any) -> Any:
    """An argument of a module, from JSON."""
    if isinstance(value, list):
        return [_argument(one) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tuple":
        return tuple(_argument(one) for one in inner)
    return getattr(torch, inner) if kind == "dtype" else float(inner)


# -- tables and symbols ---------------------------------------------------------------------------

_BITS = 24
_WHOLE = 2**_BITS


class Symbols:
    """Tables, and a stack of symbols: the last that was coded is the first that is decoded."""

    def __init__(self, tables: bytes, coded: bytes) -> None:
        self.tables, self.at = tables, 0
        self.words: list[int] = np.frombuffer(coded, "<u4").tolist()
        self.state = 0
        for _ in range(min(2, len(self.words))):
            self.state = self.state << 32 | self.words.pop()

    def _take(self, left: int, probability: int) -> None:
        """Remove a symbol, whose probabilities begin at ``left``, from the state."""
        quantile = self.state & (_WHOLE - 1)
        self.state = (self.state >> _BITS) * probability + quantile - left
        if self.state < 2**32 and self.words:
            self.state = self.state << 32 | self.words.pop()

    def number(self) -> int:
        """A whole number of the tables: 7 bits per byte, the sign in the lowest bit."""
        value = shift = 0
        while True:
            byte = int(self.table(1)[0])
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return -(value + 1) // 2 if value % 2 else value // 2
            if shift > 63:
                raise ValueError("a number in the tables is too long")

    def table(self, size: int) -> NDArray[np.uint8]:
        """The next bytes of the tables."""
        if size > len(self.tables) - self.at:
            raise ValueError("the tables end too early")
        self.at += size
        return np.frombuffer(self.tables, np.uint8, size, self.at - size)

    def categorical(self, count: int, table: NDArray[np.uint8]) -> Array:
        """Symbols by the counts of a table; every symbol has one of the 2^24 at least."""
        present = np.flatnonzero(table)
        if len(present) < 2 or not count:
            return np.full(count, present[0] if len(present) else 0)
        counts = COUNTS[table[present]].astype(np.float64)
        before = np.concatenate([[0.0], counts.cumsum()[:-1]])
        scale = (_WHOLE - len(present)) / counts.sum()
        lefts = (np.floor(before * scale).astype(np.int64) + np.arange(len(present))).tolist()
        sizes = np.diff([*lefts, _WHOLE]).tolist()
        out = np.empty(count, np.int64)
        for i in range(count):
            out[i] = rank = bisect_right(lefts, self.state & (_WHOLE - 1)) - 1
            self._take(lefts[rank], sizes[rank])
        return present[out]

    def bernoulli(self, p: Array) -> Array:
        """Zeros and ones; a one has the upper part of the 2^24."""
        out = np.empty(len(p), bool)
        firsts = (np.floor((1 - p) * (_WHOLE - 2)).astype(np.int64) + 1).tolist()
        for i, first in enumerate(firsts):
            out[i] = one = self.state & (_WHOLE - 1) >= first
            self._take(*((first, _WHOLE - first) if one else (0, first)))
        return out

    def raw(self, widths: Array) -> Array:
        """Whole numbers of so many bits each, all equally likely."""
        out = np.empty(len(widths), np.int64)
        for i, width in enumerate(widths.tolist()):
            each = _WHOLE >> width
            out[i] = symbol = (self.state & (_WHOLE - 1)) // each
            self._take(symbol * each, each)
        return out


# -- arrays ---------------------------------------------------------------------------------------


_PIECE = 2**20
_MOST_VALUES, _MOST_SYMBOLS = 2**12, 2**14  # of a codebook, and in a table


def _pieces(count: int) -> Iterator[slice]:
    """Parts of so many numbers: what is computed of one part takes little memory."""
    for start in range(0, count, _PIECE):
        yield slice(start, min(start + _PIECE, count))


def read_tensor(source: Symbols, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The next tensor.

    Raises:
        ValueError: if what is read is no tensor of the shape.
    """
    count = math.prod(shape)
    kind = source.number()
    if kind not in (0, 1):
        raise ValueError("a tensor is of an unknown kind")
    if kind:  # bytes, of what float32 cannot hold
        raw = _words(source, count * dtype.itemsize, 8).astype(np.uint8)
        return torch.from_numpy(raw).view(dtype).reshape(shape)
    rows = shape[0] if len(shape) > 1 and count else 1
    return torch.from_numpy(read_floats(source, count, rows)).reshape(shape).to(dtype)


def read_floats(source: Symbols, count: int, rows: int) -> NDArray[np.float32]:
    """Numbers of a matrix of so many rows, ``(count,)``."""
    kept = _mask(source, count, rows)
    values = np.zeros(count, np.float32)
    values[kept] = _numbers(source, int(kept.sum()))
    return values


def _words(source: Symbols, count: int, width: int) -> NDArray[np.uint16]:
    """Whole numbers of so many bits each, 16 at most."""
    out = np.empty(count, "<u2")
    for piece in _pieces(count):
        out[piece] = source.raw(np.full(piece.stop - piece.start, width))
    return out


def _mask(source: Symbols, count: int, rows: int) -> Array:
    """Which numbers are not zero, by the density of all, of their row, or of their column."""
    axis = source.number() - 1
    if axis == -1:
        return np.ones(count, bool)
    if axis == 3:
        return learnt_mask(source, count, rows)
    if not 0 <= axis < 3:
        raise ValueError("a mask is of an unknown kind")
    groups = [1, rows, count // rows][axis] if count else 1
    table, kept = source.table(groups), np.empty(count, bool)
    for piece in _pieces(count):
        places = np.arange(piece.start, piece.stop)
        p = DENSITIES[table[places % groups if axis == 2 else places // (count // groups)]]
        own, open_ = p == 1, (p > 0) & (p < 1)
        own[open_] = source.bernoulli(p[open_])
        kept[piece] = own
    return kept


def _numbers(source: Symbols, count: int, books: bool = True) -> Array:
    """Numbers that are not zero."""
    if not count:
        return np.zeros(0, np.float32)
    kind = source.number()
    if kind == 2 and books:  # a codebook, and an index for each
        size = source.number()
        if not 0 < size <= _MOST_VALUES:
            raise ValueError(f"a codebook has {size} values")
        book = _numbers(source, size, books=False)
        return book[source.categorical(count, source.table(size))]
    if kind in (0, 1):  # 16 or 32 bits each
        words = _words(source, count * (kind + 1), 16)
        return words.view("<f4" if kind else "<f2").astype(np.float32)
    values = np.empty(count, np.float32)
    if kind == 4:  # a step, and whole numbers of it
        step, most = _words(source, 2, 16).view("<f4").astype(np.float32), source.number()
        if not (0 < most <= _MOST_SYMBOLS and 0 < float(step[0]) * most <= np.finfo("f4").max):
            raise ValueError("a step, or the largest multiple of it, is impossible")
        sizes = source.categorical(count, source.table(most))
        for piece in _pieces(count):
            sign = source.raw(np.ones(piece.stop - piece.start, np.int64)).astype(np.int64)
            values[piece] = multiples(step, sizes[piece].astype(np.int64) + 1, sign)
        return values
    if kind != 3:
        raise ValueError("weights are written in an unknown way")
    lowest, floor, digits, leading, exponents = (source.number() for _ in range(5))
    if not (1 <= digits <= DIGITS and 0 <= leading < digits and 1 <= exponents <= 300):
        raise ValueError("the digits of a layer are impossible")
    if not (-300 <= lowest <= 300 and -300 <= floor <= lowest):
        raise ValueError("the exponents of a layer are impossible")
    if 2 * exponents << leading > _MOST_SYMBOLS:
        raise ValueError("the table of a layer is too long")
    symbols = source.categorical(count, source.table(2 * exponents << leading))
    for piece in _pieces(count):
        upper, top = symbols[piece] >> leading, symbols[piece] & ((1 << leading) - 1)
        exponent, sign = upper >> 1, upper & 1
        widths = digit_widths(exponent, lowest, floor, digits) - 1
        left = widths - leading
        fraction = np.where(left >= 0, top << left.clip(0), top >> (-left).clip(0))
        fraction[left > 0] |= source.raw(left[left > 0])
        whole = ((1 << widths) + fraction) * (1 - 2 * sign)
        with np.errstate(over="ignore"):
            values[piece] = np.ldexp(whole.astype(np.float64), exponent + lowest - widths - 1)
    return values


# -- files ----------------------------------------------------------------------------------------

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
}  # fmt: skip


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors: as ``torch.save`` does if the path ends in ``.pt``, or else as safetensors.

    Raises:
        KeyError: for a dtype that safetensors has not.
    """
    if path.suffix == ".pt":
        torch.save(tensors, path)
        return
    rows, body = {}, b""
    for name, tensor in tensors.items():
        content = _bytes(tensor)
        ends = [len(body), len(body) + len(content)]
        shape = list(tensor.shape)
        rows[name] = {"dtype": _DTYPES[tensor.dtype], "shape": shape, "data_offsets": ends}
        body += content
    text = json.dumps(rows).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main() -> None:
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ("-h", "--help"):
        raise SystemExit("python decode_pocc.py FILE [OUT.safetensors or OUT.pt]")
    file = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else file.with_suffix(".safetensors")
    try:
        tensors = decode(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{file} cannot be read: {error}") from error
    save(tensors, out)
    numbers = sum(tensor.numel() for tensor in tensors.values())
    print(f"{len(tensors)} tensors of {numbers:,} numbers written to {out}")


if __name__ == "__main__":
    main()
