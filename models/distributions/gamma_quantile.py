"""Gamma variables as smooth functions of uniform ones."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

NODES = 64
"""Of the quadrature of the distribution function."""

HALVINGS = 45
"""Of the interval in which the quantile is, in logarithms."""


UNIFORMS = 5
"""Uniform numbers of which a gamma variable is made."""


def gamma_of(uniforms: Tensor, shape: Tensor) -> Tensor:
    r"""A gamma variable of any shape a and rate one, as a function of uniform numbers that has two
    derivatives by a.

    .. math:: Gamma(a) = Gamma(a + 4) \, \prod_{i=0}^{3} U_i^{1 / (a + i)}

    Arguments:
        uniforms: in [0, 1), ``(5, *)``.
        shape: a, positive, ``(*)``.

    Returns:
        ``(*)``; it may underflow to zero where a is small.
    """
    tiny = torch.finfo(uniforms.dtype).eps / 4
    first, *rest = uniforms.clamp(tiny, 1.0 - 2 * tiny)
    log = gamma_quantile(first, shape + (UNIFORMS - 1)).log()
    for i, u in enumerate(rest):
        log = log + u.log() / (shape + i)
    return log.exp()


@cache
def _nodes() -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss and Legendre on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return ((nodes + 1.0) / 2.0).tolist(), (weights / 2.0).tolist()


def gamma_quantile(u: Tensor, shape: Tensor) -> Tensor:
    r"""The quantile z of a gamma distribution of rate one, :math:`F(z; a) = u`, and its first two
    derivatives by the shape a.

    The value is found by halving an interval, with torch's incomplete gamma function, which has no
    derivative by a. The derivatives are those of two steps of Newton's method from there, in which
    F is a quadrature over (0, z).

    Arguments:
        u: in (0, 1), ``(*)``; without a derivative.
        shape: a, ``(*)``, 4 or more: below, powers that are not whole spoil the quadrature.

    Returns:
        z, ``(*)``, in the precision of ``shape``.
    """
    a = shape.detach().double()
    # Within 12 standard deviations of the mean, on the side of zero in logarithms.
    low = a.log() - 12.0 / a.sqrt() - 30.0 / a
    high = (a + 12.0 * a.sqrt() + 40.0).log()
    target = u.detach().double()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = torch.special.gammainc(a, middle.exp()) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    found = ((low + high) / 2).exp()
    start = (a - 12.0 * a.sqrt()).clamp_min(0.0)  # below is less than 1e-30
    level, z, a = _distribution(found, a, start), found, shape.double()
    for _ in range(2):
        density = ((a - 1.0) * z.log() - z - a.lgamma()).exp()
        z = z - (_distribution(z, a, start) - level) / density
    return z.to(shape.dtype)


def _distribution(z: Tensor, a: Tensor, start: Tensor) -> Tensor:
    """F(z; a), by quadrature over (start, z)."""
    nodes, weights = (z.new_tensor(numbers) for numbers in _nodes())
    t = start[..., None] + (z - start)[..., None] * nodes
    logs = (a[..., None] - 1.0) * t.log() - t - a.lgamma()[..., None]
    return (z - start) * (logs.exp() * weights).sum(-1)
