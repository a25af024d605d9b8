"""Soft weight-sharing: one mixture of normals, learnt with the weights, that they gather around."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Gamma

from ...data import Between, Positive, Share
from ..distributions import NormalMixture, WithHyperprior
from .base import Latent, LayerPrior, LayerShape, WeightPrior

# The published steps of the means, log-precisions and log-mixing are these multiples of that of the
# weights. Adam moves a parameter by its rate, whatever the parameter's unit: so a parameter is kept
# in units of the multiple, and one rate serves all.
_MEAN_RATE, _LOG_RATE = 0.2, 6.0


@dataclass(frozen=True)
class GaussianMixture(WeightPrior):
    r"""A mixture of normals for all weights of a network, learnt with them. Biases are N(0, 1).

    .. math:: w \sim π_0 N(0, 1/λ_0) + Σ_{k=1}^{K-1} π_k N(μ_k, 1/λ_k), \qquad
        λ_k \sim Gamma(a_k, b_k)

    One component stays at zero, with a proportion that is given; the others learn their means,
    their precisions and how they share the rest. The Gamma densities are of the precisions, and are
    counted once for each mixture, with the weights of the first layer in it. Weights that have
    gathered around the means are set to them by
    :func:`~pyroccam.inference.shrinking.weight_sharing.assign`.

    Made for ``guides.Delta`` with ``kl_weight`` below 1, which multiplies the whole log prior. A
    random posterior needs ``guides.MeanField(model, local=False)``: there is no closed KL. Under
    Adam the means move at 0.2 of the rate of the weights, the logarithms of precisions and
    proportions at 6 times that, as published.

    Arguments:
        components: K, the one at zero included.
        zero: proportion π_0 of the component at zero, in (0, 1).
        spread: the other means begin equally spaced in [-spread, spread].
        scale: standard deviation of all components at the start.
        zero_precision, precision: shape and rate of the Gamma densities of λ_0 and of the others.
        per: what has one mixture: the whole ``"network"``, or each ``"layer"``.

    References:
        Nowlan, Hinton 1992, Simplifying neural networks by soft weight-sharing, Neural Computation
        4; Ullrich, Meeds, Welling 2017, arXiv:1702.04008, for the component at zero, the Gamma
        densities and the numbers.

    Example:
        >>> from pyroccam.models import priors
        >>> priors.GaussianMixture(components=8).for_layer(
        ...     priors.LayerShape("fc", torch.Size([3, 4]), None, 1, False, 4)
        ... )()["weight"].prior.event_shape
        torch.Size([3, 4])
    """

    words = "mixture:16, mixture:16:0.99"

    components: Annotated[int, Between(2)] = 16
    zero: Share = 0.99
    spread: Positive = 0.6
    scale: Positive = 0.25
    zero_precision: Sequence[Positive] = (5e3, 2.0)
    precision: Sequence[Positive] = (250.0, 0.1)
    per: Literal["network", "layer"] = "network"

    @classmethod
    def from_words(cls, argument: str) -> WeightPrior:
        components, colon, zero = argument.partition(":")
        return cls(int(components), float(zero)) if colon else cls(int(components))

    def for_network(self) -> WeightPrior:
        return self if self.per == "layer" else _Shared(self)

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        return _MixtureLayer(layer, _Mixture(self), first=True)


class _Mixture(nn.Module):
    """The learnt part of a mixture; see :data:`_MEAN_RATE` for the units."""

    log_zero: Tensor
    log_rest: Tensor
    zero_loc: Tensor
    shape: Tensor
    rate: Tensor

    def __init__(self, prior: GaussianMixture) -> None:
        super().__init__()
        others = prior.components - 1
        loc = torch.linspace(-prior.spread, prior.spread, others) if others > 1 else torch.zeros(1)
        self.loc = nn.Parameter(loc / _MEAN_RATE)
        start = -2.0 * math.log(prior.scale)
        self.log_precision = nn.Parameter(torch.full((others + 1,), start / _LOG_RATE))
        self.logits = nn.Parameter(torch.zeros(others))
        zero, rest = prior.zero_precision, prior.precision
        for name, values in (
            ("log_zero", [math.log(prior.zero)]),
            ("log_rest", [math.log1p(-prior.zero)]),
            ("zero_loc", [0.0]),
            ("shape", [zero[0], *[rest[0]] * others]),
            ("rate", [zero[1], *[rest[1]] * others]),
        ):
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def forward(self) -> tuple[NormalMixture, Tensor]:
        """Log density of one weight, and the log density of the precisions, ``()``."""
        rest = self.log_rest + torch.log_softmax(_LOG_RATE * self.logits, 0)
        log_precision = _LOG_RATE * self.log_precision
        mixture = NormalMixture(
            torch.cat([self.log_zero, rest]),
            torch.cat([self.zero_loc, _MEAN_RATE * self.loc]),
            log_precision,
        )
        gamma = Gamma(self.shape, self.rate, validate_args=False)
        return mixture, gamma.log_prob(log_precision.exp()).sum()


class _Shared(WeightPrior):
    """The prior of one network: all its layers have one mixture."""

    def __init__(self, prior: GaussianMixture) -> None:
        self.prior, self.mixture = prior, _Mixture(prior)
        self.first = True

    def for_network(self) -> WeightPrior:
        return self.prior.for_network()  # another network's mixture is another

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        made = _MixtureLayer(layer, self.mixture, self.first)
        self.first = False
        return made


class _MixtureLayer(LayerPrior):
    """The prior of one layer.

    Arguments:
        mixture: may be that of other layers too.
        first: of its layers: it owns the parameters, and counts their density.
    """

    def __init__(self, layer: LayerShape, mixture: _Mixture, first: bool) -> None:
        super().__init__(layer)
        # A submodule of one layer only: a parameter has one name, in one state.
        self.mixture = mixture if first else None
        self.held = (mixture,)

    def latents(self) -> Mapping[str, Latent]:
        each, log_density = self.held[0]()
        shape = self.layer.weight
        weight = each.expand(shape).to_event(len(shape))
        if self.mixture is not None:
            weight = WithHyperprior(weight, log_density)
        return {"weight": Latent(weight), **self.standard_bias()}
