"""Greedy rejection coding of single weights, whose prior can be listed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import Code, Proposals, pieces
from .integers import BitReader, BitWriter

__all__ = ["GreedyRejection"]


class GreedyRejection(Code):
    r"""Candidates are accepted as early as q allows; what is accepted is a draw from q.

    Over equally likely values of the prior, candidate k is accepted with probability
    :math:`α_k / ((1 - A_{k-1}) p)` where

    .. math:: α_k = \min(q - q_{k-1}, \ (1 - A_{k-1}) p), \qquad q_k = q_{k-1} + α_k,
              \quad A_k = \sum q_k.

    Where the limit of ``2^bits`` candidates is not met there is no bias, but every value has to be
    looked at in every step: of use for blocks of one weight, where what is added to the KL,
    ``2 log2(KL + 1) + O(1)`` bits, is added for each weight.

    References:
        Harsha, Jain, McAllester, Radhakrishnan 2010, The communication complexity of correlation;
        arXiv:1810.00440, appendix A.
    """

    word = "greedy-rejection"

    def choose(self, target: Proposals, bits: int, noise: np.random.Generator) -> int:
        ratios = target.atoms()
        weights = np.exp(ratios - ratios.max())
        q = weights / weights.sum()
        p = 1.0 / len(q)
        covered = np.zeros_like(q)
        for rows in pieces(bits):
            for index, place in zip(rows, target.places(rows).tolist(), strict=True):
                left = 1.0 - float(covered.sum())
                alpha = np.minimum(q - covered, left * p)
                if noise.random() * left * p < alpha[place]:
                    return index
                covered += alpha
        return 2**bits - 1

    def write(self, indices: Sequence[int], bits: int, out: BitWriter) -> None:
        out.sizes(indices, bits)

    def read(self, count: int, bits: int, source: BitReader) -> list[int]:
        return source.sizes(count, bits)
