"""A code that tries candidates in an order, so that the first are sent more often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .integers import BitReader, BitWriter
from .relative_entropy import Code, Proposals, pieces

__all__ = ["OrderedRandom"]


class OrderedRandom(Code):
    r"""Minimal random coding whose Gumbel noise is in decreasing order:

    .. math:: k = \arg\max_k \log\frac{q(w_k)}{p(w_k)} - \log T_k, \qquad
              T_k = \sum_{j \le k} \frac{N}{N - j + 1} E_j, \quad E_j \sim Exp(1), \quad N = 2^b.

    Candidates are exchangeable, so the law of what is sent is that of :class:`MinimalRandom
    <pyroccam.inference.coding.minimal_random.MinimalRandom>` with as many of them; but
    small indices are likelier, and the entropy of the index is about ``KL + log2(KL + 1)`` bits
    however many candidates there are. It is written by a Huffman code of its size.

    References:
        Theis, Yosri 2022, Algorithms for the communication of samples, arXiv:2110.12805.
    """

    word = "ordered-random"

    def choose(self, target: Proposals, bits: int, noise: np.random.Generator) -> int:
        best, index, time = -np.inf, 0, 0.0
        for rows in pieces(bits):
            left = 2.0**bits - np.arange(rows.start, rows.stop)
            times = time + np.cumsum(noise.exponential(size=len(rows)) * (2.0**bits / left))
            time = float(times[-1])
            found = target.log_ratios(rows) - np.log(times)
            own = int(found.argmax())
            if found[own] > best:
                best, index = float(found[own]), rows.start + own
            if best >= target.bound - np.log(time):
                break  # no later candidate can do better
        return index

    def write(self, indices: Sequence[int], bits: int, out: BitWriter) -> None:
        out.sizes(indices, bits)

    def read(self, count: int, bits: int, source: BitReader) -> list[int]:
        return source.sizes(count, bits)
