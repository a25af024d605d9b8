"""Rows in .npy files, read from the disk by pieces and never mapped into memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import DataError, ask, check_numeric, reading
from .shuffle import Places, edges_of

BLOCK = 2**17
"""Bytes that are read side by side: few enough for a shuffle of many blocks, enough for a disk."""


class _File(NamedTuple):
    """A .npy file by its header."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return prod(self.shape[1:]) * self.dtype.itemsize


class Arrays:
    """Rows of a folder: `x.npy` and `y.npy`, or several such as `x-00.npy` and `y-00.npy`, one
    after the other in the order of their names.

    Files are read by offset, into memory that is let go again: pages of a mapped file would count
    as memory of the process for as long as nobody else needs them.
    """

    by_piece = True

    def __init__(self, folder: Path) -> None:
        self.name = folder.name or "arrays"
        self.files = [_opened(*pair) for pair in _pairs(folder)]
        kinds = {(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in self.files}
        if len(kinds) > 1:
            raise DataError(
                f"{folder} has files of {len(kinds)} kinds", "one shape of a row and one type"
            )
        self.starts = np.cumsum([0, *(x.shape[0] for x, _ in self.files)])
        self.rows = int(self.starts[-1])
        self.row_bytes = max(1, self.files[0][0].width)
        ask(2.0 * sum(one.width for one in self.files[0]), f"{folder}: a row")

    @property
    def edges(self) -> Places:
        """Rows at which blocks begin that are read side by side."""
        block = edges_of(self.rows, BLOCK // self.row_bytes)
        return np.union1d(block, self.starts)

    def read(self, places: Places) -> tuple[Tensor, Tensor]:
        """Inputs and targets of rows (B,), as they are in the files; those that follow each other
        are read together."""
        x, y = (np.empty((len(places), *one.shape[1:]), one.dtype) for one in self.files[0])
        number = np.searchsorted(self.starts, places, side="right") - 1
        breaks = np.flatnonzero((np.diff(places) != 1) | (np.diff(number) != 0)) + 1
        for low, high in zip([0, *breaks], [*breaks, len(places)], strict=True):
            if low == high:
                continue
            file = int(number[low])
            start = int(places[low] - self.starts[file])
            for one, out in zip(self.files[file], (x, y), strict=True):
                _read(one, start, out[low:high])
        return _tensor(x), _tensor(y)


def is_array_folder(path: Path) -> bool:
    """True for a folder with .npy files."""
    return path.is_dir() and any(path.glob("*.npy"))


def _pairs(folder: Path) -> Sequence[tuple[Path, Path]]:
    xs, ys = (sorted(folder.glob(f"{part}*.npy")) for part in "xy")
    if not xs or [p.name[1:] for p in xs] != [p.name[1:] for p in ys]:
        names = [p.name for p in sorted(folder.glob("*.npy"))][:8]
        raise DataError(
            f"{folder} holds {', '.join(names) or 'no .npy file'}",
            "x.npy and y.npy, or x-00.npy, x-01.npy, ... and as many y-00.npy, y-01.npy, ...",
        )
    numbers = {int(n) for p in xs if (n := p.stem[1:].lstrip("-_")).isdecimal()}
    first = min(numbers, default=2)  # larger ones are dates, of which some may be missing
    if first < 2 and (gaps := {*range(first, max(numbers))} - numbers):
        raise DataError(
            f"{folder} holds no x and y of number {min(gaps)}", f"all up to {xs[-1].name}"
        )
    return list(zip(xs, ys, strict=True))


def _opened(x_path: Path, y_path: Path) -> tuple[_File, _File]:
    x, y = _header(x_path), _header(y_path)
    if x.shape[0] != y.shape[0]:
        raise DataError(
            f"{x_path.name} has {x.shape[0]} rows, {y_path.name} {y.shape[0]}", "as many"
        )
    return x, y


def _header(path: Path) -> _File:
    """What a .npy file says of itself; nothing else of it is read, and nothing is unpickled."""
    with reading(path, "a .npy file"):
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    check_numeric(path.name, mapped.dtype)
    if not mapped.flags.c_contiguous:
        raise DataError(f"{path.name} lies column by column", "rows one after the other")
    if not mapped.ndim or not mapped.size:
        raise DataError(f"{path.name} has shape {mapped.shape}", "(rows, ...), none of them 0")
    return _File(path, mapped.offset, mapped.shape, mapped.dtype)


def _read(file: _File, start: int, out: np.ndarray) -> None:
    """Fill `out` with the rows from `start` on."""
    with file.path.open("rb", buffering=0) as stream:
        stream.seek(file.offset + start * file.width)
        left = memoryview(out.reshape(-1).view(np.uint8).data)
        while len(left):
            count = stream.readinto(left)
            if not count:
                found = f"{file.path.name} ends {len(left)} bytes too early"
                raise DataError(found, f"{file.shape[0]} rows, as when it was opened")
            left = left[count:]


def _tensor(array: np.ndarray) -> Tensor:
    """As a tensor, in a type and an order of bytes that torch knows."""
    native = array.dtype.newbyteorder("=")
    kind = native.kind
    if kind == "u" and native.itemsize > 1:
        native = np.dtype(np.int64)
    elif kind == "f" and native.itemsize > 8:
        native = np.dtype(np.float64)
    return torch.from_numpy(array.astype(native, copy=False))
