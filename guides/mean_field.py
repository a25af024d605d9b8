"""Independent posteriors for every random tensor of a Bayesian network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..data import Positive, PyroccamError
from ..models import BayesianNetwork, LocalReparameterization, Scales
from ..models.distributions import base
from ..models.layers import BayesianLayer
from ..models.priors import Latent
from .base import NetworkGuide, Words
from .edges import StructureFamily
from .factors import BandFactor, Factor, GateFactor, NormalFactor


class MeanField(NetworkGuide):
    r"""``q(w) = Π q(w_i)``: normal for real sites, log-normal for positive ones, relaxed for gates.

    Built from any Bayesian network; the KL of every factor to its prior is analytic where the prior
    has one.

    Arguments:
        model: a Bayesian network. Weights begin where those of its network are.
        scale: of the weights and biases at the start, instead of the prior's suggestion.
        max_scale: of the weights and biases of chosen layers, by name, or of all.
        local, scales, structure: see :class:`~pyroccam.guides.base.NetworkGuide`.

    References:
        Graves 2011; Blundell et al. 2015, arXiv:1505.05424; Louizos et al. 2017, arXiv:1705.08665.
    """

    words: ClassVar[Words] = {"mean-field": {}}
    varies = True

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        scale: Positive | None = None,
        max_scale: Positive | Mapping[str, Positive] | None = None,
        local: bool | LocalReparameterization = True,
        scales: Scales = "example",
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__(model, local=local, scales=scales, structure=structure)
        self._scale, self._max_scale = scale, max_scale
        if isinstance(max_scale, Mapping) and (odd := sorted({*max_scale} - {*model.layers})):
            raise PyroccamError(f"max_scale= of {odd[0]!r}", f"one of {', '.join(model.layers)}")
        self.build(model)

    def arguments(self) -> dict[str, Any]:
        return {"scale": self._scale, "max_scale": self._max_scale, "local": False}

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        if name not in ("weight", "bias"):
            return suited(self, layer, name, latent)
        limit = self._max_scale
        if isinstance(limit, Mapping):
            limit = limit.get(layer.name)
        limit = math.inf if limit is None else limit
        return suited(self, layer, name, latent, scale=self._scale, max_scale=limit)


def suited(
    guide: NetworkGuide,
    layer: BayesianLayer,
    name: str,
    latent: Latent,
    *,
    scale: float | None = None,
    max_scale: float = math.inf,
) -> Factor:
    """The posterior that suits the support of a site."""
    loc, suggested = start(layer, name, latent)
    scale = suggested if scale is None else scale
    if latent.levels is not None:
        return BandFactor(loc, scale, layer.prior, max_scale=max_scale)
    if latent.normal == "normal":
        return NormalFactor(loc, scale, max_scale=max_scale)
    if latent.normal:
        return NormalFactor(loc, scale, positive=True)
    support = latent.support
    if support is constraints.unit_interval and (gate := relaxed(latent.prior)) is not None:
        return GateFactor(loc, gate.temperature)
    found = f"a {type(base(latent.prior)).__name__} on {support} at site {layer.name}.{name}"
    raise PyroccamError(found, "a prior that is real, positive, or of relaxed gates")


def start(layer: BayesianLayer, name: str, latent: Latent) -> tuple[Tensor, float]:
    """The start of a posterior: location, of the shape of the site, and scale."""
    loc, scale = latent.start
    like = layer.start["weight"]
    if loc is None:
        return layer.start[name], scale
    return torch.full(latent.prior.event_shape, loc, dtype=like.dtype, device=like.device), scale


def relaxed(fn: Any) -> Any:
    """The relaxed choice in a distribution, or ``None``."""
    while not hasattr(fn, "temperature"):
        fn = getattr(fn, "base_dist", None)
        if fn is None:
            return None
    return fn
