"""Codes of draws: which candidate is sent, and how its index is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .integers import BitReader, BitWriter
from .target import ROWS, Target

MOST_BITS = 24
"""Bits of an index: 2^24 candidates of 50 weights take some ten seconds."""


class MinimalRandom:
    r"""The index is drawn by the importance weights of ``2^bits`` candidates of the prior,

    .. math:: P(k) \propto \frac{q(w_k)}{p(w_k)}, \qquad k = 1 \dots 2^b,

    and written with b bits. With :math:`b \ln 2 = KL + t` nats the expectation of a function under
    the law of what is sent is off by about :math:`e^{-t/4}` and the mass of q where
    ``log q/p`` exceeds the KL by t/2 (theorem 3.2 there).

    References:
        Havasi, Peharz, Hernández-Lobato 2019, Minimal random code learning, arXiv:1810.00440.
    """

    def choose(self, target: Target, bits: int, noise: np.random.Generator) -> int:
        """The index of the candidate that is sent, from 0, of 2^bits at most; the noise is that of
        the sender alone."""
        best, index = -np.inf, 0
        for rows in _pieces(bits):
            # The largest of log-weights with Gumbel noise is a draw by the weights, in one pass.
            found = target.log_ratios(rows) + noise.gumbel(size=len(rows))
            own = int(found.argmax())
            if found[own] > best:
                best, index = float(found[own]), rows.start + own
        return index

    def write(self, indices: Sequence[int], bits: int, out: BitWriter) -> None:
        """Append the indices of blocks."""
        for index in indices:
            out.fixed(index, bits)

    def read(self, count: int, bits: int, source: BitReader) -> list[int]:
        """The inverse of :meth:`write`; :class:`DamagedBits` if there are not so many."""
        return [source.fixed(bits) for _ in range(count)]


class OrderedRandom:
    r"""Minimal random coding whose Gumbel noise is in decreasing order:

    .. math:: k = \arg\max_k \log\frac{q(w_k)}{p(w_k)} - \log T_k, \qquad
              T_k = \sum_{j \le k} \frac{N}{N - j + 1} E_j, \quad E_j \sim Exp(1), \quad N = 2^b.

    Candidates are exchangeable, so the law of what is sent is that of :class:`MinimalRandom` with
    as many of them; but small indices are likelier, and the entropy of the index is about
    ``KL + log2(KL + 1)`` bits however many candidates there are. It is written by a Huffman code of
    its size.

    References:
        Theis, Yosri 2022, Algorithms for the communication of samples, arXiv:2110.12805.
    """

    def choose(self, target: Target, bits: int, noise: np.random.Generator) -> int:
        best, index, time = -np.inf, 0, 0.0
        for rows in _pieces(bits):
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


def _pieces(bits: int) -> Iterator[range]:
    """All candidates, so many at once that memory stays bounded."""
    for start in range(0, 2**bits, ROWS):
        yield range(start, min(start + ROWS, 2**bits))


Code = MinimalRandom | OrderedRandom

CODES: dict[str, Code] = {"minimal-random": MinimalRandom(), "ordered-random": OrderedRandom()}
"""The codes by their words."""

WORDS = (*CODES, "a-star", "greedy-rejection")
"""All that files were written by, which say it by the place here; the last two are
read as the second is, and no longer written."""
