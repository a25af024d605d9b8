"""What is coded: independent normals, seen from a standard normal prior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .normals import candidates

Doubles = NDArray[np.float64]

ROWS = 2048  # candidates in memory at once


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

    @cached_property
    def bound(self) -> float:
        r"""``sup log q/p`` in nats, infinite where a scale is 1 or more and its mean not 0:

        .. math:: \sum_i \frac{μ_i^2}{2 (1 - σ_i^2)} - \log σ_i.
        """
        wide = self.scale >= 1
        if (wide & (self.loc != 0)).any() or (self.scale > 1).any():
            return float("inf")
        loc, scale = self.loc[~wide], self.scale[~wide]
        return float((loc * loc / (2 * (1 - scale * scale)) - np.log(scale)).sum())

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
