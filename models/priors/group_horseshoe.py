"""Group horseshoe: half-Cauchy scales of layers and groups, each a product of two factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Gamma, InverseGamma, LogNormal, register_kl

from ...data import Between
from .base import Latent, LayerShape, WeightPrior, independent

Tau0 = Annotated[float, Between(1e-15, 1e15)]
"""The range in which 1/τ0² is a float32 number, with room for the products of a KL."""


@dataclass(frozen=True)
class GroupHorseshoe(WeightPrior):
    r"""``w = s z w̃`` with ``s ~ C⁺(0, τ0)`` for the layer and ``z ~ C⁺(0, 1)`` for each group.

    A half-Cauchy variable is the root of a Gamma(½) times an InverseGamma(½) one, and of these
    factors the KL of a log-normal posterior is known in closed form:

    ============  ===================  =============  =====
    latent        prior                event shape    power
    ============  ===================  =============  =====
    ``weight``    N(0, 1)              the weight's   none
    ``bias``      N(0, 1)              the bias's     none
    ``global.a``  Gamma(½, scale τ0²)  ``()``         ½
    ``global.b``  InverseGamma(½, 1)   ``()``         ½
    ``scale.a``   Gamma(½, scale 1)    ``(groups,)``  ½
    ``scale.b``   InverseGamma(½, 1)   ``(groups,)``  ½
    ============  ===================  =============  =====

    The second argument of Gamma is a *scale*; Pyro's takes the rate 1/τ0². Some public code uses
    ``log τ0`` and ``exp(...) / τ0`` in the KL, which is right at τ0 = 1 only.

    A guide begins with scales whose product is 1, so that the network is as it was: ``global.a``
    and ``scale.a`` lie at the minimum of their KL (log θ - 1 - log 2), the b factors, whose tails
    are heavy, at minus that. Standard deviations begin at 0.1, not at the √2 of the minimum, in
    whose noise nothing would be learnt.

    Arguments:
        tau0: scale of the layers' scales, between 1e-15 and 1e15 (1/τ0² must fit float32).

    References:
        Louizos, Ullrich, Welling 2017, arXiv:1705.08665; Carvalho, Polson, Scott 2010, The
        horseshoe estimator for sparse signals, Biometrika 97.
    """

    words = "ghs:1e-5"

    tau0: Tau0 = 1e-5

    def numbers(self, layer: LayerShape) -> dict[str, float]:
        return {"concentration": 0.5, "rate": self.tau0**-2}

    def latents(self, own: Any) -> Mapping[str, Latent]:
        half, one, groups, none = own.concentration, own.one, own.layer.group_shape, torch.Size()
        gamma, inverse = partial(independent, dist.Gamma), partial(independent, dist.InverseGamma)
        a, b = 2.0 * math.log(self.tau0) - 1.0 - math.log(2.0), 1.0 + math.log(2.0)
        return {
            "weight": own.standard(own.layer.weight),
            "global.a": Latent(gamma(none, half, own.rate), 0.5, (a, 0.1), unbounded=True),
            "global.b": Latent(inverse(none, half, one), 0.5, (-a, 0.1)),
            "scale.a": Latent(gamma(groups, half, one), 0.5, (-b, 0.1), unbounded=True),
            "scale.b": Latent(inverse(groups, half, one), 0.5, (b, 0.1)),
            **own.standard_bias(),
        }


def _rest(q: LogNormal, p: Gamma | InverseGamma) -> Tensor:
    r"""The part that both KLs share: :math:`\log Γ(a) - \log scale - ½ (1 + \log 2π)`."""
    constant = 0.5 * (1.0 + math.log(2.0 * math.pi))
    return torch.lgamma(p.concentration) - q.scale.log() - constant


@register_kl(LogNormal, Gamma)
def _kl_log_normal_gamma(q: LogNormal, p: Gamma) -> Tensor:
    """The KL in nats, of the batch shape. With y = loc + log rate everything is of the size of one,
    however small the scale 1 / rate is."""
    y = q.loc + p.rate.log()
    return (y + 0.5 * q.scale.square()).exp() - p.concentration * y + _rest(q, p)


@register_kl(LogNormal, InverseGamma)
def _kl_log_normal_inverse_gamma(q: LogNormal, p: InverseGamma) -> Tensor:
    """The KL in nats, of the batch shape: that of the reciprocal to a Gamma of the same
    parameters."""
    y = p.rate.log() - q.loc
    return (y + 0.5 * q.scale.square()).exp() - p.concentration * y + _rest(q, p)
