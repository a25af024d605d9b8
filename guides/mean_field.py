"""Independent posteriors for every random tensor of a Bayesian network."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.distributions import constraints

from ..models.bayesian import BayesianNetwork
from ..models.distributions.temperature import Temperature
from ..models.distributions.wrapped import base
from ..models.layers.bayesian_layer import BayesianLayer
from ..models.layers.local_reparameterisation import LocalReparameterization, Scales
from ..models.origin import remember
from ..models.parameters import LocalModule
from ..models.priors.base import Latent
from .edges import EdgeFactor, StructureFamily
from .factors import Factor, GateFactor, NormalFactor

__all__ = ["MeanField", "NetworkGuide", "key", "start", "suited"]


class NetworkGuide(LocalModule):
    """A guide of a Bayesian network in which the sites are independent.

    Arguments:
        model: its network decides on the sites.
        local: let :func:`~pyroccam.inference.fit` (and any bound of ours) reparameterise locally;
            or the handler to do it with (one with ``variance_dtype=torch.bfloat16``, say).
        scales: see :class:`~pyroccam.models.LocalReparameterization`; a handler has its own.
        structure: posterior of random structure; by default of the kind that its prior is.

    Attributes:
        handler: around guide and model, where the bound is evaluated; ``None`` draws the weights.
            With ``pyro.infer.SVI`` and ``TraceMeanField_ELBO`` (not ``Trace_ELBO``, which takes no
            KL in closed form) use it by ``with guide.handler: svi.step(x, y)``.
        sites: of the weights, in the order of the model.
        edges: sites of the structure, which come before them.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        local: bool | LocalReparameterization,
        scales: Scales,
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, BayesianNetwork):
            raise TypeError(
                f"{type(self).__name__} is for models.BayesianNetwork, got "
                f"{type(model).__name__}. For learnt depth use guides.CategoricalDepth."
            )
        remember(self, model)
        self.handler: LocalReparameterization | None = None
        if isinstance(local, LocalReparameterization):
            local.refuse_another(model)
            self.handler = local
        elif local:
            self.handler = LocalReparameterization(model, scales)
        self.sites: list[str] = []
        self.factors = nn.ModuleDict()
        self.structure_family = structure or StructureFamily()
        edges = self.structure_family.factors(model.structure)
        self.edges = list(edges)
        for site, factor in edges.items():
            self.factors[key(site)] = factor

    @property
    def zero_mean(self) -> tuple[str, ...]:
        """Layers whose weights have no mean by construction: the mean network says nothing."""
        return ()

    def options(self, names: Mapping[str, str]) -> dict[str, Any]:
        """What the guide was made with beside its model, where layers have the names ``names``."""
        return {}

    def of(self, model: BayesianNetwork, names: Mapping[str, str] | None = None) -> NetworkGuide:
        """A new guide of the same kind for another network.

        Arguments:
            model: of the new guide.
            names: of its layers, by those of this one where they differ.
        """
        options = self.options({} if names is None else names)
        if (own := self.handler) is not None:
            options["local"] = LocalReparameterization(model, own.scales, own.variance_dtype)
        if self.edges:
            options["structure"] = self.structure_family
        return type(self)(model, **options)

    def build(self, model: BayesianNetwork) -> None:
        """Make the posterior of every site."""
        for site, (layer, name) in model.sites.items():
            self.sites.append(site)
            self.factors[key(site)] = self.factor(layer, name, layer.latents()[name])

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        """The posterior of a site at the start."""
        raise NotImplementedError

    def distribution(self, site: str) -> Any:
        """The posterior of a site."""
        factors: Any = self._modules["factors"]
        return factors[key(site)]()

    def edge(self, site: str) -> EdgeFactor:
        """The posterior of an edge of random structure."""
        factors: Any = self._modules["factors"]
        found: EdgeFactor = factors[key(site)]
        return found

    def take_edges(self, model: BayesianNetwork, other: NetworkGuide) -> None:
        """Take over the posterior of structure of another guide, as it is: a copy, of whatever
        family.

        Arguments:
            model: of this guide. A temperature tied to that of its prior is that of this one's.
            other: of a model with the same structure.

        Raises:
            ValueError: for another structure.
        """
        if other.edges != self.edges:
            odd = sorted({*other.edges} ^ {*self.edges})
            raise ValueError(f"begin= is a guide of another network (sites such as {odd[:1]}).")
        copied: dict[int, Any] = {}  # what edges share is copied once
        for site, prior in model.structure.items():
            theirs = other.edge(site)
            if theirs.restriction != prior.restriction or len(theirs.probs()) != len(prior.logits):
                raise ValueError(
                    f"begin= has {len(theirs.probs())} primitives on the {theirs.restriction} at "
                    f"site {site!r}, expected {len(prior.logits)} on the {prior.restriction}."
                )
            temperature = getattr(theirs, "temperature", None)
            if isinstance(temperature, Temperature):
                copied[id(temperature)] = prior.temperature
            self.factors[key(site)] = copy.deepcopy(theirs, copied).to(prior.logits)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample every site."""
        factors = self.part("factors")
        for site in (*self.edges, *self.sites):
            pyro.sample(site, factors[key(site)]())


class MeanField(NetworkGuide):
    r"""``q(w) = Π q(w_i)``: normal for real sites, log-normal for positive ones, relaxed for gates.

    Built from any Bayesian network; the KL of every factor to its prior is analytic where the prior
    has one.

    Arguments:
        model: a Bayesian network. Weights begin where those of its network are.
        scale: of the weights and biases at the start, instead of the prior's suggestion.
        max_scale: of the weights and biases of chosen layers, by name, or of all.
        local, scales, structure: see :class:`NetworkGuide`.

    References:
        Graves 2011; Blundell et al. 2015, arXiv:1505.05424; Louizos et al. 2017, arXiv:1705.08665.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        scale: float | None = None,
        max_scale: float | dict[str, float] | None = None,
        local: bool | LocalReparameterization = True,
        scales: Scales = "example",
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__(model, local=local, scales=scales, structure=structure)
        self._scale, self._max_scale = scale, max_scale
        if isinstance(max_scale, dict) and (odd := sorted({*max_scale} - {*model.layers})):
            raise ValueError(
                f"max_scale= names {odd[0]!r}, but the Bayesian layers are "
                f"{', '.join(map(repr, model.layers))}."
            )
        self.build(model)

    def options(self, names: Mapping[str, str]) -> dict[str, Any]:
        limit = self._max_scale
        if isinstance(limit, dict):
            limit = {names.get(name, name): value for name, value in limit.items()}
        return {"scale": self._scale, "max_scale": limit, "local": False}

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        if name not in ("weight", "bias"):
            return suited(self, layer, name, latent)
        limit = self._max_scale
        if isinstance(limit, dict):
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
    """The posterior that suits the support of a site.

    Arguments:
        scale: at the start, instead of the prior's suggestion.
        max_scale: limit of a real site's scale.

    Raises:
        TypeError: for a support that nothing here covers.
    """
    loc, suggested = start(layer, name, latent)
    scale = suggested if scale is None else scale
    support = latent.prior.support
    support = getattr(support, "base_constraint", support)
    if support is constraints.real:
        return NormalFactor(loc, scale, max_scale=max_scale)
    if support in (constraints.positive, constraints.nonnegative):
        return NormalFactor(loc, scale, positive=True)
    if support is constraints.unit_interval and (gate := relaxed(latent.prior)) is not None:
        return GateFactor(loc, gate.temperature)
    raise TypeError(
        f"{type(guide).__name__} has no posterior for site {f'{layer.name}.{name}'!r}, whose prior "
        f"{type(base(latent.prior)).__name__} has the support {support}: it covers real and "
        "positive sites, and relaxed gates."
    )


def start(layer: BayesianLayer, name: str, latent: Latent) -> tuple[Tensor, float]:
    """Where a posterior begins: location, of the shape of the site, and scale."""
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


def key(site: str) -> str:
    """Of the module that a site has: no dots are allowed there."""
    return site.replace(".", "/")
