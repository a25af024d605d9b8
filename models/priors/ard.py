"""Normal priors that are always at their best, and automatic relevance determination."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Independent, constraints, register_kl
from torch.distributions import Normal as TorchNormal

from ...data import PyroccamError
from ..distributions import Improper
from .base import Latent, WeightPrior


class EmpiricalNormal(Improper):
    r"""``N(0, s²)`` with the s² that serves best, one for each set of weights that share it.

    With a normal posterior the best s² is the mean of loc² + scale² over the set, where the KL is

    .. math:: Σ_{sets} \frac n2 \log mean(μ² + σ²) - ½ Σ \log σ²

    and ``½ log(1 + μ²/σ²)`` for a set of one. Where the mean of the prior serves best, too
    (``moves``), it is the mean of μ, and μ is taken from there. This KL is registered: it is what
    ``guides.MeanField`` and Pyro's ``TraceMeanField_ELBO`` use. There is no fixed density behind
    it. ``log_prob`` is the greatest one for the *given* weights,
    :math:`-\frac n2 \log(2 π e \, mean(w²))`, which for single weights is -log|w| and a constant.
    A bound made of log densities at draws (``Trace_ELBO``) therefore is that of the log-uniform
    prior, and not this KL; :math:`E_q[\log q - \log p]` is below it.

    Arguments:
        event_shape: of the weights.
        shared: dims of the event that share one variance, counted from its left; ``()`` for a
            variance of each weight.
        moves: they share a mean as well, in place of 0.
        like: a number of the type and device of a value.

    Raises:
        PyroccamError: for a mean of each weight, at which every KL would be 0.
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        shared: Sequence[int] = (),
        batch_shape: Sequence[int] = (),
        moves: bool = False,
        like: Tensor | None = None,
    ) -> None:
        if moves and not shared:
            raise PyroccamError("EmpiricalNormal: moves=True, shared=()", "dims that share a mean")
        self.shared = tuple(dim - len(event_shape) for dim in shared)
        self.moves, self.like = moves, like
        super().__init__(torch.Size(batch_shape), torch.Size(event_shape), validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.independent(constraints.real, len(self.event_shape))

    @property
    def _sharing(self) -> int:
        """Weights of a set."""
        return math.prod(self.event_shape[dim] for dim in self.shared)

    @property
    def numbers(self) -> int:
        """How many numbers of the prior depend on the posterior: a variance of each set, and where
        it moves a mean."""
        return self.event_shape.numel() // self._sharing * (1 + self.moves)

    def _variance(self, loc: Tensor, scale: Tensor | None = None) -> Tensor:
        """The best variance of each set, ``(*batch, *event)`` with 1 for the dims that share it,
        for weights at ``loc``, with a deviation of ``scale`` from there if there is one."""
        if self.moves:
            loc = loc - loc.mean(self.shared, keepdim=True)
        square = loc.square() if scale is None else loc.square() + scale.square()
        return square.mean(self.shared, keepdim=True) if self.shared else square

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``, with what is best for ``value``. A variance of zero is the least that there
        is: where biases begin at zero Pyro would warn of an infinite density, which no KL needs."""
        n, events = self.event_shape.numel(), tuple(range(-len(self.event_shape), 0))
        variance = self._variance(value).clamp_min(torch.finfo(value.dtype).tiny)
        log_variance = self._sharing * variance.log().sum(events)
        best = -0.5 * (n * math.log(2.0 * math.pi * math.e) + log_variance)
        return best.expand(torch.broadcast_shapes(best.shape, self.batch_shape))


@register_kl(Independent, EmpiricalNormal)
def _kl_normal_empirical(q: Independent, p: EmpiricalNormal) -> Tensor:
    """The KL in nats, ``(*batch)``: the event of both is that of the weights."""
    base = q.base_dist
    if not isinstance(base, TorchNormal) or q.event_shape != p.event_shape:
        raise NotImplementedError
    if p.shared:
        # Weight by weight: differences of sums over a layer would be too coarse in float32.
        each = p._variance(base.loc, base.scale).log() - 2.0 * base.scale.log()
    else:
        each = torch.log1p((base.loc / base.scale).square())
    return 0.5 * each.sum(tuple(range(-len(p.event_shape), 0)))


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

    def latents(self, own: Any) -> Mapping[str, Latent]:
        shape, shared = own.layer.weight, tuple(range(len(own.layer.weight)))
        if self.per == "weight":
            shared = ()
        elif self.per == "group":
            shared = tuple(dim for dim in shared if own.layer.groups and dim != own.layer.group_dim)
        weight = EmpiricalNormal(shape, shared, like=own.zero)
        return {"weight": Latent(weight, unbounded=True), **own.standard_bias()}
