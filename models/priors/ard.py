"""Automatic relevance determination: normal priors whose variances are always at their best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Independent, constraints, register_kl
from torch.distributions import Normal as TorchNormal

from ..checks import one_of
from .base import (
    Latent,
    LayerPrior,
    LayerShape,
    WeightPrior,
)

__all__ = ["ARD", "EmpiricalNormal"]


class EmpiricalNormal(TorchDistribution):
    r"""``N(0, s²)`` with the s² that serves best, one for each set of weights that share it.

    With a normal posterior the best s² is the mean of loc² + scale² over the set, where the KL is

    .. math:: Σ_{sets} \frac n2 \log mean(μ² + σ²) - ½ Σ \log σ²

    and ``½ log(1 + μ²/σ²)`` for a set of one. This KL is registered: it is what
    ``guides.MeanField`` and Pyro's ``TraceMeanField_ELBO`` use. There is no fixed density behind
    it. ``log_prob`` is the greatest one for the *given* weights,
    :math:`-\frac n2 \log(2 π e \, mean(w²))`, which for single weights is -log|w| and a constant.
    A bound made of log densities at draws (``Trace_ELBO``) therefore is that of the log-uniform
    prior, and not this KL; :math:`E_q[\log q - \log p]` is below it.

    Arguments:
        event_shape: of the weights.
        shared: dims of the event that share one variance, counted from its left; ``()`` for a
            variance of each weight.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch declares it)

    def __init__(
        self,
        event_shape: Sequence[int],
        shared: Sequence[int] = (),
        batch_shape: Sequence[int] = (),
    ) -> None:
        self.shared = tuple(dim - len(event_shape) for dim in shared)
        super().__init__(torch.Size(batch_shape), torch.Size(event_shape), validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> EmpiricalNormal:
        shared = [dim + len(self.event_shape) for dim in self.shared]
        return type(self)(self.event_shape, shared, batch_shape)

    def _log_variance(self, square: Tensor) -> Tensor:
        """Sum over the event of the log of the shared variance, ``(*batch)``."""
        events = tuple(range(-len(self.event_shape), 0))
        if self.shared:
            square = square.mean(self.shared, keepdim=True)
        n = math.prod(self.event_shape[dim] for dim in self.shared)
        return n * square.log().sum(events)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``, with the best variance for ``value``; infinite where that is zero."""
        n = self.event_shape.numel()
        best = -0.5 * (n * math.log(2.0 * math.pi * math.e) + self._log_variance(value.square()))
        return best.expand(torch.broadcast_shapes(best.shape, self.batch_shape))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """
        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "EmpiricalNormal has no draws: its variance depends on the posterior. Draw from a "
            "guide, such as guides.MeanField(model), or take a proper prior, such as "
            "priors.Normal()."
        )

    rsample = sample


@register_kl(Independent, EmpiricalNormal)
def _kl_normal_empirical(q: Independent, p: EmpiricalNormal) -> Tensor:
    """The KL in nats, ``(*batch)``: the event of both is that of the weights."""
    base = q.base_dist
    if not isinstance(base, TorchNormal) or q.event_shape != p.event_shape:
        raise NotImplementedError
    if not p.shared:
        each = torch.log1p((base.loc / base.scale).square())
        return 0.5 * each.sum(tuple(range(-len(p.event_shape), 0)))
    shared = p._log_variance(base.loc.square() + base.scale.square())
    return 0.5 * shared - base.scale.log().sum(tuple(range(-len(p.event_shape), 0)))


@dataclass(frozen=True)
class ARD(WeightPrior):
    """``N(0, s²)`` whose s² is optimised in closed form; biases are N(0, 1).

    Needs a guide that is normal at the weights, such as ``guides.MeanField``, and a bound with
    closed-form KLs: see :class:`EmpiricalNormal`, the distribution of the site ``weight``.

    Arguments:
        per: what has a variance of its own: each ``"weight"``, ``"group"`` or ``"layer"``.

    References:
        MacKay 1995, Probable networks and plausible predictions; Titsias, Lazaro-Gredilla 2014,
        Doubly stochastic variational Bayes for non-conjugate inference, for the optimum; Kharitonov
        et al. 2018, arXiv:1811.00596, for dropout.
    """

    words = "ard, ard:group, ard:layer"

    per: Literal["weight", "group", "layer"] = "weight"

    def __post_init__(self) -> None:
        one_of("ARD(per)", self.per, ("weight", "group", "layer"))

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        dims = range(len(layer.weight))
        if self.per == "weight":
            return _ARDLayer(layer, ())
        if self.per == "layer":
            return _ARDLayer(layer, tuple(dims))
        assert layer.groups  # an error where there are none
        return _ARDLayer(layer, tuple(dim for dim in dims if dim != layer.group_dim))


class _ARDLayer(LayerPrior):
    def __init__(self, layer: LayerShape, shared: tuple[int, ...]) -> None:
        super().__init__(layer)
        self.shared = shared

    def latents(self) -> Mapping[str, Latent]:
        weight = EmpiricalNormal(self.layer.weight, self.shared)
        return {"weight": Latent(weight, unbounded=True), **self.standard_bias()}
