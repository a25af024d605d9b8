"""Prediction: outputs at every depth, streamed, and the metrics of their mixture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from ...guides.depth import CategoricalDepth
from ...guides.base import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ...models.contexts import evaluating
from ...models.learnt_depth import FixedDepth, LearntDepth, stacked_outputs
from ...models.likelihoods import Likelihood, Regression
from ...models.plain.pruned import PrunedNetwork
from .depth import exact_depth_posterior
from .draws import Noise, draw_outputs, rows_in_a_pass
from .metrics import classification_metrics, regression_metrics

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = [
    "HOWS",
    "How",
    "component_weights",
    "depth_weights",
    "evaluate_net",
    "evaluate_outputs",
    "evaluate_pruned",
    "evaluate_single",
    "mixture_log_probs",
    "nll_by_depth",
    "outputs_by_depth",
    "predictive_outputs",
]

# Networks drawn from the posterior for a prediction.
DRAWS = 20

How = Literal["ensemble", "stochastic", "deterministic"]
HOWS: tuple[How, ...] = ("stochastic", "deterministic", "ensemble")


def streamed(f: Callable[[Tensor], Tensor], x: Tensor, batch_size: int | None = None) -> Tensor:
    """``f`` over batches of ``x``, 1024 rows by default or fewer large images; the results
    ``(S, B, ...)`` are joined along B. A network may change its inputs in place: it gets copies."""
    parts = x.split(rows_in_a_pass(x, batch_size))
    return torch.cat([f(part.clone()) for part in parts], dim=1)


def outputs_by_depth(
    model: LearntDepth | FixedDepth | PrunedNetwork, x: Tensor, *, batch_size: int | None = None
) -> Tensor:
    """Raw outputs at every depth that the model has, in evaluation mode.

    Arguments:
        model: with S depths (one for a fixed depth or a single exit).
        x: ``(N, *)``.
        batch_size: rows in a pass, by default 1024, or fewer large images.

    Returns:
        ``(S, N, outputs)``.
    """
    with evaluating(model):
        if isinstance(model, PrunedNetwork):
            return streamed(model.components, x, batch_size)
        return streamed(lambda part: stacked_outputs(model, part), x, batch_size)


def depth_weights(
    model: LearntDepth | FixedDepth, guide: nn.Module, data: Dataset | None = None
) -> Tensor:
    """The weights of the depths in a prediction: q(d), one for a fixed depth, or, where the guide
    has no depth (maximum marginal likelihood), the exact posterior given the training rows.

    Returns:
        ``(S,)``, summing to one.
    """
    if isinstance(model, FixedDepth):
        return next(model.parameters()).new_ones(1)
    if isinstance(guide, CategoricalDepth):
        return guide.probs
    if data is None:
        raise ValueError(
            f"{type(guide).__name__} holds no q(d): pass the data, to take the exact posterior."
        )
    return exact_depth_posterior(model, data).to(model.log_prior)


def component_weights(
    model: Any, guide: nn.Module, data: Dataset | None = None, draws: int = DRAWS
) -> Tensor:
    """Weights ``(S,)`` of the outputs that a prediction mixes: of the depths, or of equally likely
    draws from the posterior of a Bayesian network."""
    if isinstance(model, BayesianNetwork):
        return next(guide.parameters()).new_full((draws,), 1.0 / draws)
    return depth_weights(model, guide, data)


def predictive_outputs(
    model: Any,
    guide: nn.Module,
    x: Tensor,
    *,
    draws: int = DRAWS,
    noise: Noise = "weights",
    seed: int = 0,
    batch_size: int | None = None,
) -> Tensor:
    """The outputs ``(S, N, outputs)`` that a prediction mixes, see :func:`component_weights`.

    Arguments:
        draws, noise, seed: of random weights, see
            :func:`~pyroccam.inference.posterior.draw_outputs`.
        batch_size: as there.
    """
    if isinstance(model, BayesianNetwork):
        assert isinstance(guide, NetworkGuide)
        more: dict[str, Any] = {"noise": noise, "seed": seed, "batch_size": batch_size}
        return draw_outputs(model, guide, x, draws, **more)
    return outputs_by_depth(model, x, batch_size=batch_size)


def mixture_log_probs(outputs: Tensor, weights: Tensor) -> Tensor:
    """``log Σ_s w_s softmax(outputs_s)``: probabilities are averaged, not logits.

    Arguments:
        outputs: logits ``(S, N, C)``.
        weights: ``(S,)``.

    Returns:
        ``(N, C)``.
    """
    log_weights = weights.log().clamp_min(-1e4)
    return torch.logsumexp(log_weights[:, None, None] + outputs.log_softmax(-1), 0)


def evaluate_outputs(
    outputs: Tensor, weights: Tensor, likelihood: Likelihood, y: Tensor, y_std: Tensor
) -> dict[str, float]:
    """Metrics of the mixture over depths; regression in original units of the target.

    Arguments:
        outputs: ``(S, N, outputs)``.
        weights: ``(S,)``.
        likelihood: what the outputs mean.
        y: targets ``(N, ...)``.
        y_std: ``(T,)``, by which regression targets were divided.
    """
    if type(likelihood) is Regression:  # a kind of it may be no Normal
        return regression_metrics(outputs, likelihood.scale.detach(), weights, y, y_std)
    with torch.no_grad():
        predicted = likelihood.predicted(outputs)
        if likelihood.task == "classification":
            return classification_metrics(mixture_log_probs(predicted, weights), y)
        log_p = likelihood.log_predictive(outputs, weights.log().clamp_min(-1e4), y).double()
        wrong = (torch.einsum("s,snt->nt", weights.to(predicted), predicted) - y) * y_std
        return {
            "rmse": float(wrong.double().square().mean().sqrt()),
            "nll": float(y_std.double().log().sum() - log_p.mean()),
        }


def evaluate_single(
    outputs: Tensor, weights: Tensor, likelihood: Likelihood, y: Tensor, y_std: Tensor
) -> dict[str, float]:
    """Metrics of one component, on average over them: what one draw is worth.

    Arguments:
        outputs, weights, likelihood, y, y_std: as for :func:`evaluate_outputs`.
    """
    one = torch.ones(1, device=weights.device)
    each = [evaluate_outputs(part[None], one, likelihood, y, y_std) for part in outputs]
    shares = weights.tolist()
    return {name: sum(w * m[name] for w, m in zip(shares, each, strict=True)) for name in each[0]}


def evaluate_pruned(net: PrunedNetwork, x: Tensor, y: Tensor, y_std: Tensor) -> dict[str, float]:
    """Metrics of a pruned network on ``x`` and ``y``."""
    outputs = outputs_by_depth(net, x)
    weights = net.log_weights.exp()
    if net.likelihood is not None:
        return evaluate_outputs(outputs, weights, net.likelihood, y, y_std)
    if net.task == "regression":
        return regression_metrics(outputs, cast(Tensor, net.scale), weights, y, y_std)
    return classification_metrics(mixture_log_probs(outputs, weights), y)


def nll_by_depth(outputs: Tensor, likelihood: Likelihood, y: Tensor) -> list[float]:
    """Mean negative log-likelihood of each depth alone, in nats (standardised targets)."""
    with torch.no_grad():
        return [-float(ll.double().mean()) for ll in likelihood(outputs).log_prob(y)]


@torch.no_grad()
def evaluate_net(
    net: nn.Module, model: BayesianNetwork, data: Dataset, split: str = "test"
) -> dict[str, float]:
    """Metrics of a plain network on a split of the data set.

    Arguments:
        net: gives what the likelihood of ``model`` takes.
        model: of which it was made.
        data: with the split.
    """
    x, y = data.split(split)
    outputs = streamed(lambda part: net(part)[None], x)
    one = torch.ones(1, device=x.device)
    return evaluate_outputs(outputs, one, model.likelihood, y, data.y_std)
