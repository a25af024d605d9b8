"""The idx format of the MNIST family: read straight from the `.gz`, which stays as it is."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import DataError, read_bytes

_TIMES = 14
"""Bytes that a data set takes for each of an image while it is made: the file, the array, and in
float32 all images, those that train and those that validate, and both once they are scaled."""


def find_idx(folder: Path, stem: str) -> Path | None:
    """The file `stem` in `folder`, unpacked or as `.gz`; None if neither is there."""
    for path in (folder / stem, folder / f"{stem}.gz"):
        if path.is_file():
            return path
    return None


def read_idx(path: Path, dims: int) -> Tensor:
    """Reads an array of bytes.

    The header is big-endian: two zero bytes, the number type (8 for unsigned bytes), the
    number of dimensions, then each dimension in four bytes. The values follow in C order.
    """
    content = read_bytes(path, _TIMES)
    start = 4 + 4 * dims
    if len(content) < start:
        raise DataError(f"{path} holds {len(content)} bytes", f"a header of {start}")
    magic, *shape = struct.unpack(f">{1 + dims}I", content[:start])
    if magic != 0x800 + dims:
        expected = f"0x{0x800 + dims:08x}, {dims}-dimensional unsigned bytes in idx format"
        raise DataError(f"{path} begins with 0x{magic:08x}", expected)
    if len(content) - start != math.prod(shape):
        expected = f"{math.prod(shape)}, since its header says {tuple(shape)}"
        raise DataError(f"{path} holds {len(content) - start} values", expected)
    array = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(array.copy())  # bytes are read-only, tensors are not
