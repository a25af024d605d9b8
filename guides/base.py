"""The base of guides: each says of itself what code needs, and nobody asks for its class."""

from __future__ import annotations

import copy
import inspect
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, cast

import pyro
from torch import Tensor, nn

from ..data import PyroccamError
from ..models import BayesianNetwork, LocalModule, LocalReparameterization, Model, Scales, Weighing
from ..models.distributions import Temperature
from ..models.layers import BayesianLayer
from ..models.priors import Latent
from .edges import EdgeFactor, StructureFamily
from .factors import Factor

Words = Mapping[str, Mapping[str, Any]]
"""Names for the command line, and what is given to a class with each."""


class KLSettings(Protocol):
    """The settings of a fit that a guide may have something against."""

    @property
    def kl_weight(self) -> float: ...
    @property
    def kl_warmup(self) -> float: ...
    @property
    def batch_size(self) -> int: ...


@dataclass(frozen=True)
class Traits:
    """What a guide says of itself.

    Attributes:
        point: each latent has one value.
        sums_out: the model sums its latents out itself.
        zero_mean: layers whose weights have no mean by construction: the mean network says nothing.
        moves: name of the logits that move in closed form, and not by a gradient, if some do.
        variable: what it has a posterior for each of: ``kl_weight``, or a number of the model by
            path. Before anything but predictions is read off it, one is to be chosen.
    """

    point: bool = False
    sums_out: bool = False
    zero_mean: tuple[str, ...] = ()
    moves: str | None = None
    variable: str | None = None


@dataclass(frozen=True)
class Schedule:
    """When a posterior that is held at first moves.

    Attributes:
        start: share of the steps during which it keeps its start; ``None`` where nothing is held.
        rate: step of an update in closed form, in (0, 1]; by default the one that forgets the start
            by a factor e^-10 until it is settled.
    """

    start: float | None = None
    rate: float | None = None

    @property
    def held(self) -> float:
        """Share of the steps during which it keeps its start."""
        return self.start or 0.0

    @property
    def settled(self) -> float:
        """Share of the steps after which it has had time to arrive where it belongs, and a
        checkpoint may be chosen."""
        return 0.0 if self.start is None else self.start + (1.0 - self.start) / 2

    def step(self, steps: int) -> float:
        """Step of an update in closed form, where ``steps`` are made in all."""
        usual = min(0.5, 10.0 / max((self.settled - self.held) * steps, 1.0))
        return usual if self.rate is None else self.rate


