"""Soft weight-sharing: one mixture of normals, learnt with the weights, that they gather around."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import Categorical, Gamma, constraints

from .base import Latent, LayerPrior, LayerShape, WeightPrior, one_of, positive

__all__ = ["Components", "GaussianMixture", "NormalMixture", "WithHyperprior"]

# The published steps of the means, log-precisions and log-mixing are these multiples of that of the
# weights. Adam moves a parameter by its rate, whatever the parameter's unit: so a parameter is kept
# in units of the multiple, and one rate serves all.
_MEAN_RATE, _LOG_RATE = 0.2, 6.0


class Components(NamedTuple):
    """Of a mixture of K normals; the first is the one whose weights become zero.

    Attributes:
        mixing: proportions, which sum to one, ``(K,)``.
        loc, scale: means and standard deviations, ``(K,)``.
    """

    mixing: Tensor
    loc: Tensor
    scale: Tensor


class NormalMixture(TorchDistribution):
    r"""``Σ_k π_k N(loc_k, 1 / λ_k)``, the same for every element of the batch.

    There is no closed KL of a normal to it: a bound takes log q - log p at the draw.

    Arguments:
        log_mixing: log π, ``(K,)``.
        loc, log_precision: of the components, ``(K,)``.
        batch_shape: of the distribution; event shape ``()``.
    """

    arg_constraints = {  # noqa: RUF012 (as torch declares it)
        "log_mixing": constraints.real_vector,
        "loc": constraints.real_vector,
        "log_precision": constraints.real_vector,
    }
    support = constraints.real

    def __init__(
        self,
        log_mixing: Tensor,
        loc: Tensor,
        log_precision: Tensor,
        batch_shape: Sequence[int] = (),
    ) -> None:
        self.log_mixing, self.loc, self.log_precision = log_mixing, loc, log_precision
        super().__init__(torch.Size(batch_shape), validate_args=False)

    @property
    def components(self) -> Components:
        """With the proportions and the scales themselves."""
        return Components(self.log_mixing.exp(), self.loc, (-0.5 * self.log_precision).exp())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> NormalMixture:
        return type(self)(self.log_mixing, self.loc, self.log_precision, batch_shape)

    def log_parts(self, value: Tensor) -> Tensor:
        """``log π_k + log N(value; loc_k, 1 / λ_k)``, ``(K, *value)``.

        The components come first, so that a compiler makes one pass over the values of the sum and
        its gradients. The square is of the difference: expanded, it would cancel for narrow normals
        away from zero.
        """
        each = (-1, *[1] * value.dim())
        top = self.log_mixing + 0.5 * (self.log_precision - math.log(2.0 * math.pi))
        half = 0.5 * self.log_precision.exp()
        gap = value - self.loc.reshape(each)
        return top.reshape(each) - half.reshape(each) * (gap * gap)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return torch.logsumexp(self.log_parts(value), 0).expand(shape)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``(*sample, *batch)``."""
        shape = torch.Size(sample_shape) + self.batch_shape
        mixing, loc, scale = self.components
        k = Categorical(mixing, validate_args=False).sample(shape)
        return loc[k] + scale[k] * torch.randn(shape, dtype=loc.dtype, device=loc.device)


class WithHyperprior(TorchDistribution):
    """A distribution whose density is multiplied by that of its own parameters.

    As a function of the value it is normalised to that factor, not to one. A learnt parameter is
    no site: so its prior is counted wherever the density of the value is, in any bound, and once.

    Arguments:
        base_dist: of the values.
        log_density: of the parameters, ``()``.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch declares it)

    def __init__(self, base_dist: Any, log_density: Tensor) -> None:
        self.base_dist, self.log_density = base_dist, log_density
        shapes = base_dist.batch_shape, base_dist.event_shape
        super().__init__(*shapes, validate_args=False)

    @property
    def support(self) -> Any:
        return self.base_dist.support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> WithHyperprior:
        return type(self)(self.base_dist.expand(batch_shape), self.log_density)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``."""
        log_prob: Tensor = self.base_dist.log_prob(value) + self.log_density
        return log_prob

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Of the values, given the parameters."""
        values: Tensor = self.base_dist.sample(sample_shape)
        return values


@dataclass(frozen=True)
class GaussianMixture(WeightPrior):
    r"""A mixture of normals for all weights of a network, learnt with them. Biases are N(0, 1).

    .. math:: w \sim π_0 N(0, 1/λ_0) + Σ_{k=1}^{K-1} π_k N(μ_k, 1/λ_k), \qquad
        λ_k \sim Gamma(a_k, b_k)

    One component stays at zero, with a proportion that is given; the others learn their means,
    their precisions and how they share the rest. The Gamma densities are of the precisions, and are
    counted once for each mixture, with the weights of the first layer in it. Weights that have
    gathered around the means are set to them by
    :func:`~pyroccam.inference.pruning.weight_sharing.assign`.

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

    Raises:
        ValueError: for fewer than two components, or a number out of its range.

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

    components: int = 16
    zero: float = 0.99
    spread: float = 0.6
    scale: float = 0.25
    zero_precision: tuple[float, float] = (5e3, 2.0)
    precision: tuple[float, float] = (250.0, 0.1)
    per: Literal["network", "layer"] = "network"

    def __post_init__(self) -> None:
        if not isinstance(self.components, int) or self.components < 2:
            raise ValueError(
                "GaussianMixture(components) must be a whole number of at least 2, got "
                f"{self.components!r}."
            )
        if not 0.0 < self.zero < 1.0:
            raise ValueError(
                f"GaussianMixture(zero) must be a proportion in (0, 1), got {self.zero}."
            )
        positive("GaussianMixture(spread)", self.spread)
        positive("GaussianMixture(scale)", self.scale)
        for name in ("zero_precision", "precision"):
            for value in getattr(self, name):
                positive(f"GaussianMixture({name})", value)
        one_of("GaussianMixture(per)", self.per, ("network", "layer"))

    def for_network(self) -> WeightPrior:
        return self if self.per == "layer" else _Shared(self)

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        return _MixtureLayer(layer, _Mixture(self), first=True)


class _Mixture(nn.Module):
    """What a mixture learns; see :data:`_MEAN_RATE` for the units."""

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
        """Of one weight, and the log density of the precisions, ``()``."""
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
    """Of one network: all its layers have one mixture."""

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
    """Of one layer.

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
