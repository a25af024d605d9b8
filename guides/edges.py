"""Posteriors of the structure of an edge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..data import Between, Options, PyroccamError
from ..models import kinds, unknown_name
from ..models.distributions import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LearntTemperature,
    LogitRelaxedBernoulli,
    Temperature,
    lend,
)
from ..models.priors import EdgePrior
from .factors import Factor


class EdgeFactor(Factor):
    """The posterior of one edge with K primitives; a family of them is a class below this one.

    Attributes:
        word: name of the family; an :class:`~pyroccam.models.priors.EdgePrior` names that which is
            of its own kind.
        restrictions: of the priors that it is for.
        relaxed: it has a temperature, which may be learnt.
        closed: its ``logits`` move in closed form, and not by a gradient.
    """

    word: ClassVar[str]
    restrictions: ClassVar[tuple[str, ...]]
    relaxed: ClassVar[bool] = False
    closed: ClassVar[bool] = False

    def __init__(self, prior: EdgePrior, temperature: nn.Module | None) -> None:
        super().__init__()
        self.restriction = prior.restriction

    def own(self, temperature: nn.Module) -> None:
        """Have the temperature that all edges use as a submodule, if this one does."""
        if "temperature" in vars(self):
            self.temperature = temperature

    def begin(self, reach: float) -> None:
        """Begin where a :class:`StructureFamily` says, if it moves in closed form."""
        found = f"reach={reach:g} of a {self.word}, which begins where its prior is"
        raise PyroccamError(found, "none, but for the depth of a models.BayesianStack")

    def drawn(self, site: str) -> Tensor:
        """The site, sampled."""
        value: Tensor = pyro.sample(site, self())
        return value

    def probs(self) -> Tensor:
        """Probability of each primitive that it is the chosen one, or, in the cube, one of the
        chosen, ``(K,)``."""
        raise NotImplementedError

    def entropy(self) -> float:
        """Of the vertices, in nats; of a relaxation each has the probability that γ is nearest to
        it."""
        p = self.probs().detach().double()
        return _entropy(torch.stack([p, 1.0 - p]) if self._cube else p)

    def vertex(self, *, empty: bool = True) -> Tensor:
        """The most probable vertex of the simplex or of the cube, zeros and ones ``(K,)``; of those
        that have a primitive, unless it may be empty."""
        probs = self.probs()
        if self._cube and (empty or bool((probs > 0.5).any())):
            return (probs > 0.5).to(probs.dtype)
        # In the cube, too: the one that the fewest nats are lost by.
        return nn.functional.one_hot(probs.argmax(), len(probs)).to(probs.dtype)

    def vertex_log_prob(self, vertex: Tensor) -> float:
        """The log-probability of a vertex ``(K,)``, in nats."""
        p = self.probs().detach().double()
        chosen = vertex.to(p) > 0.5
        if not self._cube:
            return float(p[chosen].log().sum())
        return float(torch.where(chosen, p, 1.0 - p).log().sum())

    @property
    def _cube(self) -> bool:
        return self.restriction.startswith("cube")


def _entropy(p: Tensor) -> float:
    return -float((p * p.clamp_min(1e-300).log()).sum())


class _Relaxed(EdgeFactor):
    """A posterior with logits, and a temperature that all edges use."""

    temperature: nn.Module
    relaxed = True

    def __init__(self, prior: EdgePrior, temperature: nn.Module | None) -> None:
        super().__init__(prior, temperature)
        self.logits = nn.Parameter(prior.logits.detach().clone())
        lend(temperature, self)


class _GumbelSoftmax(_Relaxed):
    word, restrictions = "gumbel-softmax", ("simplex interior",)

    def forward(self) -> Any:
        return ExpRelaxedCategorical(self.temperature(), logits=self.logits, validate_args=False)

    def probs(self) -> Tensor:
        return self.logits.softmax(-1)


class _Dirichlet(EdgeFactor):
    word, restrictions = "dirichlet", ("simplex interior",)

    def __init__(self, prior: EdgePrior, temperature: nn.Module | None) -> None:
        super().__init__(prior, temperature)
        assert temperature is not None
        self.log_concentration = nn.Parameter(prior.logits.detach() + temperature().detach().log())

    def forward(self) -> Any:
        return ExpDirichlet(self.log_concentration.exp(), validate_args=False)

    def probs(self) -> Tensor:
        return self.log_concentration.softmax(-1)


class _RelaxedBernoulli(_Relaxed):
    word, restrictions = "relaxed-bernoulli", ("cube interior",)

    def forward(self) -> Any:
        fn = LogitRelaxedBernoulli(self.temperature(), logits=self.logits, validate_args=False)
        return fn.to_event(1)

    def probs(self) -> Tensor:
        return self.logits.sigmoid()


class _Table(EdgeFactor):
    """A probability for each vertex."""

    word, restrictions = "table", ("simplex vertices", "cube vertices")
    vertices: Tensor

    def __init__(self, prior: EdgePrior, temperature: nn.Module | None) -> None:
        super().__init__(prior, temperature)
        table: Any = prior.vertices
        self.register_buffer("vertices", table.clone(), persistent=False)
        self.logits = nn.Parameter(prior().logits.detach().clone())

    def forward(self) -> Any:
        return dist.Categorical(logits=self.logits, validate_args=False)

    def probs(self) -> Tensor:
        return self.logits.softmax(-1) @ self.vertices.to(self.logits)

    def entropy(self) -> float:
        return _entropy(self.logits.detach().double().softmax(-1))

    def vertex(self, *, empty: bool = True) -> Tensor:
        logits: Tensor = self.logits
        if not empty:
            logits = logits.masked_fill(~self.vertices.any(-1), -math.inf)
        return self.vertices[logits.argmax()]

    def vertex_log_prob(self, vertex: Tensor) -> float:
        row = (self.vertices == vertex.to(self.vertices)).all(-1)
        return float(self.logits.detach().double().log_softmax(-1)[row].logsumexp(-1))


class _Depth(_Table):
    """A probability for each depth of a stack, which follows the exact posterior. Where it begins
    does not depend on the prior: every depth is trained until q is let go. Until then, and of equal
    ones, the deepest is its most probable, so that a network in training is watched whole."""

    word = "depth"
    closed = True

    def __init__(self, prior: EdgePrior, temperature: nn.Module | None) -> None:
        super().__init__(prior, temperature)
        self.begin(math.inf)

    @torch.no_grad()
    def begin(self, reach: float) -> None:
        """Set q(d) to what is in proportion to ``(1 + d / reach) ** -2``."""
        depths = torch.arange(len(self.logits)).to(self.logits)
        self.logits.copy_(-2.0 * (depths / reach).log1p())
        self.register_buffer("start", self.logits.clone(), persistent=False)

    def vertex(self, *, empty: bool = True) -> Tensor:
        held = torch.equal(self.logits, self.get_buffer("start"))
        most = self.logits if not held else torch.zeros_like(self.logits)
        return self.vertices[len(most) - 1 - int(most.flip(-1).argmax())]

    def drawn(self, site: str) -> Tensor:
        value: Tensor = pyro.sample(site, self(), infer={"enumerate": "parallel"})
        return value


class _Point(EdgeFactor):
    """One γ, in the coordinates of the site."""

    word, restrictions = "point", ("simplex interior", "cube interior")
    is_point = True
    no_density = "q is a point, which has no density"

    def __init__(self, prior: EdgePrior, temperature: nn.Module | None) -> None:
        super().__init__(prior, temperature)
        self.logits = nn.Parameter(prior.logits.detach().clone())

    def forward(self) -> Any:
        value = self.logits if self._cube else self.logits.log_softmax(-1)
        return dist.Delta(value, event_dim=1)

    def probs(self) -> Tensor:
        return self.logits.sigmoid() if self._cube else self.logits.softmax(-1)


Start = Annotated[float, Between(0.0, 1.0, "[)")]
"""The part of a training during which something stays at its start."""


@dataclass(frozen=True)
class StructureFamily(Options):
    """How a guide approximates the posterior of structure.

    Arguments:
        family: ``gumbel-softmax``, ``dirichlet`` (both for the interior of the simplex),
            ``relaxed-bernoulli`` (interior of the cube), ``table`` (a probability for each vertex,
            for what is enumerated), ``depth`` (that of a :class:`~pyroccam.models.BayesianStack`,
            a table which moves in closed form), ``point`` (one γ for each edge); ``prior`` takes
            the kind that the prior has.
        temperature: of a relaxation. ``tied``: that of the prior, which is the same tensor, so that
            the KL is in closed form. ``learnt``: one of all edges, which begins at the prior's and
            is learnt; the KL is then the log-ratio at the draw.
        hold: part of the training during which what moves in closed form stays at its start. A q(d)
            that is free from the first step runs to the depths that learn fastest.
        reach: r of that start, 0.001 or more, ``q(d) ∝ (1 + d / r) ** -2``; ``None``, it is
            uniform. What a uniform one gives to a depth is the less the deeper the stack is, and
            first blocks then learn for the many exits behind them. This one has a limit: r depths
            have half of it.

    Raises:
        PyroccamError: for a ``hold`` outside of [0, 1), a reach below 0.001 or of what does
            not move in closed form, another family, or one that the prior's restriction does not
            allow.
    """

    family: str = "prior"
    temperature: Literal["tied", "learnt"] = "tied"
    hold: Start = 0.5
    reach: Annotated[float, Between(1e-3)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family not in (known := [*families(), "prior"]):
            raise PyroccamError(unknown_name("structure family", self.family, known))

    def factors(self, structure: Mapping[str, EdgePrior]) -> dict[str, EdgeFactor]:
        """Factors of all edges, by site."""
        own: nn.Module | None = None
        found: dict[str, EdgeFactor] = {}
        for site, prior in structure.items():
            kind = families()[prior.family if self.family == "prior" else self.family]
            if kind.closed and prior.family != kind.word:
                given = f"structure={kind.word!r}, of a models.BayesianStack, for site {site!r}"
                raise PyroccamError(given, "family='prior'")
            if prior.restriction not in kind.restrictions:
                given = f"structure={kind.word!r} for site {site!r} on the {prior.restriction}"
                raise PyroccamError(given, f"the {' or the '.join(kind.restrictions)}")
            if self.temperature == "learnt" and not kind.relaxed:
                given = f"temperature='learnt' for the {kind.word} of site {site!r}"
                raise PyroccamError(given, "a relaxation")
            if own is None and prior.temperature is not None:
                own = self._temperature(prior.temperature)
            found[site] = kind(prior, own)
            if self.reach is not None:
                found[site].begin(self.reach)
            if isinstance(own, LearntTemperature) and len(found) == 1:
                found[site].own(own)
        return found

    def _temperature(self, prior: Temperature) -> nn.Module:
        if self.temperature == "tied":
            return prior
        return LearntTemperature(float(prior.value)).to(prior.value)


def families() -> dict[str, type[EdgeFactor]]:
    """All families of posteriors of an edge by name, a person's own among them."""
    return {kind.word: kind for kind in kinds(EdgeFactor) if "word" in vars(kind)}
