"""The order of rows that are read in blocks: a function of seed and epoch, in little memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import generator

Places = NDArray[np.int64]
Parts = tuple[Tensor, ...]
"""Inputs (B, ...) and targets (B, ...) of rows, and, if they have some, their weights (B,), in
float64."""
Chunk = tuple[Tensor, ...]
"""Numbers of rows (B,), and their parts."""

MOST_BLOCKS = 2**18
"""Blocks of a data set, at most: whatever is kept for each of them does not grow with N."""


class Piece(NamedTuple):
    """Rows that are in memory together.

    Arguments:
        rows: Their numbers, in the order in which they are read.
        order: Places in `rows`, in the order in which they are given.
        first: The place of the first one in the order of the epoch.
        number: Of the piece.
    """

    rows: Places
    order: Places
    first: int
    number: int


class Shuffle:
    """Shuffles blocks of rows, and then the rows of as many blocks as are held at a time.

    Rows that lie side by side on a disk are read side by side, which is faster by orders of
    magnitude than one by one. The blocks come in a uniformly random order, and so do the rows among
    those that are held: every row comes once in an epoch, but two rows of a block come closer to
    each other than they would in a permutation of all rows. A gradient of B rows out of a piece of
    m blocks is unbiased, as each row is as likely to be in it as any other; its variance is larger
    by about the share of the variance that lies between blocks, times B / m. For rows that lie in
    no order there is no such share, and where blocks are single rows and all of them are held the
    order is a uniform permutation. Rows that are sorted, by their class for one, are to be written
    in random order, once.

    Arguments:
        edges: Rows at which blocks begin, and N (blocks + 1,), increasing from 0.
        held: Rows in memory at a time, about: whole blocks.
    """

    def __init__(self, edges: Places, held: int) -> None:
        self.edges, self.held = edges, max(1, held)
        self.rows = int(edges[-1])

    def pieces(self, seed: int, epoch: int, start: int = 0) -> Iterator[Piece]:
        """Pieces of an epoch, from that on which holds the row at the place `start` in its order.

        Nothing that comes before it is computed, so that an epoch is taken up where it stood.
        """
        blocks = torch.randperm(
            len(self.edges) - 1, generator=generator(seed, f"blocks of epoch {epoch}")
        ).numpy()
        ends = np.diff(self.edges)[blocks].cumsum()
        bounds = [0, *(1 + np.flatnonzero(np.diff((ends - 1) // self.held))).tolist(), len(blocks)]
        for number, (low, high) in enumerate(itertools.pairwise(bounds)):
            if ends[high - 1] <= start:
                continue
            rows = self._rows(blocks[low:high])
            noise = generator(seed, f"rows of piece {number} of epoch {epoch}")
            order = torch.randperm(len(rows), generator=noise).numpy()
            yield Piece(rows, order, int(ends[low - 1]) if low else 0, number)

    def in_order(self) -> Iterator[Places]:
        """All rows as they lie, in pieces."""
        blocks = len(self.edges) - 1
        starts = [0, *(1 + np.flatnonzero(np.diff((self.edges[1:] - 1) // self.held))).tolist()]
        for low, high in zip(starts, [*starts[1:], blocks], strict=True):
            yield np.arange(self.edges[low], self.edges[high])

    def _rows(self, blocks: Places) -> Places:
        starts, sizes = self.edges[blocks], np.diff(self.edges)[blocks]
        before = np.repeat(starts - (sizes.cumsum() - sizes), sizes)
        return np.arange(int(sizes.sum())) + before


def edges_of(rows: int, block: int) -> Places:
    """Edges of blocks of so many rows, or of more where there would be more than
    :data:`MOST_BLOCKS` of them."""
    size = max(1, block, -(-rows // MOST_BLOCKS))
    return np.append(np.arange(0, rows, size), rows)


def cut(
    chunks: Iterator[tuple[Tensor, ...]], place: int, bounds: Sequence[tuple[int, int]]
) -> Iterator[Any]:
    """Batches out of chunks of any sizes: tuples of tensors, as those are.

    Arguments:
        chunks: In the order of an epoch.
        place: Of the first row of the first chunk, in that order.
        bounds: Where each batch begins and ends in it, one after the other.
    """
    chunk, at = next(chunks), bounds[0][0] - place
    for start, end in bounds:
        parts, need = [], end - start
        while need:
            if at >= len(chunk[0]):
                at -= len(chunk[0])
                del chunk  # before the next takes as much
                chunk = next(chunks)
                continue
            count = min(need, len(chunk[0]) - at)
            parts.append(tuple(part[at : at + count] for part in chunk))
            at, need = at + count, need - count
        yield parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))
