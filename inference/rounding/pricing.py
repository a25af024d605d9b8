r"""Whole multiples of a step, chosen by what they cost to send and by how wrong they are."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_ROUNDS = 20  # of numbers under their code and the code of these numbers
_SETTLED = 1e-4  # share of the cost that a further round has to save


def priced(weights: Tensor, variances: Tensor, price: float) -> tuple[Tensor, float]:
    r"""Weights as whole multiples of a step, at a price of a nat of their code.

    Numbers k and step Δ are sought for which

    .. math:: J = \sum_i \frac{(w_i - k_i Δ)^2}{2 σ_i^2} + λ \sum_i \log\frac{1}{p(k_i)}

    is small: the first sum is what a posterior of these means and variances loses, in nats of its
    density, the second the length of the numbers, in nats, under the code of their own histogram of
    sizes, with a bit for each sign. Weights that were zero before are sent, too: where most are, a
    zero costs little. Nearest numbers and their code are where it begins; then
    every number moves where it costs least, one or two towards zero or to zero, and the code
    follows, until J has settled; no round makes it larger. Where many numbers are fine, J is least
    at

    .. math:: Δ = \sqrt{12 λ \big/ \overline{σ_i^{-2}}},

    since errors spread evenly over a step have the mean square Δ²/12, and a nat is saved
    for each factor of e in the step; from there the step is doubled as long as J falls, so that a
    few weights that are known best do not decide for all.

    Arguments:
        weights: of one layer, of any shape, not all zero. Zeros stay zeros.
        variances: of their posterior, of the same shape; read where weights are not zero.
        price: λ, in nats of J for a nat of the code.

    Returns:
        the weights, of their shape and dtype, each the product of a whole number and the step in
        it; and the step.

    References:
        Chou, Lookabaugh, Gray 1989, "Entropy-constrained vector quantization", IEEE Transactions on
        Acoustics, Speech and Signal Processing 37. A posterior as what an error costs: Louizos,
        Ullrich, Welling 2017, who keep the digits that it knows.
    """
    kept = weights != 0
    w, v = (t[kept].detach().double().cpu().numpy() for t in (weights, variances))
    precisions = 1.0 / v
    step = math.sqrt(12.0 * price / float(precisions.mean()))
    zeros = int((~kept).sum())
    best, least = _numbers(w, precisions, zeros, step, price)
    while best.any():
        numbers, cost = _numbers(w, precisions, zeros, 2 * step, price)
        if cost >= least:
            break
        best, least, step = numbers, cost, 2 * step
    found = weights.detach().clone()
    step = float(np.float32(step))
    found[kept] = weights.new_tensor(step) * weights.new_tensor(best)
    return found, step


def _numbers(
    w: Floats, precisions: Floats, zeros: int, step: float, price: float
) -> tuple[Ints, float]:
    """Numbers for one step, and J with what so many zeros cost."""
    nearest = np.rint(np.abs(w) / step).astype(np.int64)
    candidates = [nearest, np.maximum(nearest - 1, 0), np.maximum(nearest - 2, 0), 0 * nearest]
    wrong = [0.5 * precisions * (np.abs(w) - step * c) ** 2 for c in candidates]
    sizes = nearest
    cost = math.inf
    for _ in range(_MOST_ROUNDS):
        nats = _code(sizes, zeros, int(nearest.max()))
        costs = np.stack([d + price * nats[c] for c, d in zip(candidates, wrong, strict=True)])
        best = costs.argmin(0)
        sizes = np.stack(candidates)[best, np.arange(len(w))]
        before, cost = cost, float(costs.min(0).sum())
        cost += price * zeros * float(nats[0]) if zeros else 0.0
        if cost > (1 - _SETTLED) * before:
            break
    return np.where(w < 0, -sizes, sizes), cost


def _code(sizes: Ints, zeros: int, most: int) -> Floats:
    """Nats of each size up to the most, and its sign, under the histogram of these and further
    zeros; infinitely many where none occurs."""
    counts = np.bincount(sizes, minlength=most + 1)
    counts[0] += zeros
    with np.errstate(divide="ignore"):
        nats = np.log(counts.sum()) - np.log(counts)
    nats[1:] += math.log(2)
    return nats
