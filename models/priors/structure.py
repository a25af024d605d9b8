"""Priors over structure: what the primitives of an edge count, in one of four restrictions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ...data import Options, Positive, PyroccamError, checked
from .. import kinds, unknown_name
from ..distributions import (
    Annealed,
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    Temperature,
    lend,
    straight_through,
)

Restriction = Literal["simplex interior", "simplex vertices", "cube interior", "cube vertices"]
Weights = Mapping[str, Sequence[float]] | Sequence[float] | None

MOST_SUBSETS = 12  # of 2^12 = 4,096 subsets of an edge's primitives each gets a probability


class EdgePrior(nn.Module):
    """The prior of one edge with K primitives.

    Arguments:
        edge: its name.
        primitives: their names.
        logits: of the primitives, ``(K,)``.
        learn: they are parameters of the prior (part of h), and learnt with it.
        temperature: that all edges share, where there is one; a submodule of the network.

    Attributes:
        restriction: of γ.
        family: name of the posteriors of its own kind, those of a guide that is not told another.
        priced: differences of logits are nats that a primitive costs.
    """

    restriction: ClassVar[Restriction]
    family: ClassVar[str]
    priced: ClassVar[bool] = True
    logits: Tensor
    temperature: Any

    def __init__(
        self,
        edge: str,
        primitives: Sequence[str],
        logits: Tensor,
        learn: bool,
        temperature: Temperature | None,
    ) -> None:
        super().__init__()
        self.edge, self.primitives = edge, tuple(primitives)
        if learn:
            self.logits = nn.Parameter(logits)
        else:
            self.register_buffer("logits", logits, persistent=False)
        lend(temperature, self)

    def forward(self) -> Any:
        """The distribution of the site, batch shape ``()``."""
        raise NotImplementedError

    def gamma(self, value: Tensor) -> Tensor:
        """γ, ``(*, K)``, from values of the site."""
        raise NotImplementedError

    def probs(self) -> Tensor:
        """Probability of each primitive that it is the chosen one, or one of the chosen,
        ``(K,)``."""
        return self.logits.softmax(-1)

    def raised(self, logits: Tensor, power: Tensor) -> Tensor:
        """Logits with which the probabilities, or weights, are to a power, ``()``."""
        return power * logits


class StructurePrior(Options):
    """The prior over the structure of a network; its kinds derive from it."""

    word: ClassVar[str]
    kind: ClassVar[type[EdgePrior]]
    cube: ClassVar[bool] = False
    probs: Weights
    learn: bool

    def for_edges(self, primitives: Mapping[str, Sequence[str]]) -> dict[str, EdgePrior]:
        """The priors of edges, by name, from the names of their primitives."""
        own = type(self).__name__
        asked: float | Annealed | None = getattr(self, "temperature", None)
        shared = None if asked is None else Temperature(asked)
        if isinstance(self.probs, Mapping):
            for name in self.probs:
                if name not in primitives:
                    raise PyroccamError(unknown_name(f"edge in {own}(probs)", name, primitives))
        found = {}
        for edge, names in primitives.items():
            logits = _logits(self.probs, edge, names, f"{own}(probs)", self.cube)
            found[edge] = self.of_edge(edge, names, logits, shared)
        return found

    def of_edge(
        self, edge: str, names: Sequence[str], logits: Tensor, shared: Temperature | None
    ) -> EdgePrior:
        """The prior of one edge, from what :class:`EdgePrior` takes."""
        return self.kind(edge, names, logits, self.learn, shared)


def _logits(asked: Weights, edge: str, primitives: Sequence[str], what: str, cube: bool) -> Tensor:
    """Logits of the weights that a person gave to the primitives of an edge."""
    given = asked.get(edge) if isinstance(asked, Mapping) else asked
    if given is None:
        return torch.zeros(len(primitives))
    values = [float(v) for v in given]
    if len(values) != len(primitives):
        found = f"{what} has {len(values)} probabilities for edge {edge!r}"
        raise PyroccamError(found, f"one for each of {', '.join(primitives)}")
    for name, v in zip(primitives, values, strict=True):
        if not (0.0 < v < (1.0 if cube else math.inf)):
            need = "in (0, 1)" if cube else "positive and finite"
            raise PyroccamError(f"{what} has {v} for primitive {name!r} of edge {edge!r}", need)
    weights = torch.tensor(values, dtype=torch.float64)  # single precision ends at 1e-38
    logits = weights.logit() if cube else weights.log()
    return logits.to(torch.get_default_dtype())


@dataclass(frozen=True)
class _Weighted(StructurePrior):
    probs: Weights = None
    learn: bool = False


@dataclass(frozen=True)
class _Relaxed(StructurePrior):
    temperature: Positive | Annealed = 1.0
    probs: Weights = None
    learn: bool = False


class _GumbelSoftmaxEdge(EdgePrior):
    restriction, family = "simplex interior", "gumbel-softmax"
    straight = False

    def forward(self) -> Any:
        return ExpRelaxedCategorical(self.temperature(), logits=self.logits, validate_args=False)

    def gamma(self, value: Tensor) -> Tensor:
        return straight_through(value) if self.straight else value.exp()


@dataclass(frozen=True)
class GumbelSoftmax(_Relaxed):
    """One primitive of each edge, relaxed: :math:`GS(s, T)` in the interior of the simplex.

    The site is log γ (:class:`~pyroccam.models.distributions.relaxed.ExpRelaxedCategorical`); the
    largest is primitive k with probability :math:`s_k / Σs` at any temperature.

    Arguments:
        temperature: T of all edges, a number or
            :class:`~pyroccam.models.distributions.temperature.Annealed`.
        probs: the weights s of the primitives of an edge, by its name, or of all edges; need not
            sum to one. Uniform if left out.
        learn: s is learnt with the prior (empirical Bayes), from ``probs`` on.
        straight_through: the network computes with the largest primitive alone (the vertex of the
            simplex), and gradients are those of γ.

    References:
        Maddison, Mnih, Teh 2017, arXiv:1611.00712; Jang, Gu, Poole 2017, arXiv:1611.01144.
    """

    straight_through: bool = False

    word = "gumbel-softmax"
    kind = _GumbelSoftmaxEdge

    def of_edge(
        self, edge: str, names: Sequence[str], logits: Tensor, shared: Temperature | None
    ) -> EdgePrior:
        made: Any = super().of_edge(edge, names, logits, shared)
        made.straight = self.straight_through
        return made


class _DirichletEdge(EdgePrior):
    restriction, family = "simplex interior", "dirichlet"
    priced = False  # they are logarithms of a concentration

    def forward(self) -> Any:
        return ExpDirichlet(self.temperature() * self.logits.exp(), validate_args=False)

    def gamma(self, value: Tensor) -> Tensor:
        return value.exp()


class Dirichlet(_Relaxed):
    """A mixture of the primitives of each edge: a Dirichlet with concentration T s.

    Towards T = 0 it becomes the vertices of the simplex, with probabilities s / Σs; with growing T
    it concentrates at s / Σs. The mean is s / Σs at every T.

    Arguments:
        temperature: T of all edges, a number or
            :class:`~pyroccam.models.distributions.temperature.Annealed`.
        probs: the weights s, as for :class:`GumbelSoftmax`; as given, not normalised.
        learn: s is learnt.
    """

    word = "dirichlet"
    kind = _DirichletEdge


class _CategoricalEdge(EdgePrior):
    """The site is a position in a table of vertices, which can be enumerated."""

    restriction: ClassVar[Restriction] = "simplex vertices"
    family = "table"
    vertices: Tensor

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("vertices", self._vertices(len(self.primitives)), persistent=False)

    def _vertices(self, count: int) -> Tensor:
        return torch.eye(count)

    def forward(self) -> Any:
        return dist.Categorical(logits=self.logits, validate_args=False)

    def gamma(self, value: Tensor) -> Tensor:
        return self.vertices[value]


class DepthEdge(_CategoricalEdge):
    """The prior over the depth of a stack, whose exits are the primitives."""

    family = "depth"

    def raised(self, logits: Tensor, power: Tensor) -> Tensor:
        return (power * logits).log_softmax(-1)  # log p(d) is read off them


class Categorical(_Weighted):
    """Exactly one primitive of each edge. A guide enumerates them, so that the expectation over
    all structures is exact: at the cost of as many networks as there are structures.

    Arguments:
        probs, learn: as for :class:`GumbelSoftmax`.
    """

    word = "categorical"
    kind = _CategoricalEdge


class _RelaxedBernoulliEdge(EdgePrior):
    restriction, family = "cube interior", "relaxed-bernoulli"

    def forward(self) -> Any:
        fn = LogitRelaxedBernoulli(self.temperature(), logits=self.logits, validate_args=False)
        return fn.to_event(1)

    def gamma(self, value: Tensor) -> Tensor:
        return value.sigmoid()

    def probs(self) -> Tensor:
        return self.logits.sigmoid()


class RelaxedBernoulli(_Relaxed):
    """Every primitive in or out, relaxed: the interior of the cube. The site is the logit of γ.

    Arguments:
        temperature: as for :class:`GumbelSoftmax`.
        probs: of each primitive that it is in, in (0, 1), by edge or for all; one half if left out.
        learn: they are learnt.
    """

    word = "relaxed-bernoulli"
    kind = _RelaxedBernoulliEdge
    cube = True


class _BernoulliEdge(_CategoricalEdge):
    restriction = "cube vertices"

    def _vertices(self, count: int) -> Tensor:
        return torch.tensor(list(product((0.0, 1.0), repeat=count)))

    def forward(self) -> Any:
        each = self.vertices * self.logits - nn.functional.softplus(self.logits)
        return dist.Categorical(logits=each.sum(-1), validate_args=False)

    def probs(self) -> Tensor:
        return self.logits.sigmoid()


class Bernoulli(_Weighted):
    """Every primitive in or out: the vertices of the cube, enumerated as those of
    :class:`Categorical`. A guide has a probability for each subset of the primitives of an edge.

    Arguments:
        probs, learn: as for :class:`RelaxedBernoulli`.

    Raises:
        PyroccamError: for an edge with more than 12 primitives, which has too many subsets.
    """

    word = "bernoulli"
    kind = _BernoulliEdge
    cube = True

    def of_edge(
        self, edge: str, names: Sequence[str], logits: Tensor, shared: Temperature | None
    ) -> EdgePrior:
        if len(names) > MOST_SUBSETS:
            found = f"Bernoulli of edge {edge!r} with {len(names)} primitives"
            raise PyroccamError(found, f"at most {MOST_SUBSETS}", "RelaxedBernoulli")
        return super().of_edge(edge, names, logits, shared)


def words() -> dict[str, type[StructurePrior]]:
    """All kinds of structure priors that have a word, a person's own among them."""
    return {kind.word: kind for kind in kinds(StructurePrior) if "word" in vars(kind)}


@checked
def parse_structure(text: str) -> StructurePrior:
    """A structure prior from words: a kind and, where it is relaxed, a temperature after a colon,
    or two for one that falls: ``gumbel-softmax:1``, ``gumbel-softmax:1:0.2``, ``categorical``.

    Example:
        >>> parse_structure("dirichlet:0.5")
        Dirichlet(temperature=0.5, probs=None, learn=False)
    """
    name, *numbers = text.strip().lower().replace("_", "-").split(":")
    known = words()
    if name not in known:
        raise PyroccamError(unknown_name("structure prior", name, known))
    kind: Callable[..., StructurePrior] = known[name]
    hard = not hasattr(kind, "temperature")
    values: list[Any] = []
    with contextlib.suppress(ValueError):
        values = [float(number) for number in numbers]
    if len(values) < len(numbers) or len(values) > (0 if hard else 2):
        expected = name if hard else f"{name}, {name}:TEMPERATURE or {name}:FIRST:LAST"
        raise PyroccamError(f"the structure prior {text!r}", expected)
    return kind(Annealed(*values)) if len(values) == 2 else kind(*values)
