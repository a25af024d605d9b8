"""Points whose weights are switched off and on again while they train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from ..data.errors import PyroccamError
from ..models.bayesian import BayesianNetwork
from .base import NetworkGuide
from .delta import Delta, DeltaFactor
from .pruned import masked_points

__all__ = ["Spliced"]

BELOW, ABOVE = 0.9, 1.1  # the two thresholds, over their middle


class SplicedFactor(DeltaFactor):
    r"""A point :math:`W \odot T` whose gradient goes to all of :math:`W`.

    Arguments:
        value: W at the start, where T is all ones.
        c: the thresholds are 0.9 and 1.1 times ``mean + c · std`` of ``|value|``.
        gamma, power: T is looked at in step t with the probability ``(1 + gamma t)^-power``.
        stop: steps after which T stays.
    """

    kept: Tensor
    limit: Tensor
    step: Tensor

    def __init__(self, value: Tensor, c: float, gamma: float, power: float, stop: int) -> None:
        super().__init__(value)
        size = value.detach().abs()
        middle = size.mean() + c * size.std(correction=0)
        self.register_buffer("kept", torch.ones_like(size, dtype=torch.bool))
        self.register_buffer("limit", middle.clamp_min(0.0))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=value.device))
        self.gamma, self.power, self.stop = gamma, power, stop

    def forward(self) -> Any:
        # Of the two, the detached one has the value: W ⊙ T, with the gradient of W.
        spliced = masked_points(self.value, self.kept) - self.value
        return dist.Delta(self.value + spliced.detach(), event_dim=self.value.dim())

    def splice(self) -> None:
        """Count a step, and perhaps look at T: small weights go, large ones come (back)."""
        size = self.value.detach().abs()
        kept = (size >= BELOW * self.limit) & (self.kept | (size >= ABOVE * self.limit))
        chance = (1.0 + self.gamma * self.step) ** -self.power
        now = (torch.rand((), device=size.device) < chance) & (self.step < self.stop)
        self.kept.copy_(torch.where(now, kept, self.kept))
        self.step.add_(1)


class Spliced(Delta):
    r"""The weights of highest posterior density, of which the small ones are switched off, and on
    again if they grow: dynamic network surgery.

    The network computes with :math:`W \odot T`. The gradient with respect to that goes to all of
    :math:`W`, also where :math:`T` is zero. A weight goes where :math:`|W| < a` and comes back
    where :math:`|W| \ge b`, with :math:`a = 0.9 (μ + c σ)`, :math:`b = 1.1 (μ + c σ)`, and μ, σ the
    mean and standard deviation of :math:`|W|` in the layer at the start. T changes when the guide
    is called in training mode; its probability of being looked at falls.

    Arguments:
        model: a Bayesian network; weights begin where those of its network are. Begin with a
            trained one: the thresholds are relative to its weights.
        c: of all layers, or by the name of the layer (those that are not named keep all weights).
            The larger, the fewer weights are left.
        gamma, power: of the probability ``(1 + gamma t)^-power`` in step t.
        stop: steps after which T stays as it is; never by default.
        begin: see :class:`~pyroccam.guides.Delta`.

    Raises:
        PyroccamError: for a prior as for ``Delta``.
        ValueError: for a layer that does not exist, a negative ``gamma``, ``power`` or ``stop``.

    References:
        Guo, Yao, Chen 2016, arXiv:1608.04493.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> guide = Spliced(model, c=0.0)
        >>> guide(torch.zeros(2, 1, 8, 8))  # a step in training mode
        >>> 0 < guide.nonzero["1"] < 640
        True
    """

    free_values = varies = False

    def __init__(
        self,
        model: BayesianNetwork,
        c: float | Mapping[str, float] = 1.0,
        *,
        gamma: float = 1e-4,
        power: float = 1.0,
        stop: int | None = None,
        begin: NetworkGuide | None = None,
    ) -> None:
        for name, value in (("gamma", gamma), ("power", power), ("stop", stop)):
            if value is not None and not value >= 0:
                raise PyroccamError(f"Spliced({name}) must be at least 0, got {value!r}.")
        super().__init__(model, begin=begin)
        if not isinstance(c, Mapping):
            c = dict.fromkeys(model.layers, float(c))
        last = torch.iinfo(torch.int64).max if stop is None else int(stop)
        self.put(
            {
                layer: SplicedFactor(self.values_of(layer), float(own), gamma, power, last)
                for layer, own in c.items()
            }
        )
        self._spliced = list(c)
        self._limits = {layer: float(own) for layer, own in c.items()}
        self._rates = {"gamma": gamma, "power": power, "stop": stop}

    def arguments(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {"c": {names.get(n, n): c for n, c in self._limits.items()}, **self._rates}

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        if self.training:
            for layer in self._spliced:
                self.weights_of(layer).splice()
        super().forward(x, y)

    @property
    def nonzero(self) -> dict[str, int]:
        """Weights that are on, by layer."""
        return {layer: int(self.weights_of(layer).kept.sum()) for layer in self._spliced}
