"""Variance networks: weights whose mean is zero, so that all they know is in their variances."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..data import Positive, PyroccamError
from ..models import BayesianNetwork, LocalReparameterization, Scales, unknown_name
from ..models.distributions import CentredNormal, CentredUniform, Rademacher
from ..models.layers import BayesianLayer
from ..models.priors import Latent
from .base import NetworkGuide, Traits, Words, refuse_others
from .edges import StructureFamily
from .factors import Evidence, Factor, GaussianFactor
from .mean_field import suited

Noise = Literal["normal", "uniform", "rademacher"]
_NOISES: dict[str, Any] = {
    "normal": CentredNormal,
    "uniform": CentredUniform,
    "rademacher": Rademacher,
}

_NO_DENSITY = {
    "rademacher": "q has two points, which have no density",
    "uniform": "q has no mass outside an interval, where the posterior has some: its draws never "
    "see the ratios that would be infinite",
}


class ZeroMeanFactor(GaussianFactor):
    """``w = σ ε``, ε symmetric about zero: standard normal, uniform in (-1, 1), or ±1; σ is a
    parameter of either sign, whose size counts."""

    # The logarithm of a prior's density is not asked for at zero.
    LEAST = 1e-12

    def __init__(self, scale: Tensor, noise: Noise = "normal") -> None:
        super().__init__()
        self.signed_scale = nn.Parameter(scale.detach().clone())
        self.noise = noise
        self.no_density = _NO_DENSITY.get(noise)

    @property
    def centre(self) -> nn.Parameter:
        raise PyroccamError("A weight of zero mean has no parameter that moves its posterior.")

    def forward(self) -> Any:
        scale = self.signed_scale.abs().clamp_min(self.LEAST)
        return _NOISES[self.noise](scale, validate_args=False).to_event(scale.dim())

    def evidence(self) -> Evidence | None:
        return super().evidence() if self.noise == "normal" else None

    def cdf(self, value: Tensor) -> Tensor | None:
        return super().cdf(value) if self.noise == "normal" else None


class ZeroMean(NetworkGuide):
    r"""A variance network: ``w = σ ε`` with ε symmetric about zero, in chosen layers.

    For a layer with normal noise and local reparameterisation an output is
    :math:`ε \sqrt{\sum_i σ_i^2 x_i^2}`: what is known of the input is in the size of the output,
    and a nonlinearity, or a bias, brings it out. Propagating means through such a layer gives zero.

    With a log-uniform prior the KL is constant, and the bound is the expected log-likelihood.
    Everything else (biases where they are random, scales, other layers) has the posterior of
    :class:`~pyroccam.guides.MeanField`.

    Arguments:
        model: a Bayesian network. Every σ begins at the size of its network's weight; one of zero
            stays there.
        layers: names of the layers without means; all that are Bayesian by default.
        noise: ``"normal"``; or ``"uniform"`` in (-1, 1) or ``"rademacher"``, ±1, for both of which
            weights are drawn once for a batch (a sum over them is not of their kind).
        scale: of all weights without a mean at the start, instead.
        begin: a guide of the same model. Its deviations are those of the weights at the start (σ is
            √3 times that for uniform noise, of variance σ²/3), and its posterior of everything else
            is taken over as it is: see :func:`pyroccam.inference.shrinking.without_means`.
        local, scales, structure: see :class:`~pyroccam.guides.base.NetworkGuide`.

    Raises:
        PyroccamError: for a name that is no layer, a noise that there is not, a scale that is not
            positive, a layer that would begin with no variance at all, or a ``begin`` of another
            network.

    References:
        Neklyudov, Molchanov, Ashukha, Vetrov 2018, Variance Networks: When Expectation Does Not
        Meet Your Expectations, arXiv:1803.03764.
    """

    words: ClassVar[Words] = {
        "zero-mean": {},
        "zero-mean-uniform": {"noise": "uniform"},
        "zero-mean-rademacher": {"noise": "rademacher"},
    }

    layers: tuple[str, ...] = ()

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        layers: str | Iterable[str] | None = None,
        noise: Noise = "normal",
        scale: Positive | None = None,
        begin: NetworkGuide | None = None,
        local: bool | LocalReparameterization = True,
        scales: Scales = "example",
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__(model, local=local, scales=scales, structure=structure)
        layers = [layers] if isinstance(layers, str) else layers
        self.layers = tuple(model.layers) if layers is None else tuple(layers)
        for name in self.layers:
            if name not in model.layers:
                raise PyroccamError(unknown_name("Bayesian layer", name, list(model.layers)))
        if not self.layers:
            raise PyroccamError("layers=[] leaves every mean: use guides.MeanField(model).")
        self._noise: Noise = noise
        self._scale, self._begin = scale, (begin,)  # no submodule
        if begin is not None:
            refuse_others(begin.sites, list(model.sites))
        self.build(model)
        if begin is not None:
            self.take_edges(model, begin)
        self._begin = (None,)

    @property
    def traits(self) -> Traits:
        return replace(super().traits, zero_mean=self.layers)

    def arguments(self) -> dict[str, Any]:
        return {
            "layers": [*self.layers],
            "noise": self._noise,
            "scale": self._scale,
            "local": False,
        }

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        site, (begin,) = layer.site(name), self._begin
        if name != "weight" or layer.name not in self.layers:
            if begin is None:
                return suited(self, layer, name, latent)
            return begin.factor_of(site).copied(layer.prior)
        if begin is not None:
            scale = begin.posterior(site).variance.sqrt().detach()
            if self._noise == "uniform":
                scale = math.sqrt(3.0) * scale
        elif self._scale is not None:
            scale = torch.full_like(layer.start["weight"], self._scale)
        else:
            scale = layer.start["weight"].abs()
        if not bool((scale > 0.0).any()):
            found = f"layer {layer.name!r} begins with deviations of zero, which never grow"
            raise PyroccamError(found, "scale=", "leave it out of layers=")
        return ZeroMeanFactor(scale, self._noise)
