"""What a pair knows, by its kind: the one place that asks what a model is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ...data import PyroccamError
from ...guides import DepthGuide, Guide, NetworkGuide
from ...models import (
    BayesianNetwork,
    BayesianStack,
    LearntDepth,
    Model,
    PlainNetwork,
    evaluating,
    fields_of,
)
from ..distributed import ALONE, Ranks
from .depth import OTHERS, DepthStructure, depth_posterior_of_weights, exact_depth_posterior, slack
from .draws import Noise, draw_outputs
from .layers import Layer, layer_moments, mean_network
from .mean_propagation import Curvatures, curvature
from .predict import DRAWS, outputs_by_depth, outputs_of_rows, streamed

if TYPE_CHECKING:
    from ...data import Dataset

VALIDATION_DRAWS = 5


class Fit(Protocol):
    """A trained pair, see :class:`pyroccam.inference.Fit`."""

    model: Any
    guide: Any
    data: Dataset
    settings: Any
    structure: DepthStructure | None
    weights: Tensor

    @property
    def posterior(self) -> Posterior: ...

    @property
    def outputs(self) -> Any: ...

    @property
    def components(self) -> Any: ...

    @property
    def left_out(self) -> Any: ...


class Repeats(Protocol):
    """Several fits, see :class:`pyroccam.inference.Repeats`."""

    @property
    def fits(self) -> Sequence[Any]: ...


Fits = Fit | Repeats | Sequence[Any]


def members(fits: Fits) -> list[Any]:
    """The fits that a prediction averages, one at least."""
    found = list(getattr(fits, "fits", cast(Any, fits)))
    if not found:
        raise PyroccamError("fits: got none, expected at least one fit.")
    return found


def chains_of(fit: Any) -> list[Any]:
    """A fit for each chain of the draws that it is; itself where there are no chains."""
    parts = fit.guide.by_chain(fit.model)
    return [replace(fit, guide=part.eval()) for part in parts] if len(parts) > 1 else [fit]


class Posterior:
    """What a trained pair knows of its latents: draws, densities, moments, predictions.

    Where weights are numbers, a prediction mixes depths, of which there may be one.

    Attributes:
        model, guide: the pair.
        data: of which the exact posterior of a depth is taken that the model sums out; without it
            such a pair has no :attr:`shares`.
        seed: of the draws of :meth:`outputs`, where no other is given.
    """

    def __init__(self, model: Any, guide: Any, data: Dataset | None = None, seed: int = 0) -> None:
        self.model, self.guide, self.data, self.seed = model, guide, data, seed

    @property
    def is_point(self) -> bool:
        """True if every pass gives the same: weights that are points, a known structure, and no
        dropout."""
        drops = any(isinstance(part, _DropoutNd) for part in self.model.modules())
        return not drops and self.guide.traits.point

    @property
    def layers(self) -> dict[str, Layer]:
        """Means and variances of all random weights, by layer, for the present
        parameters."""
        return {}

    @property
    def shares(self) -> Tensor:
        """Shares of what a prediction mixes, ``(S,)``: of depths, or of 20 draws of weights."""
        if isinstance(self.model, PlainNetwork):
            return next(self.model.parameters()).new_ones(1)
        if isinstance(self.guide, DepthGuide):
            return self.guide.probs
        if self.data is None:
            raise PyroccamError(
                f"{type(self.guide).__name__} holds no q(d)", "data, of which it is found"
            )
        return exact_depth_posterior(self.model, self.data).to(self.model.log_prior)

    def draw(self, draws: int) -> dict[str, Tensor]:
        """Values of all latents, ``(S, *)`` by site, independent draws."""
        return {site: self.guide.posterior(site).sample((draws,)) for site in self.guide.latents()}

    def log_prob(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Log densities of values ``(S, *)``, ``(S,)`` by site, float64, on the CPU; of points
        there are none."""
        log_q = self.shares.double().log()
        return {site: log_q[value].cpu() for site, value in values.items()}

    def outputs(
        self,
        x: Tensor,
        draws: int = DRAWS,
        *,
        noise: Noise = "weights",
        only: Mapping[str, Tensor] | None = None,
        seed: int | None = None,
    ) -> Tensor:
        """Outputs that a prediction mixes, ``(S, N, outputs)``, for inputs ``(N, *)``: at every
        depth, or of draws of random weights, see
        :func:`~pyroccam.inference.posterior.draws.draw_outputs`."""
        return outputs_by_depth(self.model, x)

    def mean_network(self) -> nn.Module:
        """The plain network with the posterior means as weights, in evaluation mode; of random
        structure it has the most probable.

        Raises:
            PyroccamError: where weights are numbers.
        """
        raise PyroccamError(f"The weights of a {type(self.model).__name__}", "random weights")

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs of :meth:`mean_network`, ``(1, N, outputs)``."""
        with torch.no_grad():
            return outputs_of_rows(self.mean_network(), x)[None]

    def curvature(self, **options: Any) -> Curvatures:
        """Which weights may be replaced by their means, see
        :func:`~pyroccam.inference.posterior.mean_propagation.curvature`."""
        return curvature(self, **options)

    def validation(self, data: Dataset) -> tuple[Tensor, Tensor]:
        """Outputs for the validation rows, ``(S, N, outputs)``, and their shares: of the depths, or
        of the one network of the means; where there are none, of a few draws as in training."""
        shares = self.shares
        return streamed(self.model.components, data.x_val), shares

    def depth_posterior(
        self, data: Dataset, kl_weight: float = 1.0, ranks: Ranks = ALONE
    ) -> Tensor | None:
        """The best q(d) for the present weights, or their posterior, ``(D + 1,)``; ``None`` where
        the depth is known.

        Arguments:
            kl_weight: of the KL in the objective.
            ranks: processes that share the training rows.
        """
        if isinstance(self.model, PlainNetwork):
            return None
        return exact_depth_posterior(self.model, data, ranks=ranks)

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
        exact = self.depth_posterior(data)
        if exact is None:
            return None
        own = isinstance(self.guide, DepthGuide)
        q = self.guide.probs if own else exact.to(self.model.get_buffer("log_prior"))
        return DepthStructure.from_probs(q, exact, threshold, running)


class WeightPosterior(Posterior):
    """Random weights, and perhaps random structure: a prediction mixes draws."""

    model: BayesianNetwork
    guide: NetworkGuide

    @property
    def layers(self) -> dict[str, Layer]:
        return layer_moments(self.model, self.guide)

    @property
    def shares(self) -> Tensor:
        return next(self.guide.parameters()).new_full((DRAWS,), 1.0 / DRAWS)

    def draw(self, draws: int) -> dict[str, Tensor]:
        return self.guide.draw(draws)

    def log_prob(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.guide.samples is not None:
            return {}
        return {
            site: log_prob_of(self.guide.posterior(site), value)
            for site, value in values.items()
            if not self.guide.factor_of(site).is_point
        }

    def outputs(
        self, x: Tensor, draws: int = DRAWS, *, seed: int | None = None, **options: Any
    ) -> Tensor:
        seed = self.seed if seed is None else seed
        return draw_outputs(self.model, self.guide, x, draws, seed=seed, **options)

    def mean_network(self) -> nn.Module:
        return mean_network(self.model, self.guide)

    def mean_outputs(self, x: Tensor) -> Tensor:
        if self.model.structure:
            return super().mean_outputs(x)
        model, weights = self.model, {name: (m.mean, m.bias) for name, m in self.layers.items()}
        with evaluating(model):
            fields = fields_of(model.part("net"))
            return streamed(lambda part: model.outputs_at(weights, part)[None], x, fields)

    def validation(self, data: Dataset) -> tuple[Tensor, Tensor]:
        x = data.x_val
        if self.guide.traits.zero_mean or self.guide.samples is not None:
            noise: Noise = "activations" if self.guide.scales is not None else "weights"
            out = self.outputs(x, VALIDATION_DRAWS, noise=noise, seed=0)
        else:
            out = self.mean_outputs(x)
        return out, torch.full((len(out),), 1.0 / len(out), device=x.device)

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
        exact = self.depth_posterior(data, kl_weight)
        if exact is None:
            return None
        model: Any = self.model
        q = self.guide.edge("depth").probs().double()
        # The guide's own are single, and have no small ones.
        q = torch.where(q.log() > -80.0, q, exact.to(q))
        each = [
            depth_posterior_of_weights(model, self.guide, data, kl_weight=kl_weight, seed=seed)
            for seed in range(1, 1 + OTHERS)  # than the draws of q
        ]
        threshold = threshold * slack(data.N, kl_weight)
        return DepthStructure.from_probs(q, torch.stack(each), threshold, running)


def log_prob_of(distribution: Any, values: Tensor) -> Tensor:
    """Log densities of values ``(S, *)``, summed over all but the draws, ``(S,)``, float64, on the
    CPU."""
    found: Tensor = distribution.log_prob(values).double()
    return found.reshape(len(values), -1).sum(1).cpu()


def posterior_of(
    model: object, guide: object, data: Dataset | None = None, seed: int = 0
) -> Posterior:
    """What a pair knows, as one of the two kinds; of a fit it is ``fit.posterior``.

    Raises:
        PyroccamError: for anything but a model and a guide of it.
    """
    if not isinstance(model, BayesianNetwork | LearntDepth | PlainNetwork):
        raise PyroccamError(
            f"The model is {named(model)}",
            "models.BayesianNetwork, StructuredNetwork, LearntDepth or PlainNetwork",
        )
    if not isinstance(guide, Guide):
        raise PyroccamError(f"The guide is {named(guide)}", f"guides.{model.usual_guide}(model)")
    guide.refuse(model)
    if not isinstance(model, BayesianNetwork):
        return Posterior(model, guide, data, seed)
    if not isinstance(guide, NetworkGuide):
        raise PyroccamError(f"guides.{type(guide).__name__} covers weights", "a NetworkGuide")
    return WeightPosterior(model, guide, data, seed)


def named(given: object) -> str:
    """Description of a thing for an error."""
    if isinstance(given, type):
        return f"the class {given.__name__}, not an instance of it"
    return f"a {type(given).__name__}"


def random_network(model: Model) -> BayesianNetwork | None:
    """The model, if its weights are random."""
    return model if isinstance(model, BayesianNetwork) else None


M = TypeVar("M", bound=Model)


def require(fit: Fit, kind: type[M], name: str, instead: str = "") -> tuple[M, Any]:
    """The pair of a fit, of which a function needs a kind of model.

    Arguments:
        name: of the function, for the error.
        instead: what to do with a fit of another model, a sentence.

    Raises:
        PyroccamError: for a fit of another model, or one whose posterior is still to be chosen
            among many.
    """
    if not hasattr(fit, "guide"):
        raise PyroccamError(f"{name} got {named(fit)}", "a fit, as inference.fit gives it")
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
    if (variable := fit.guide.traits.variable) is not None:
        raise PyroccamError(
            f"a fit for every {variable}", "one of them", f"fit.at({fit.guide.usual:g})"
        )
