"""Minimal random coding: a draw from the importance weights of a fixed number of candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .integers import BitReader, BitWriter
from .relative_entropy import Code, Proposals, pieces

__all__ = ["MinimalRandom"]


class MinimalRandom(Code):
    r"""The index is drawn by the importance weights of ``2^bits`` candidates of the prior,

    .. math:: P(k) \propto \frac{q(w_k)}{p(w_k)}, \qquad k = 1 \dots 2^b,

    and written with b bits. With :math:`b \ln 2 = KL + t` nats the expectation of a function under
    the law of what is sent is off by about :math:`e^{-t/4}` and the mass of q where
    ``log q/p`` exceeds the KL by t/2 (theorem 3.2 there).

    References:
        Havasi, Peharz, Hernández-Lobato 2019, Minimal random code learning, arXiv:1810.00440.
    """

    word = "minimal-random"

    def choose(self, target: Proposals, bits: int, noise: np.random.Generator) -> int:
        best, index = -np.inf, 0
        for rows in pieces(bits):
            # The largest of log-weights with Gumbel noise is a draw by the weights, in one pass.
            found = target.log_ratios(rows) + noise.gumbel(size=len(rows))
            own = int(found.argmax())
            if found[own] > best:
                best, index = float(found[own]), rows.start + own
        return index

    def write(self, indices: Sequence[int], bits: int, out: BitWriter) -> None:
        for index in indices:
            out.fixed(index, bits)

    def read(self, count: int, bits: int, source: BitReader) -> list[int]:
        return [source.fixed(bits) for _ in range(count)]
