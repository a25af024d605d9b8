"""Predictions and draws of a pair by its kind: the one place that asks what a model is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import torch
from torch import Tensor

from ...data.errors import PyroccamError
from ...guides.base import Guide, NetworkGuide
from ...guides.depth import DepthGuide
from ...models.base import Model
from ...models.bayesian import BayesianNetwork
from ...models.bayesian_stack import BayesianStack
from ...models.learnt_depth import FixedDepth, LearntDepth
from ..distributed.ranks import ALONE, Ranks
from .depth import OTHERS, DepthStructure, depth_posterior_of_weights, exact_depth_posterior, slack
from .draws import Noise, draw_outputs, draw_sites
from .predict import DRAWS, outputs_by_depth, streamed
from .weight_moments import mean_network

if TYPE_CHECKING:
    from ...data import Dataset
    from ..fits.result import Fit

__all__ = ["Family", "family", "named", "random_network", "refuse_undecided", "require"]

VALIDATION_DRAWS = 5


class Family(Protocol):
    """A model with its guide, as what is predicted with them needs to know them."""

    @property
    def model(self) -> Model: ...

    @property
    def guide(self) -> Guide: ...

    def outputs(
        self,
        x: Tensor,
        draws: int = DRAWS,
        *,
        noise: Noise = "weights",
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Tensor:
        """Outputs that a prediction mixes, ``(S, N, outputs)``, for inputs ``(N, *)``.

        Arguments:
            draws, noise, seed: of random weights, see
                :func:`~pyroccam.inference.posterior.draw_outputs`.
            batch_size: as there.
        """
        ...

    def mean_outputs(self, x: Tensor, batch_size: int | None = None) -> Tensor:
        """Outputs of the one network with the posterior means as weights, ``(1, N, outputs)``.

        Raises:
            PyroccamError: where weights are numbers.
        """
        ...

    def weights(self, data: Dataset | None = None, draws: int = DRAWS) -> Tensor:
        """Weights of what is mixed, ``(S,)``, summing to one.

        Arguments:
            data: of which the exact posterior of a depth is taken that the model sums out.
            draws: of random weights, which are equally likely.
        """
        ...

    def validation(self, data: Dataset) -> tuple[Tensor, Tensor]:
        """Outputs for the validation rows, ``(S, N, outputs)``, and their weights: of the depths,
        or of the one network of the means; where there are none, of a few draws as in training."""
        ...

    def draw(self, draws: int) -> dict[str, Tensor]:
        """Values of all latents, ``(S, *)`` by site, independent draws from the posterior."""
        ...

    def depth_posterior(
        self, data: Dataset, kl_weight: float = 1.0, ranks: Ranks = ALONE
    ) -> Tensor | None:
        """The best q(d) for the present weights, or their posterior, ``(D + 1,)``; ``None`` where
        the depth is known.

        Arguments:
            kl_weight: of the KL in the objective.
            ranks: processes that share the training rows.
        """
        ...

    def structure(
        self,
        data: Dataset,
        threshold: float,
        running: Tensor | None = None,
        kl_weight: float = 1.0,
    ) -> DepthStructure | None:
        """The learnt structure of depth, or ``None`` where it was not.

        Arguments:
            threshold: of the 95 % rule.
            running: q(d) that trained the weights, if it was another.
            kl_weight: of the KL in the objective.
        """
        ...


@dataclass(frozen=True)
class Weights:
    """Random weights, and perhaps random structure: a prediction mixes draws."""

    model: BayesianNetwork
    guide: NetworkGuide

    def outputs(self, x: Tensor, draws: int = DRAWS, **options: Any) -> Tensor:
        return draw_outputs(self.model, self.guide, x, draws, **options)

    def mean_outputs(self, x: Tensor, batch_size: int | None = None) -> Tensor:
        net = mean_network(self.model, self.guide)
        with torch.no_grad():
            return streamed(lambda part: net(part)[None], x, batch_size)

    def weights(self, data: Dataset | None = None, draws: int = DRAWS) -> Tensor:
        return next(self.guide.parameters()).new_full((draws,), 1.0 / draws)

    def validation(self, data: Dataset) -> tuple[Tensor, Tensor]:
        x = data.x_val
        if self.guide.zero_mean:
            noise: Noise = "activations" if self.guide.scales is not None else "weights"
            out = self.outputs(x, VALIDATION_DRAWS, noise=noise)
        else:
            out = self.mean_outputs(x)
        return out, torch.full((len(out),), 1.0 / len(out), device=x.device)

    def draw(self, draws: int) -> dict[str, Tensor]:
        return draw_sites(self.model, self.guide, draws)

    def depth_posterior(
        self, data: Dataset, kl_weight: float = 1.0, ranks: Ranks = ALONE
    ) -> Tensor | None:
        if not isinstance(self.model, BayesianStack):
            return None
        model, guide = self.model, self.guide
        return depth_posterior_of_weights(model, guide, data, kl_weight=kl_weight, ranks=ranks)

    def structure(
        self,
        data: Dataset,
        threshold: float,
        running: Tensor | None = None,
        kl_weight: float = 1.0,
    ) -> DepthStructure | None:
        again = self.depth_posterior(data, kl_weight)
        if again is None or not isinstance(self.model, BayesianStack):
            return None
        q = self.guide.edge("depth").probs().double()
        # The guide's own are single, and have no small ones.
        q = torch.where(q.log() > -80.0, q, again.to(q))
        each = [
            depth_posterior_of_weights(self.model, self.guide, data, kl_weight=kl_weight, seed=seed)
            for seed in range(1, 1 + OTHERS)  # than the draws of q
        ]
        threshold = threshold * slack(data.N, kl_weight)
        return DepthStructure.from_probs(q, torch.stack(each), threshold, running)


@dataclass(frozen=True)
class Depth:
    """Weights that are numbers: a prediction mixes depths, of which there may be one."""

    model: LearntDepth | FixedDepth
    guide: Guide

    def outputs(
        self, x: Tensor, draws: int = DRAWS, *, batch_size: int | None = None, **options: Any
    ) -> Tensor:
        return outputs_by_depth(self.model, x, batch_size=batch_size)

    def mean_outputs(self, x: Tensor, batch_size: int | None = None) -> Tensor:
        raise PyroccamError(
            "how='deterministic' is for random weights: those of this model are numbers, and what "
            "it mixes are depths. Use inference.shrink for a single network."
        )

    def weights(self, data: Dataset | None = None, draws: int = DRAWS) -> Tensor:
        if isinstance(self.model, FixedDepth):
            return next(self.model.parameters()).new_ones(1)
        if isinstance(self.guide, DepthGuide):
            return self.guide.probs
        if data is None:
            raise PyroccamError(
                f"{type(self.guide).__name__} holds no q(d): pass the data, to take the exact "
                "posterior."
            )
        return exact_depth_posterior(self.model, data).to(self.model.log_prior)

    def validation(self, data: Dataset) -> tuple[Tensor, Tensor]:
        weights = self.weights(data)
        return streamed(self.model.components, data.x_val), weights

    def draw(self, draws: int) -> dict[str, Tensor]:
        return {site: self.guide.posterior(site).sample((draws,)) for site in self.guide.latents()}

    def depth_posterior(
        self, data: Dataset, kl_weight: float = 1.0, ranks: Ranks = ALONE
    ) -> Tensor | None:
        if isinstance(self.model, FixedDepth):
            return None
        return exact_depth_posterior(self.model, data, ranks=ranks)

    def structure(
        self,
        data: Dataset,
        threshold: float,
        running: Tensor | None = None,
        kl_weight: float = 1.0,
    ) -> DepthStructure | None:
        exact = self.depth_posterior(data, kl_weight)
        if exact is None:
            return None
        assert isinstance(self.model, LearntDepth)
        q = (
            self.guide.probs
            if isinstance(self.guide, DepthGuide)
            else exact.to(self.model.log_prior)
        )
        return DepthStructure.from_probs(q, exact, threshold, running)


def family(model: object, guide: object) -> Family:
    """A pair as one of the two kinds.

    Raises:
        PyroccamError: for anything but a model and a guide of it.
    """
    if not isinstance(model, BayesianNetwork | LearntDepth | FixedDepth):
        raise PyroccamError(
            f"The model is {named(model)}, expected models.BayesianNetwork, StructuredNetwork, "
            "LearntDepth or FixedDepth: put your network in one (a Pyro model of your own trains "
            "under pyro.infer.SVI)."
        )
    if not isinstance(guide, Guide):
        raise PyroccamError(
            f"The guide is {named(guide)}, expected one that is made from the model, such as "
            f"guides.{model.usual_guide}(model)."
        )
    guide.refuse(model)
    if not isinstance(model, BayesianNetwork):
        return Depth(model, guide)
    if not isinstance(guide, NetworkGuide):
        raise PyroccamError(
            f"guides.{type(guide).__name__} covers weights: make it a NetworkGuide."
        )
    return Weights(model, guide)


def named(given: object) -> str:
    """Description of a thing for an error."""
    if isinstance(given, type):
        return f"the class {given.__name__}, not an instance of it"
    return f"a {type(given).__name__}"


def random_network(model: Model) -> BayesianNetwork | None:
    """The model, if its weights are random."""
    return model if isinstance(model, BayesianNetwork) else None


N = TypeVar("N", bound=BayesianNetwork)


@overload
def require(
    fit: Fit, kind: type[LearntDepth], name: str, instead: str = ""
) -> tuple[LearntDepth, Guide]: ...
@overload
def require(fit: Fit, kind: type[N], name: str, instead: str = "") -> tuple[N, NetworkGuide]: ...


def require(fit: Fit, kind: type[Model], name: str, instead: str = "") -> Any:
    """The pair of a fit, of which a function needs a kind of model.

    Arguments:
        name: of the function, for the error.
        instead: what to do with a fit of another model, a sentence.

    Raises:
        PyroccamError: for a fit of another model.
        ValueError: for one whose posterior is still to be chosen among many.
    """
    if not hasattr(fit, "guide"):
        raise PyroccamError(
            f"{name} takes a fit, as inference.fit gives it, got {type(fit).__name__}."
        )
    if not isinstance(fit.model, kind):
        raise PyroccamError(
            f"{name} needs a fit of models.{kind.__name__}, got one of "
            f"{type(fit.model).__name__}.{f' {instead}' if instead else ''}"
        )
    refuse_undecided(fit)
    return fit.model, fit.guide


def refuse_undecided(fit: Fit) -> None:
    """Refuse a fit whose guide has a posterior for each weight of the KL.

    Raises:
        PyroccamError: saying how one is chosen.
    """
    if (why := fit.guide.undecided) is not None:
        raise PyroccamError(why)
