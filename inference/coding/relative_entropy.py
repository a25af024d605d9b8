"""The interface of codes: which candidate is sent, and how its index is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from .integers import BitReader, BitWriter
from .target import ROWS

__all__ = ["MOST_BITS", "Code", "Proposals", "pieces"]

MOST_BITS = 24
"""Bits of an index: 2^24 candidates of 50 weights take some ten seconds."""


class Proposals(Protocol):
    """Candidates under the prior that sender and receiver share, of which a code sees only this."""

    @property
    def bound(self) -> float:
        """``sup log q/p`` in nats, or infinity."""

    def log_ratios(self, rows: range) -> NDArray[np.float64]:
        """``log q/p`` of candidates, in nats."""


class Code(ABC):
    """Sends the index of a candidate of which the law is close to q, or is q.

    Attributes:
        word: by which it is asked for.
    """

    word: ClassVar[str]

    @abstractmethod
    def choose(self, target: Proposals, bits: int, noise: np.random.Generator) -> int:
        """The index of the candidate that is sent, from 0.

        Arguments:
            target: its candidates.
            bits: at most 2^bits candidates are looked at.
            noise: of the sender alone.
        """

    @abstractmethod
    def write(self, indices: Sequence[int], bits: int, out: BitWriter) -> None:
        """Append the indices of blocks.

        Arguments:
            bits: as for :meth:`choose`.
        """

    @abstractmethod
    def read(self, count: int, bits: int, source: BitReader) -> list[int]:
        """The inverse of :meth:`write`.

        Raises:
            DamagedBits: if there are not so many.
        """


def pieces(bits: int) -> Iterator[range]:
    """All candidates, so many at once that memory stays bounded."""
    for start in range(0, 2**bits, ROWS):
        yield range(start, min(start + ROWS, 2**bits))
