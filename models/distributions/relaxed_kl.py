"""Divergences between relaxed choices at one temperature, from their logits alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ...data import PyroccamError


def relaxed_categorical_kl(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    r"""KL between two Gumbel-Softmax laws of equal temperature, whatever that is: ``(*batch)``.

    Let α, β be the weights of q and p, :math:`r_i = β_i / α_i`. A draw of q at temperature T has
    :math:`α_i γ_i^{-T} ∝ E_i` with independent :math:`E_i \sim Exp(1)`; T cancels in the ratio of
    the densities, and

    .. math:: KL = -\sum_i \log r_i - K ψ(K) + K \, E \log \sum_i r_i E_i.

    The last mean is known in closed form, with the weights :math:`\prod_{j≠i} r_i / (r_i - r_j)`,
    which cancel catastrophically where rates meet. Instead, by Frullani's integral,
    :math:`\log S = \int_0^∞ (e^{-t} - e^{-St}) dt / t`, for the sum above and for
    :math:`c \sum_i E_i`, whose mean logarithm is :math:`\log c + ψ(K)`, with :math:`t = e^u / c`:

    .. math:: KL = \sum_i \log \frac{c}{r_i} - K \int_{-∞}^∞ \Big( \prod_i \frac{1}{1 + e^u r_i / c}
              - \frac{1}{(1 + e^u)^K} \Big) du, \qquad c = \max_i r_i.

    The integrand lies between 0 and 1, vanishes as :math:`K e^u` and :math:`e^{-u}` whatever r
    is, and has a Fourier transform of at most :math:`2 |Γ(iω)|`. So the trapezoid rule of step h
    is wrong by at most :math:`4 \sqrt h \, e^{-π²/h}`. Here :math:`π² / h` and the length of the
    tails are -log eps of the dtype. The KL is then off by 1e-15 K or 1e-15 of itself in float64 and
    by 3e-7 K or 3e-7 of itself in float32, for ratios of 1 to e^80. It is 0 where q = p.

    The KL between the discrete choices, sometimes put in its place, is smaller, so it does not
    give a bound where the draws are relaxed.

    Arguments:
        q_logits, p_logits: ``(*batch, K)``, broadcast, each up to a constant. All derivatives.

    References:
        Derived. For the laws: Maddison, Mnih, Teh 2017, arXiv:1611.00712; Jang, Gu, Poole 2017,
        arXiv:1611.01144 (who put the discrete KL).

    Example:
        >>> relaxed_categorical_kl(torch.tensor([1.0, 0.0, -1.0]), torch.zeros(3))
        tensor(0.7155)
    """
    if q_logits.shape[-1] != p_logits.shape[-1]:
        raise PyroccamError(
            f"choices among {q_logits.shape[-1]} and {p_logits.shape[-1]}", "of one K"
        )
    log_r = p_logits - q_logits  # and a constant
    k = log_r.shape[-1]
    log_r = log_r - log_r.detach().amax(-1, keepdim=True)  # any constant has the same derivatives
    tail = -math.log(torch.finfo(log_r.dtype).eps)
    step = math.pi**2 / tail
    below, above = math.ceil((tail + math.log(k)) / step), math.ceil(tail / step)
    u = step * torch.arange(-below, above + 1, dtype=log_r.dtype, device=log_r.device)
    u = u.reshape(-1, *(1 for _ in log_r.shape))
    factors = logsigmoid(-u - log_r)  # of the product
    excess = factors - logsigmoid(-u)  # over those of equal rates: zero or more
    integrand = factors.sum(-1).exp() * -torch.expm1(-excess.sum(-1))
    return -log_r.sum(-1) - k * step * integrand.sum(0)


def relaxed_bernoulli_kl(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    r""":func:`relaxed_categorical_kl` of two alternatives, elementwise in the log-odds.

    .. math:: 2 (x \coth x - 1), \qquad x = (\log α - \log β) / 2,

    the KL between logistic variables of equal scale. Near 0 by Lambert's continued fraction
    :math:`x \coth x - 1 = x² / (3 + x² / (5 + …))`, exact to rounding in value and slope.

    Arguments:
        q_logits, p_logits: ``(*batch)``, broadcast.

    References:
        Derived.

    Example:
        >>> relaxed_bernoulli_kl(torch.tensor([0.0, 2.0]), torch.tensor(0.0))
        tensor([0.0000, 0.6261])
    """
    x = 0.5 * (q_logits - p_logits)
    near = x.abs() < 1.0
    square = x.square().clamp(max=1.0)
    fraction = square / 17.0
    for odd in (15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        fraction = square / (odd + fraction)
    far = torch.where(near, torch.ones_like(x), x)  # no 0 / 0 in the derivative
    return 2.0 * torch.where(near, fraction, far / far.tanh() - 1.0)
