"""The two objectives of a selection: L of the posterior, Q of the prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from ...data import Between, Finite, NotNegative, Options, PyroccamError
from ...guides import Guide
from ...models import BayesianNetwork
from ...models.priors import EdgePrior, StructurePrior
from ..compilation import Draw, TracedBound, Untraceable, differentiable, graph_of, lift_noise
from ..elbo import bound
from .hypergradient import Tensors
from .layer_weights import WeighedBound

if TYPE_CHECKING:
    from ...data import Dataset

DRAWS_OF_STRUCTURE = 100  # for a KL that is not known in closed form


@dataclass(frozen=True)
class Against(Options):
    r"""A term :math:`-weight \cdot KL(p(Γ \mid h) \,\|\, p')` of Q.

    Arguments:
        prior: p'.
        weight: positive to draw the prior of the structure towards p', negative to drive it away
            (from a structure that was found before).

    The formula of the source has this sign, its experiments the opposite one: their
    ``λ_struct = -1`` with a ``+`` is ``weight=-1`` here. Weights that drive away from vertices, and
    whose sum is not small beside λ_prior of Q, can leave Q without a maximum: then what is found
    depends on the number of steps.
    """

    prior: StructurePrior
    weight: Finite


@dataclass(frozen=True)
class Level(Options):
    r"""An objective, per observation and maximised:

    .. math:: λ_{lik} E_q[\log p(y \mid x, w, Γ)] - λ_{prior} KL(q \| p(w, Γ \mid h))
        - \textstyle\sum λ_{struct} KL(p(Γ \mid h) \| p')

    Arguments:
        likelihood, prior: λ_lik and λ_prior, at least 0. In L the second may be ``"layer"``: a
            λ_prior for each layer, of the KL of its weights, which is learnt beside h. It begins at
            1, and Q has to be one without a KL (``prior=0``), on rows that L does not see: Q with a
            KL would be best where it weighs nothing.
        structure: the terms of λ_struct, for Q.
        split: whose rows are the data: ``val`` makes Q that of hold-out.
        folds: of the training rows, for Q: each is held out once from a posterior of its own, and Q
            is the mean over them.

    References:
        Bakhteev, Strijov, Bayesian selection of deep learning model structure; the thesis of the
        first author.
    """

    likelihood: NotNegative = 1.0
    prior: NotNegative | Literal["layer"] = 1.0
    structure: Sequence[Against] = ()
    split: Literal["train", "val"] = "train"
    folds: Annotated[int, Between(2)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds is not None and self.split != "train":
            raise PyroccamError(f"folds={self.folds} of split={self.split!r}", "training rows")

    @property
    def by_layer(self) -> bool:
        """λ_prior is one of each layer."""
        return self.prior == "layer"

    @property
    def kl_weight(self) -> float:
        """λ_prior, beside those of layers."""
        return 1.0 if isinstance(self.prior, str) else self.prior


class Key(NamedTuple):
    """A batch and the noise of an evaluation: the same key gives the same value. For several
    particles the noise of the pair has a leading dimension; that of each KL between priors of
    structure is apart."""

    x: Tensor
    y: Tensor
    noise: list[Tensor]
    structure: list[list[Tensor]]


@dataclass
class Objectives:
    """L and Q of a pair as functions of its parameters θ and hyperparameters h.

    θ is what the guide learns, and weights of the network that are numbers; h what the priors learn
    (scales, probabilities of primitives) and the noise of a regression. Where θ is stacked, for
    folds, it has ``stacked`` leading dimensions."""

    model: BayesianNetwork
    guide: Guide
    levels: tuple[Level, Level]
    particles: int = 1

    stacked: ClassVar[int] = 0

    @property
    def seen(self) -> float:
        """Share of the training rows that a posterior is trained with."""
        return 1.0

    def __post_init__(self) -> None:
        self.bound, inside = bound(self.model, self.guide), [*self.model.priors()]
        self.kl_weights: Callable[[], dict[str, float]] = dict
        if self.levels[0].by_layer:
            self.bound = weighed = WeighedBound(self.model, self.guide)
            self.kl_weights = weighed.values
            inside.append(weighed.weights)
        outer = {id(p) for m in (*inside, self.model.likelihood) for p in m.parameters()}
        self._parameters = dict(self.bound.named_parameters())
        wanted = {n: p for n, p in self._parameters.items() if p.requires_grad}
        self.h_names = [n for n, p in wanted.items() if id(p) in outer]
        self.theta_names = [n for n, p in wanted.items() if id(p) not in outer]
        if not self.theta_names:
            raise PyroccamError("a guide without parameters", "some to learn")
        if not self.h_names:
            raise PyroccamError(
                "priors that learn nothing", "one that learns, or L=Level(prior='layer')"
            )
        self._graphs: dict[Any, tuple[Any, Any]] = {}
        self._others = [self._other(term) for term in self.levels[1].structure]

    @property
    def theta(self) -> dict[str, Tensor]:
        """A copy of θ as it is."""
        return {n: self._parameters[n].detach().clone() for n in self.theta_names}

    @property
    def h(self) -> dict[str, Tensor]:
        """A copy of h as it is."""
        return {n: self._parameters[n].detach().clone() for n in self.h_names}

    @torch.no_grad()
    def put(self, theta: Tensors, h: Tensors) -> None:
        """Write θ and h into the modules."""
        for name, value in (*theta.items(), *h.items()):
            self._parameters[name].copy_(value)

    def finish(self, data: Dataset, size: int, steps: int, lr: float, least: float) -> None:
        """Train what is left once h is found: nothing, where θ was trained with all rows."""

    def key(self, x: Tensor, y: Tensor) -> Key:
        """A batch, and fresh noise for it."""
        _, draw = self._graph(x, y)
        structure = [draw() for _, _, draw in self._others]
        if self.particles == 1:
            return Key(x, y, draw(), structure)
        each = [draw() for _ in range(self.particles)]
        return Key(x, y, [torch.stack(parts) for parts in zip(*each, strict=True)], structure)

    def terms(self, theta: Tensors, h: Tensors, key: Key) -> Tensor:
        """The log-likelihood and the KL, neither weighted, for each observation: ``(2,)``."""
        graph, _ = self._graph(key.x, key.y)
        values = {**theta, **h}
        held = [values[n] for n in (*self.theta_names, *self.h_names)]
        held += [*self._state, key.x, key.y]
        if self.particles == 1 or not key.noise:
            found: Tensor = graph(*held, *key.noise)[0]
            return found
        return torch.vmap(lambda *noise: graph(*held, *noise)[0])(*key.noise).mean(0)

    def inner(self, theta: Tensors, h: Tensors, key: Key) -> Tensor:
        """L."""
        return self._value(self.levels[0], theta, h, key)

    def outer(self, theta: Tensors, h: Tensors, key: Key) -> Tensor:
        """Q."""
        level, rows = self.levels[1], float(self.model.size)
        value = self._value(level, theta, h, key)
        for (weight, graph, _), noise in zip(self._others, key.structure, strict=False):
            value = value - weight * graph(*(h[n] for n in self.h_names), *noise)[0] / rows
        return value

    def _value(self, level: Level, theta: Tensors, h: Tensors, key: Key) -> Tensor:
        log_likelihood, kl = self.terms(theta, h, key)
        return level.likelihood * log_likelihood - level.kl_weight * kl

    def _other(self, term: Against) -> tuple[float, Any, Draw]:
        """The weight of a term, and its KL as a graph of h and of noise."""
        ours = {prior.edge: prior for prior in self.model.structure.values()}
        if not ours:
            kind = type(self.model).__name__
            raise PyroccamError(f"Level(structure) of {kind}", "a models.StructuredNetwork")
        made = term.prior.for_edges({edge: prior.primitives for edge, prior in ours.items()})
        for edge, other in made.items():
            other.to(ours[edge].logits).requires_grad_(False)
            own, given = ours[edge].temperature, other.temperature
            if own is not None and given is not None and float(own.value) == float(given.value):
                other.temperature = own  # so that the KL is in closed form

        def call(*h: Tensor) -> list[Tensor]:
            named = dict(zip(self.h_names, h, strict=True))
            held = {n: t for n, t in named.items() if n.startswith("model.edge_priors.")}
            return [torch.func.functional_call(_Priors(self.model), held, (made,))]

        present = [self._parameters[n].detach() for n in self.h_names]
        cuda = [t.device for t in present[:1] if t.device.type == "cuda"]
        try:
            with torch.random.fork_rng(devices=cuda):
                graph = graph_of(call, *present)
            return term.weight, *lift_noise(graph, *present)
        except Untraceable as error:
            raise PyroccamError(f"Level(structure): {error}", "a p' of the prior's kind") from error

    def _graph(self, x: Tensor, y: Tensor) -> tuple[Any, Any]:
        """The terms as a graph of θ, h, a batch and noise, and what draws the noise."""
        if (x.shape, y.shape) in self._graphs:
            return self._graphs[x.shape, y.shape]
        names = [*self.theta_names, *self.h_names]
        kind = f"{type(self.model).__name__} with guides.{type(self.guide).__name__}"
        try:
            traced = TracedBound(self.bound, self.model.size, x, y, names, in_terms=True)
            traced.check(self.bound, x, y)
            if traced.changed:
                raise Untraceable("a pass changes its buffers, as batch normalisation does")
            tensors = {**self._parameters, **dict(self.bound.named_buffers())}
            self._state = [tensors[n.removeprefix("bound.")].detach() for n in traced.state_names]
            params = [self._parameters[n].detach() for n in names]
            graph = differentiable(traced.graph, True)
            found = lift_noise(graph, params, self._state, x, y)
        except Untraceable as error:
            raise PyroccamError(f"select of {kind}: {error}", "a pair that is traced") from error
        self._graphs[x.shape, y.shape] = found
        return found


class _Priors(nn.Module):
    """The KL to other priors, as a module whose parameters can be replaced in a call."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, theirs: dict[str, EdgePrior]) -> Tensor:
        return structure_kl({p.edge: p for p in self.model.structure.values()}, theirs)


def structure_kl(ours: dict[str, EdgePrior], theirs: dict[str, EdgePrior]) -> Tensor:
    """``KL(p(Γ) || p'(Γ))`` of two priors over the same edges, in nats: in closed form where
    torch's registry has it; else the mean of log-ratios at draws, differentiable in the parameters
    of the first."""
    parts = []
    for edge, own in ours.items():
        if own.restriction != theirs[edge].restriction:
            raise PyroccamError(
                f"p' of edge {edge!r} on the {theirs[edge].restriction}",
                f"one on the {own.restriction}, as its prior is",
            )
        p, other = own(), theirs[edge]().expand(own().batch_shape)
        try:
            parts.append(kl_divergence(p, other))
        except NotImplementedError:
            draws = p.rsample((DRAWS_OF_STRUCTURE,))
            parts.append((p.log_prob(draws) - other.log_prob(draws)).mean(0))
    return sum(parts[1:], parts[0])
