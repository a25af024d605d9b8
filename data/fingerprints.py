"""Fingerprints of data, bit for bit: one fingerprint of a whole set, and which rows are in it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .errors import DataError

_BLOCK = 2048
"""Rows handled at a time, so that no copy of an image set is made."""


def fingerprint(**parts: Tensor | str) -> str:
    """A fingerprint of tensors and texts, 32 hexadecimal digits, by names, shapes, number types and
    bytes.

    Nothing is computed from the numbers, so it is the same on every machine.
    """
    state = hashlib.blake2b(digest_size=16)
    for name, value in parts.items():
        if isinstance(value, str):
            state.update(f"{name}:{len(value)}:{value};".encode("utf-8", "surrogatepass"))
            continue
        state.update(f"{name}:{tuple(value.shape)}:{value.dtype};".encode())
        add_rows(state, value)
    return state.hexdigest()


def add_rows(state: Any, rows: Tensor) -> None:
    """The bytes of rows (B, ...) for a hash, which rows that follow go on with."""
    for block in rows.detach().split(_BLOCK):
        if block.numel():
            block = block.cpu().contiguous()
            state.update(block.view(-1).view(torch.uint8).numpy())


def known_rows(rows: Tensor, known: list[Tensor]) -> Tensor:
    """Which rows (B, ...) are among known ones (N, ...), bit for bit: truth values (B,) on the
    CPU."""
    if rows.ndim < 2 or math.prod(rows.shape[1:]) != math.prod(known[0].shape[1:]):
        raise DataError(
            f"rows of shape {tuple(rows.shape[1:])}", f"{tuple(known[0].shape[1:])}, as in training"
        )
    there = {key for part in known for key in _keys(part.to(known[0].dtype))}
    return torch.tensor([key in there for key in _keys(rows.to(known[0].dtype))], dtype=torch.bool)


def _keys(x: Tensor) -> Iterator[bytes]:
    """A hash of the bytes of each row."""
    for block in x.detach().split(_BLOCK):
        values = block.cpu().flatten(1).contiguous().view(torch.uint8).numpy()
        yield from (hashlib.blake2b(row, digest_size=16).digest() for row in values)
