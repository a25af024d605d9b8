"""Weights without a mean: distributions that are symmetric about zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import constraints, register_kl

from .log_uniform import LOG_DENSITY_AT_ONE, ImproperLogUniform


class _Scaled:
    """What is made of a scale alone."""

    scale: Tensor

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        made: Any = type(self)
        return made(self.scale.expand(torch.Size(batch_shape)), validate_args=False)


class CentredNormal(_Scaled, dist.Normal):
    """``N(0, scale²)``; that the mean is zero is known before it is looked at.

    Arguments:
        scale: ``(*batch)``, positive.
    """

    def __init__(self, scale: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(torch.zeros_like(scale), scale, validate_args=validate_args)


class CentredUniform(_Scaled, dist.Uniform):
    """Uniform in ``(-scale, scale)``, of variance ``scale² / 3``.

    Arguments:
        scale: half the width, ``(*batch)``, positive.

    References:
        Neklyudov et al. 2018, arXiv:1803.03764 (their text; their code draws in half that range).
    """

    def __init__(self, scale: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(-scale, scale, validate_args=validate_args)
        self.scale = scale


class Rademacher(_Scaled, TorchDistribution):
    r"""``scale`` or ``-scale``, each with probability one half: of variance ``scale²``.

    Two points have no density on the line. Its ``log_prob`` is that of a narrow band around both,
    of fixed width *in proportion to the scale*, up to a constant: :math:`-\log|w|` less 2.054, as
    of :class:`~pyroccam.models.distributions.log_uniform.ImproperLogUniform`. So a KL to a prior is
    right in all that depends on the scale, and known up to a constant, as against an improper
    prior.

    Arguments:
        scale: ``(*batch)``, positive.

    References:
        Neklyudov et al. 2018, arXiv:1803.03764 (their text; their code has half these values).
    """

    arg_constraints = {"scale": constraints.positive}  # noqa: RUF012 (as torch declares it)
    support = constraints.real
    has_rsample = True

    def __init__(self, scale: Tensor, validate_args: bool | None = None) -> None:
        self.scale = scale
        super().__init__(scale.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return torch.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``(*sample_shape, *batch)``, differentiable in the scale."""
        shape = self._extended_shape(torch.Size(sample_shape))
        half = torch.full(shape, 0.5, dtype=self.scale.dtype, device=self.scale.device)
        return self.scale * (2.0 * torch.bernoulli(half) - 1.0)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``, up to the constant above; ``value`` is one of the two."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return (LOG_DENSITY_AT_ONE - self.scale.log()).expand(shape)


# Of a scale family E_q[log q - log p] does not depend on the scale, where p(w) ∝ 1/|w|.


@register_kl(CentredNormal, ImproperLogUniform)
@register_kl(Rademacher, ImproperLogUniform)
def _kl_log_uniform(q: CentredNormal | Rademacher, p: ImproperLogUniform) -> Tensor:
    """Zero, ``(*batch)``: the constant of the density is chosen so; two points have the same."""
    return q.scale.new_zeros(torch.broadcast_shapes(q.batch_shape, p.batch_shape))


@register_kl(CentredUniform, ImproperLogUniform)
def _kl_uniform_log_uniform(q: CentredUniform, p: ImproperLogUniform) -> Tensor:
    r"""``(*batch)``: :math:`-\log 2σ + E\log|w| + 2.054 = 2.054 - \log 2 - 1`."""
    value = -math.log(2.0) - 1.0 - LOG_DENSITY_AT_ONE
    return q.scale.new_full(torch.broadcast_shapes(q.batch_shape, p.batch_shape), value)


@register_kl(Rademacher, TorchNormal)
def _kl_rademacher_normal(q: Rademacher, p: TorchNormal) -> Tensor:
    r"""``(*batch)``: :math:`-\log σ - 2.054 + \log s + ½ \log 2π + (σ² + μ²) / 2 s²`, up to the
    constant of :class:`Rademacher`."""
    distance = (q.scale.square() + p.loc.square()) / (2.0 * p.scale.square())
    normaliser = p.scale.log() + 0.5 * math.log(2.0 * math.pi)
    return LOG_DENSITY_AT_ONE - q.scale.log() + normaliser + distance
