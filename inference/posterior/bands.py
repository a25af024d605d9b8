"""Bands of targets: a mean, how unsure the network is of it, and how unsure of a row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Bands(NamedTuple):
    """Moments of a predictive distribution, each ``(N, T)``.

    Attributes:
        mean: of the target.
        epistemic: standard deviation of the mean over networks, or depths: what more data would
            take away.
        total: standard deviation of a row, noise included.
    """

    mean: Tensor
    epistemic: Tensor
    total: Tensor


def mixture_bands(
    outputs: Tensor,
    weights: Tensor,
    noise: Tensor,
    y_mean: Tensor | None = None,
    y_std: Tensor | None = None,
) -> Bands:
    r"""Bands of a mixture of distributions with means :math:`m_s` and variances :math:`σ_s^2`.

    By the law of total variance :math:`V[y] = V[m] + E[σ^2]`, with
    :math:`V[m] = \sum_s w_s (m_s - \bar m)^2` around :math:`\bar m = \sum_s w_s m_s`.

    Arguments:
        outputs: means of the components, ``(S, N, T)``, standardised as the targets are.
        weights: of the components, ``(S,)``, of sum one.
        noise: σ, of all ``(T,)`` or of each ``(S, N, T)``, standardised.
        y_mean, y_std: ``(T,)``, to give the result in original units; left out, it is standardised.

    Returns:
        Moments in float64.
    """
    w, m = weights.detach().double(), outputs.detach().double()
    mean = torch.einsum("s,snt->nt", w, m)
    # Around the mean: the difference of two large squares would lose the digits of a small one.
    variance = torch.einsum("s,snt->nt", w, (m - mean).square())
    noise = noise.detach().double().square().expand(m.shape)
    epistemic = variance.sqrt()
    total = (variance + torch.einsum("s,snt->nt", w, noise)).sqrt()
    if y_std is not None:
        mean, epistemic, total = (t * y_std.double() for t in (mean, epistemic, total))
    if y_mean is not None:
        mean = mean + y_mean.double()
    return Bands(mean, epistemic, total)
