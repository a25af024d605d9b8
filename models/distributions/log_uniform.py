"""The log-uniform density ``1 / |w|``, and what a normal posterior pays for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import constraints, register_kl

from .wrapped import Improper

KL = Literal["exact", "molchanov"]

# E log|m + ε| - E log|ε| = ½ log(1 + v) + r P(s), v = m² / 18, r = v / (1 + v), s = 2 r - 1. Fitted
# for the least greatest error over all m, with the right limit at infinity; lowest power first.
_P = (
    3.4060668303,
    -2.2668205853,
    1.5832826054,
    -0.9981759774,
    0.4361881190,
    0.0191103953,
    -0.1869720002,
    0.0648571332,
    0.0664562839,
    -0.0396686440,
    -0.0149007562,
    0.0109438977,
)

_SLOPE = tuple(2.0 * k * c for k, c in enumerate(_P))[1:]

# -E log|ε| of a standard normal: what k1 of the published approximation stands for.
MEAN_LOG = 0.5 * (math.log(2.0) + 0.5772156649015329)

# log p(w) = -log|w| + LOG_DENSITY_AT_ONE makes E_q[log q - log p] equal to the KL that vanishes
# for α → ∞. An improper density is known up to a factor only, so one may choose it.
LOG_DENSITY_AT_ONE = -0.5 * math.log(2.0 * math.pi * math.e) - MEAN_LOG


def log_uniform_kl(loc: Tensor, scale: Tensor) -> Tensor:
    r"""``KL(N(loc, scale²) || log-uniform)``, elementwise, in nats, zero at ``loc = 0``.

    With :math:`u = 1 / (2 α) = loc² / (2 scale²)` this is

    .. math:: ½ (E_{k \sim Poisson(u)} ψ(½ + k) - ψ(½)), \qquad dKL/du = D(\sqrt u) / \sqrt u

    (D the Dawson function), the mean of :math:`\log|m + ε|` less that of :math:`\log|ε|` for
    :math:`m = loc / scale`. The sum below differs from it by at most 5.6e-7 for all u in float64
    (and by 1e-6 or one rounding of the value in float32); its derivative by at most 1.4e-5 of
    itself for u <= 10, and by 4e-6 per unit of log u anywhere.

    The function is that of a point m on the real axis; a Möbius map takes the axis to a circle, on
    which its Chebyshev (Fourier) series converges fast. :func:`student_t_kl` continues the same
    series to the half plane above.

    Arguments:
        loc, scale: ``(*batch)``, broadcast. ``|loc| / scale`` up to 1e19 in float32.

    References:
        Kingma, Salimans, Welling 2015, arXiv:1506.02557; Molchanov et al. 2017, arXiv:1701.05369,
        approximate it by :func:`molchanov_kl`. Weideman 1994, Computation of the complex error
        function, SIAM J. Numer. Anal. 31, for the map.

    Example:
        >>> log_uniform_kl(torch.tensor([0.0, 1.0]), torch.tensor(1.0))
        tensor([0.0000, 0.4267])
    """
    m = loc / scale
    v = m * m * (1.0 / 18.0)
    r = v / (v + 1.0)
    s = r * 2.0 - 1.0
    p = s * _P[-1] + _P[-2]
    for c in _P[-3::-1]:
        p = p * s + c
    return torch.log1p(v) * 0.5 + r * p


def log_uniform_kl_once(loc: Tensor, scale: Tensor) -> Tensor:
    """:func:`log_uniform_kl` for training: the same values, half the time without a compiler.

    The slope is computed along with the value, and both in place, for autograd would keep every
    term of the polynomial. So there is a first derivative, but *no second*: differentiating twice
    takes the slope for a constant. :func:`log_uniform_kl` has all derivatives.
    """
    ratio = loc / scale
    m = ratio.detach()
    v = m * m * (1.0 / 18.0)
    q = (v + 1.0).reciprocal_()
    r = v * q
    s = (r * 2.0).sub_(1.0)
    p = (s * _P[-1]).add_(_P[-2])
    for c in _P[-3::-1]:
        p.mul_(s).add_(c)
    slope = (s * _SLOPE[-1]).add_(_SLOPE[-2])  # of 2 p
    for c in _SLOPE[-3::-1]:
        slope.mul_(s).add_(c)
    slope.mul_(r).add_(p).mul_(q).add_(0.5).mul_(q).mul_(m).mul_(1.0 / 9.0)
    return p.mul_(r).add_(v.log1p_(), alpha=0.5) + slope * (ratio - m)


def molchanov_kl(loc: Tensor, scale: Tensor) -> Tensor:
    r"""The published approximation of :func:`log_uniform_kl`, elementwise, in nats.

    .. math:: k_1 - k_1 σ(k_2 + k_3 \log α) + ½ \log(1 + 1 / α), \qquad α = scale² / loc²,
              \quad k = (0.63576, 1.87320, 1.48695)

    It is off by up to 0.0094 nats (at log α = -3.5), and its constant for α → 0 by 0.0006.

    Arguments:
        loc, scale: ``(*batch)``, broadcast.

    References:
        Molchanov, Ashukha, Vetrov 2017, arXiv:1701.05369, equation 14.
    """
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    m2 = (loc / scale).square()
    # Published code adds 1e-8 to loc², which depends on units; this keeps log α below 18.4.
    return k1 * torch.sigmoid(k3 * torch.log(m2 + 1e-8) - k2) + 0.5 * torch.log1p(m2)


KLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exact": log_uniform_kl_once,
    "molchanov": molchanov_kl,
}


class ImproperLogUniform(Improper):
    r"""The improper density ``p(w) ∝ 1 / |w|`` on the real line; there are no draws from it.

    Its ``log_prob`` is :math:`-\log|w| - 2.054`. The factor is free; with this one
    :math:`E_q[\log q - \log p]` at draws of a normal q has the mean of the registered KL.

    Arguments:
        batch_shape: of the distribution; event shape ``()``.
        kl: which ``KL(Normal || self)`` is registered: ``"exact"`` (with first derivatives, see
            :func:`log_uniform_kl_once`) or ``"molchanov"``.
        like: a number of the type and device of a value.
    """

    support = constraints.real

    def __init__(
        self, batch_shape: Sequence[int] = (), kl: KL = "exact", like: Tensor | None = None
    ) -> None:
        self.kl, self.like = kl, like
        super().__init__(torch.Size(batch_shape), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``; infinite at zero."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return (LOG_DENSITY_AT_ONE - value.abs().log()).expand(shape)


@register_kl(TorchNormal, ImproperLogUniform)
def _kl_normal_log_uniform(q: TorchNormal, p: ImproperLogUniform) -> Tensor:
    shape = torch.broadcast_shapes(q.batch_shape, p.batch_shape)
    return KLS[p.kl](q.loc, q.scale).expand(shape)
