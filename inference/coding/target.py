"""Independent normals, seen from a standard normal prior, and which draw of it is sent of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .normals import candidates

Doubles = NDArray[np.float64]

MOST_BITS = 24
"""Bits of an index: 2^24 candidates of 50 weights take some ten seconds."""

_ROWS = 2048  # candidates in memory at once


@dataclass(frozen=True)
class Target:
    """The posterior of the weights of a block, divided by the deviation of their prior.

    Arguments:
        loc, scale: means and standard deviations ``(D,)``, double precision.
        seed: of the candidates, which sender and receiver share.
        block: its number.
    """

    loc: Doubles
    scale: Doubles
    seed: int
    block: int

    @cached_property
    def kl(self) -> float:
        """``KL(q || p)`` in nats, ``Σ ½ (μ² + σ² - 1) - log σ``."""
        loc, scale = self.loc, self.scale
        return float((0.5 * (loc * loc + scale * scale - 1) - np.log(scale)).sum())

    def log_ratios(self, rows: range) -> Doubles:
        """``log q/p`` of candidates, ``(len(rows),)``, in nats."""
        z = candidates(self.seed, self.block, rows, len(self.loc))
        # log q - log p is quadratic: two products with all candidates, and nothing of their size.
        precision = 1 / (self.scale * self.scale)
        square = (0.5 * (1 - precision)).astype(np.float32)
        linear = (self.loc * precision).astype(np.float32)
        constant = float((-np.log(self.scale) - 0.5 * self.loc * self.loc * precision).sum())
        return ((z * z) @ square + z @ linear).astype(np.float64) + constant

    def value(self, index: int) -> NDArray[np.float32]:
        """The candidate of an index, ``(D,)``: what the receiver computes."""
        return candidates(self.seed, self.block, range(index, index + 1), len(self.loc))[0]

    def choose(self, bits: int, noise: np.random.Generator | None) -> int:
        r"""The index of the candidate that is sent: drawn by the importance weights of ``2^bits``
        candidates of the prior,

        .. math:: P(k) \propto \frac{q(w_k)}{p(w_k)}, \qquad k = 0 \dots 2^b - 1.

        With :math:`b \ln 2 = KL + t` nats the expectation of a function under the law of what is
        sent is off by about :math:`e^{-t/4}` and the mass of q where ``log q/p`` exceeds the KL by
        t/2 (theorem 3.2 there).

        Arguments:
            noise: that of the sender alone. ``None`` for the candidate with the largest weight: it
                is closer to the means than a draw, and not closer to the prior's, as the most
                probable one is.

        References:
            Havasi, Peharz, Hernández-Lobato 2019, Minimal random code learning, arXiv:1810.00440.
        """
        best, index = -np.inf, 0
        for start in range(0, 2**bits, _ROWS):
            rows = range(start, min(start + _ROWS, 2**bits))
            found = self.log_ratios(rows)
            if noise is not None:  # the largest sum is a draw by the weights, in one pass
                found = found + noise.gumbel(size=len(rows))
            own = int(found.argmax())
            if found[own] > best:
                best, index = float(found[own]), start + own
        return index