class Guide(LocalModule):
    """A posterior over the latents of a model.

    One of your own has a ``forward`` with the signature of the model, and :meth:`latents` and
    :meth:`posterior`; for random weights it is a :class:`NetworkGuide` with a ``factor``.

    Arguments:
        model: that it is for.

    Attributes:
        covers: the kind of model that it is for.
        words: names for the command line, and what is given to the class with each.
        traits: what code needs to know of it.
        schedule: when it moves, and how fast, where something moves in closed form.
        free_values: it has one value for each weight, with no mask over them and none shared.
        handler: around guide and model, where the bound is evaluated, if any.

    Raises:
        PyroccamError: for a model of another kind.
    """

    covers: ClassVar[type[Model]] = Model
    words: ClassVar[Words] = {}
    free_values: ClassVar[bool] = False
    schedule: Schedule = Schedule()
    handler: LocalReparameterization | Weighing | None = None

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.refuse(model)

    def refuse(self, model: object) -> None:
        """Refuse a model that it is not for by a PyroccamError."""
        name = f"guides.{type(self).__name__}"
        if not isinstance(model, Model):
            found = f"{name} of a {type(model).__name__}"
            raise PyroccamError(found, f"a models.{self.covers.__name__}")
        if not isinstance(model, self.covers):
            found = f"{name} of a models.{type(model).__name__}"
            raise PyroccamError(found, f"guides.{model.usual_guide}(model)")

    @property
    def traits(self) -> Traits:
        return Traits()

    def condition(self, value: float, *, extrapolate: bool = False) -> Guide:
        """The guide of one weight of the KL, or of another number, where it has one for each; see
        :class:`~pyroccam.guides.Conditional`.

        Raises:
            PyroccamError: where it has a single posterior.
        """
        raise PyroccamError(
            f"guides.{type(self).__name__} has one posterior", "a guides.Conditional of it"
        )

    def latents(self) -> list[str]:
        """The sites that it covers, in the order of the model."""
        return []

    def by_chain(self, model: Model) -> list[Guide]:
        """Guides of the same model whose agreement says whether they are one posterior: of draws
        that are of several chains one of each, and itself otherwise."""
        return [self]

    def posterior(self, site: str) -> Any:
        """The distribution of a site."""
        raise KeyError(f"guides.{type(self).__name__} has no site {site!r}.")

    def cdf(self, site: str, value: Tensor) -> Tensor | None:
        """``P(v < value)`` of each number of a site, or ``None`` where only draws can say it."""
        return None

    def structure_parameters(self) -> list[nn.Parameter]:
        """Parameters of the posterior of random structure, each parameter once."""
        return []

    def options(self) -> dict[str, Any]:
        """Options that tell guides of one class apart, plain values: a checkpoint holds them."""
        return {"kind": type(self).__name__, "update": None, "hold": None, "rate": None}

    def arguments(self) -> dict[str, Any]:
        """Arguments to make it again with, beside a model; what is by layer is a mapping, or a
        list of names."""
        return {}

    def rebuild(self, model: Model, names: Mapping[str, str] | None = None) -> Self:
        """A new guide of the same kind for another model, with names of its layers by those of this
        one where they differ."""
        return self._again(model, self.arguments())

    def _again(self, model: Model, arguments: dict[str, Any]) -> Self:
        """A guide of this class, of which one of a person's own may take fewer arguments."""
        takes = inspect.signature(type(self)).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            arguments = {name: value for name, value in arguments.items() if name in takes}
        return type(self)(model, **arguments)

    def check(self, model: Model, settings: KLSettings, batches: int) -> None:
        """Refuse a model, or settings, that it cannot be trained with, in so many batches of an
        epoch, by a PyroccamError."""
        name = f"guides.{type(self).__name__}(model)"
        if made_from_another(self, model):
            found = f"the guide was made from another {type(model).__name__}"
            raise PyroccamError(found, name, "copy.deepcopy((model, guide)) of both at once")
        usual = {"kl_warmup": 0.0, "kl_weight": 1.0}
        changed = [name for name, value in usual.items() if getattr(settings, name) != value]
        # Without latents it has no KL, and none has a gradient where a single q moves by itself.
        alone = self.traits.moves is not None and not model.random_weights
        if changed and (alone or not self.latents()):
            found = f"{changed[0]}={getattr(settings, changed[0])!r} of {name}"
            raise PyroccamError(f"{found}, without a KL to weigh", repr(usual[changed[0]]))


