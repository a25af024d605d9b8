"""A posterior whose KL is a budget: the weight of the KL adapts while it trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from ...data import PyroccamError
from ...guides import NetworkGuide
from ...models import BayesianNetwork
from ...models.distributions import base
from ..coding import nearest
from .phases import Phase

_LEAST, _MOST = 1e-3, 1e3  # the weight of the KL stays between
_DEAD = 0.02  # part of the budget by which the KL may miss it


class Budgeted(Phase):
    r"""Trains a pair to a KL, by the weight β of the KL in

    .. math:: -E_q \log p(y \mid w) + β \, KL(q \| p).

    After each unit :math:`\log β` moves by :math:`\frac12 \log(KL / C)`, unless the KL is within
    2 % of the budget C, and β stays in [0.001, 1000]. Deviations of priors are learnt along. A
    posterior whose KL is fixed by its parameters (:class:`~pyroccam.guides.MeanKL`) learns them
    badly from the start, as they are moved by the likelihood alone; it begins with this one.
    """

    name = "posterior"
    remembered = ("beta",)

    def __init__(self, *pair: Any, nats: float, **training: Any) -> None:
        super().__init__(*pair, **training)
        self.nats, self.beta = nats, 1.0

    def unit(self, number: int, kl_weight: float = 1.0) -> Tensor:
        loss = super().unit(number, self.beta)
        ratio = float(divergences(self.model, self.guide).sum()) / self.nats
        if abs(ratio - 1.0) > _DEAD:
            self.beta = min(max(self.beta * ratio**0.5, _LEAST), _MOST)
        return loss


@torch.no_grad()
def divergences(model: BayesianNetwork, guide: NetworkGuide) -> Tensor:
    """``KL(q || p)`` of every weight ``(n,)``, in the order of the sites, in nats."""
    found = []
    for site, (layer, name) in model.sites.items():
        prior = base(layer.latents()[name].prior)
        found.append(kl_divergence(base(guide.posterior(site)), prior).flatten())
    return torch.cat(found)


@torch.no_grad()
def deviations(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, float]:
    """The deviation of the prior of each layer, by its name."""
    if guide.traits.point:
        raise PyroccamError(f"A draw of {type(guide).__name__}", "guides.MeanField")
    found: dict[str, float] = {}
    for site, (layer, name) in model.sites.items():
        prior: Any = base(layer.latents()[name].prior)
        own = found.get(layer.name)
        scale = float(prior.scale.flatten()[0]) if isinstance(prior, Normal) else 0.0
        if not scale or bool((prior.loc != 0).any()) or bool((prior.scale != (own or scale)).any()):
            raise PyroccamError(
                f"A draw under the prior {type(layer.weight_prior).__name__} of {site!r}",
                "N(0, s²) with one s for its layer",
            )
        nearest(scale)
        found[layer.name] = scale
        if not isinstance(base(guide.posterior(site)), Normal):
            raise PyroccamError(f"A draw of {type(guide).__name__} of {site!r}", "normals")
    return found