class NetworkGuide(Guide):
    """A guide of a Bayesian network in which the sites are independent.

    Arguments:
        model: its network decides on the sites.
        local: let :func:`~pyroccam.inference.fit` (and any bound of ours) reparameterise locally;
            or the handler to do it with (with other ``scales``, say).
        scales: see :class:`~pyroccam.models.LocalReparameterization`; a handler has its own.
        structure: posterior of random structure; by default of the kind that its prior is.

    Attributes:
        handler: around guide and model, where the bound is evaluated; ``None`` draws the weights.
            With ``pyro.infer.SVI`` and ``TraceMeanField_ELBO`` (not ``Trace_ELBO``, which takes no
            KL in closed form) use it by ``with guide.handler: svi.step(x, y)``.
        sites: of the weights, in the order of the model.
        edges: sites of the structure, which come before them.
        sizes: values that the weights of a layer share, by layer, where they share few.
        steps: what the weights of a layer are whole multiples of, by layer, where they are.
        counting: sites that count only at some values of one of structure.
        varies: its parameters may be functions of the weight of the KL
            (:class:`~pyroccam.guides.Conditional`).
    """

    covers = BayesianNetwork
    varies: ClassVar[bool] = False
    sizes: Mapping[str, int] = MappingProxyType({})

    @property
    def steps(self) -> Mapping[str, float]:
        return {}

    def __init__(
        self,
        model: Model,
        *,
        local: bool | LocalReparameterization,
        scales: Scales,
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__(model)
        remember(self, model)
        self.handler = None
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
        self.counting = model.counting
        for site, factor in edges.items():
            self.factors[self.key(site)] = factor
        if self.traits.moves is not None:
            self.schedule = Schedule(self.structure_family.hold)

    # -- what it says of itself -------------------------------------------------------------------

    @property
    def traits(self) -> Traits:
        point = not self.edges and all(self.factor_of(site).is_point for site in self.sites)
        closed = (site for site in self.edges if self.edge(site).closed)
        moves = next((f"factors.{self.key(site)}.logits" for site in closed), None)
        return Traits(point=point, moves=moves)

    @property
    def scales(self) -> Scales | None:
        """How scales of groups are drawn by local reparameterisation; ``None`` without it."""
        found: Scales | None = None if self.handler is None else self.handler.scales
        return found

    def latents(self) -> list[str]:
        return [*self.edges, *self.sites]

    def key(self, site: str) -> str:
        """The module of a site: dots become slashes, and one of weights has one at least."""
        alone = "." not in site and site not in self.edges
        return ("." * alone + site).replace(".", "/")

    def factor_of(self, site: str) -> Factor:
        """The module of a site, an :class:`EdgeFactor` for one of structure."""
        factors: Any = self._modules["factors"]
        return cast(Factor, factors[self.key(site)])

    def edge(self, site: str) -> EdgeFactor:
        """The posterior of an edge of random structure."""
        return cast(EdgeFactor, self.factor_of(site))

    def structure_parameters(self) -> list[nn.Parameter]:
        each = [p for site in self.edges for p in self.edge(site).parameters()]
        return list({id(p): p for p in each}.values())

    def posterior(self, site: str) -> Any:
        return self.factor_of(site)()

    @property
    def samples(self) -> dict[str, Tensor] | None:
        """Draws of all sites together, ``(S, *)`` by site, where it is known by them alone."""
        return None

    def draw(self, draws: int) -> dict[str, Tensor]:
        """Values of all sites, independent draws, ``(S, *)`` by site."""
        sites = (*self.sites, *self.edges)
        return {site: self.posterior(site).sample((draws,)) for site in sites}

    def cdf(self, site: str, value: Tensor) -> Tensor | None:
        return self.factor_of(site).cdf(value)

    def options(self) -> dict[str, Any]:
        found = super().options() | {"scales": self.scales}
        edges = [type(self.edge(site)).__name__ for site in self.edges]
        found |= {"hold": self.schedule.start} if self.traits.moves else {}
        reach = self.structure_family.reach
        found |= {"reach": reach} if edges and reach is not None else {}
        return found | ({"edges": edges} if edges else {})

    def rebuild(self, model: Model, names: Mapping[str, str] | None = None) -> Self:
        self.refuse(model)
        options = {
            name: _of_layers(value, names or {}, model.layers)
            for name, value in self.arguments().items()
        }
        if self.scales is not None:
            options["local"] = LocalReparameterization(model, self.scales)
        if self.edges:
            options["structure"] = self.structure_family
        return self._again(model, options)

    def check(self, model: Model, settings: KLSettings, batches: int) -> None:
        self.refuse(model)
        if self.latents() != model.latents():
            odd = sorted({*self.latents()} ^ {*model.latents()})
            found = f"a guide of another network (sites such as {odd[:1]})"
            raise PyroccamError(found, f"guides.{type(self).__name__}(model)")
        super().check(model, settings, batches)
        held = self.schedule.held
        if self.traits.moves and settings.kl_warmup > held:
            raise PyroccamError(
                f"kl_warmup={settings.kl_warmup:g}",
                f"at most hold={held:g} of guides.StructureFamily, where q(depth) begins to move",
            )
        tied = [vars(self.edge(site)).get("temperature") for site in self.edges]
        own = [prior.temperature for prior in model.structure.values()]
        if any(isinstance(t, Temperature) and all(t is not o for o in own) for t in tied):
            found = f"the guide was made from another {type(model).__name__}, with its temperature"
            raise PyroccamError(found, "copy.deepcopy((model, guide)) of both at once")

    # -- how it is made ---------------------------------------------------------------------------

    def build(self, model: Model) -> None:
        """Make the posterior of every site."""
        for site, (layer, name) in model.sites.items():
            self.sites.append(site)
            made = self.factor(layer, name, layer.latents()[name])
            if not isinstance(made, Factor):
                found = f"guides.{type(self).__name__}.factor gives a {type(made).__name__}"
                raise PyroccamError(f"{found} for {site!r}", "a guides.factors.Factor")
            self.factors[self.key(site)] = made

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        """The posterior of a site at the start."""
        raise NotImplementedError

    def take_edges(self, model: Model, other: NetworkGuide) -> None:
        """Take over the posterior of structure of another guide, of a model with the same, as it
        is: a copy, of whatever family, in which a tied temperature is that of this model's
        prior."""
        refuse_others(other.edges, self.edges)
        copied: dict[int, Any] = {}  # what edges share is copied once
        for site, prior in model.structure.items():
            theirs = other.edge(site)
            if theirs.restriction != prior.restriction or len(theirs.probs()) != len(prior.logits):
                found = f"{len(theirs.probs())} primitives on the {theirs.restriction}"
                expected = f"{len(prior.logits)} on the {prior.restriction}"
                raise PyroccamError(f"begin= has {found} at site {site!r}", expected)
            temperature = getattr(theirs, "temperature", None)
            if isinstance(temperature, Temperature):
                copied[id(temperature)] = prior.temperature
            self.factors[self.key(site)] = copy.deepcopy(theirs, copied).to(prior.logits)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample every site."""
        factors = self.part("factors")
        values = {site: factors[self.key(site)].drawn(site) for site in self.edges}
        with nullcontext() if self.counting is None else self.counting.given(values):
            for site, fn in self.distributions():
                pyro.sample(site, fn)

    def distributions(self) -> Iterator[tuple[str, Any]]:
        """The posterior of every site of the weights, in the order of the model."""
        factors = self.part("factors")
        for site in self.sites:
            yield site, factors[self.key(site)]()


def refuse_others(sites: list[str], expected: list[str]) -> None:
    """Refuse the sites of a guide of another network to begin with."""
    if sites != expected:
        odd = sorted({*sites} ^ {*expected})
        raise PyroccamError(f"begin= is a guide of another network (sites such as {odd[:1]}).")


def sums_out(guide: object) -> bool:
    """True if a guide, which may be one of Pyro's, leaves latents to be summed out in the model."""
    return getattr(guide, "traits", Traits()).sums_out


def remember(guide: Any, model: Any) -> None:
    """Note in a guide the model that it is made from, without holding it: a guide that is copied
    does not copy its model."""
    if "_mark" not in vars(model):
        object.__setattr__(model, "_mark", uuid.uuid4().hex)
    object.__setattr__(guide, "_mark_of_model", vars(model)["_mark"])


def made_from_another(guide: Any, model: Any) -> bool:
    """True if a guide says that it was made from another model than this one, or a copy of it."""
    found = vars(guide).get("_mark_of_model")
    return found is not None and found != vars(model).get("_mark")


def _of_layers(value: Any, names: Mapping[str, str], layers: Collection[str]) -> Any:
    """An argument for another network: of layers that it has, by the names that they have there."""
    if isinstance(value, Mapping):
        renamed = {names.get(name, name): one for name, one in value.items()}
        return {name: one for name, one in renamed.items() if name in layers}
    if isinstance(value, list):
        return [name for name in (names.get(one, one) for one in value) if name in layers]
    if is_dataclass(value) and not isinstance(value, type):
        each = {one.name: getattr(value, one.name) for one in fields(value)}
        by_layer = {n: one for n, one in each.items() if isinstance(one, Mapping)}
        return replace(value, **{n: _of_layers(one, names, layers) for n, one in by_layer.items()})
    return value
