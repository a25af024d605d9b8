"""Prediction: outputs at every depth, streamed, and the metrics of their mixture."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from ...models import Fields, Model, evaluating, fields_of, give
from ...models.likelihoods import (
    LEAST_ROWS,
    Classification,
    Likelihood,
    Regression,
    learns_noise,
    noise_of_rows,
    set_noise,
)
from ...models.plain import PrunedNetwork
from .draws import rows_in_a_pass
from .metrics import by_parts, score_classes, score_targets

if TYPE_CHECKING:
    from ...data import Dataset

DRAWS = 20
"""Networks drawn from the posterior for a prediction."""

How = Literal["ensemble", "stochastic", "deterministic"]
HOWS: tuple[How, ...] = ("stochastic", "deterministic", "ensemble")


TEXTS = 64
"""Texts in a pass: of MiniLM's a thousand take three times as long at once."""


def streamed(f: Callable[[Tensor], Tensor], x: Tensor, fields: Fields | None = None) -> Tensor:
    """``f`` over batches of ``x``, of 1024 rows or fewer large images, or of texts of about one
    length, as padding takes time; the results ``(S, B, ...)`` are joined along B. A network may
    change its inputs in place: it gets copies.

    Arguments:
        fields: of the inputs of a row, if there are several.
    """
    lengths = None if fields is None else fields.lengths(x)
    if lengths is None:
        return torch.cat([f(part.clone()) for part in x.split(rows_in_a_pass(x))], dim=1)
    order = lengths.argsort(stable=True)
    found = torch.cat([f(part) for part in x[order].split(TEXTS)], dim=1)
    return found[:, order.argsort()]


def outputs_of_rows(net: nn.Module, x: Tensor) -> Tensor:
    """``(N, outputs)`` of a plain network, in evaluation mode."""
    with evaluating(net):
        return streamed(lambda part: net(part)[None], x, fields_of(net))[0]


def outputs_by_depth(model: Model | PrunedNetwork, x: Tensor) -> Tensor:
    """Raw outputs at every depth that the model has, ``(S, N, outputs)`` for ``x``, ``(N, *)``, in
    evaluation mode."""
    with evaluating(model):
        return streamed(model.components, x)


def mixture_log_probs(outputs: Tensor, weights: Tensor) -> Tensor:
    """``log Σ_s w_s softmax(outputs_s)``, ``(N, C)``, of logits ``(S, N, C)``: probabilities are
    averaged, not logits."""
    log_weights = weights.log().clamp_min(-1e4)
    return torch.logsumexp(log_weights[:, None, None] + outputs.log_softmax(-1), 0)


def evaluate_outputs(
    outputs: Tensor, weights: Tensor, likelihood: Likelihood, y: Tensor, y_std: Tensor
) -> dict[str, float]:
    """Metrics of the mixture over depths; those of targets in original units.

    Arguments:
        outputs: ``(S, N, outputs)``.
        weights: ``(S,)``.
        likelihood: what the outputs mean.
        y: targets ``(N, ...)``.
        y_std: ``(T,)``, by which targets were divided.
    """
    w, scale = weights.detach().double(), y_std.double()
    w = w / w.sum()
    if type(likelihood) is Regression:  # its numbers follow the precision of what it is given
        outputs, y = outputs.double(), y.double()
    with torch.no_grad():
        predicted = likelihood.predicted(outputs)
        if likelihood.task == "classification":
            return score_classes(likelihood, mixture_log_probs(predicted, weights), y)
        log_p = likelihood.log_predictive(outputs, w.log().clamp_min(-1e4), y).double()
        mean = torch.einsum("s,snt->nt", w, predicted.double())
        return score_targets(
            likelihood, mean * scale, log_p - scale.log().sum(), y.double() * scale,
            below_targets(likelihood, outputs, w, y),
        )  # fmt: skip


def below_targets(
    likelihood: Likelihood, outputs: Tensor, weights: Tensor, y: Tensor
) -> Tensor | None:
    """The probability of less than each target, ``(N, T)``, where its likelihood is scored by
    it."""
    if "coverage" not in likelihood.scores:
        return None
    return torch.einsum("s,snt->nt", weights.double(), likelihood.below(outputs, y).double())


def evaluate_single(
    outputs: Tensor, weights: Tensor, likelihood: Likelihood, y: Tensor, y_std: Tensor
) -> dict[str, float]:
    """Metrics of one component, on average over them: what one draw is worth."""
    one = torch.ones(1, device=weights.device)
    each = [evaluate_outputs(part[None], one, likelihood, y, y_std) for part in outputs]
    shares = weights.tolist()
    return {name: sum(w * m[name] for w, m in zip(shares, each, strict=True)) for name in each[0]}


def evaluate_pruned(
    net: PrunedNetwork, x: Tensor, y: Tensor, y_std: Tensor, *,
    known: bool = False, weights: Tensor | None = None,
) -> dict[str, float]:  # fmt: skip
    """Metrics of a pruned network on ``x`` and ``y``; of its validation rows, with their weights,
    as if each was not ``known`` (:meth:`~pyroccam.models.likelihoods.Likelihood.left_out`)."""
    likelihood = net.likelihood or Classification(net.outputs)
    if net.scale is not None:
        likelihood = Regression(net.outputs, floor=0.0)
        set_noise(likelihood.to(x.device), {"log_scale": net.scale.log()})
    outputs = outputs_by_depth(net, x)
    if known:
        outputs = likelihood.left_out(net, outputs, y, weights)
    return evaluate_outputs(outputs, net.log_weights.exp(), likelihood, y, y_std)


def nll_by_depth(outputs: Tensor, likelihood: Likelihood, y: Tensor, y_std: Tensor) -> list[float]:
    """Mean negative log-likelihood of each depth alone, in nats, targets in original units, of
    outputs ``(D + 1, N, outputs)``."""
    units = float(y_std.double().log().sum())
    with torch.no_grad():
        return [units - float(ll.double().mean()) for ll in likelihood(outputs).log_prob(y)]


def nll_of_rows(
    data: Dataset, split: str, outputs: Callable[[Tensor], Tensor], likelihood: Likelihood
) -> list[float]:
    """:func:`nll_by_depth` of all rows of a split; ``outputs`` gives those of inputs at every
    depth."""

    def judged(x: Tensor, y: Tensor) -> dict[str, float]:
        found = nll_by_depth(outputs(x), likelihood, y, data.y_std)
        return {str(depth): nll for depth, nll in enumerate(found)}

    return [*by_parts(data, split, judged).values()]


@torch.no_grad()
def validated(
    likelihood: Likelihood, net: nn.Module, data: Dataset, split: str = "val"
) -> Likelihood:
    """The likelihood of a plain network: noise that is learnt is that of the validation rows, or
    those of another ``split``, if there are at least ten; what a posterior of weights took for
    noise is none of the means."""
    x, y = next(data.parts(split, weighted=False))  # of what is streamed, the first part
    if len(x) < LEAST_ROWS or not learns_noise(likelihood):
        return likelihood
    with evaluating(net):
        (outputs,) = streamed(lambda part: give(net, part, data.fields)[None], x, data.fields)
    return suited(likelihood, outputs, y)


@torch.no_grad()
def suited(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Likelihood:
    """The likelihood with the noise that rows want, where noise is learnt and there are ten of
    them; else itself. Outputs are those of one network, ``(N, outputs)``."""
    if len(y) < LEAST_ROWS or not learns_noise(likelihood):
        return likelihood
    own = copy.deepcopy(likelihood)
    set_noise(own, noise_of_rows(own, outputs[None], torch.ones(1, device=y.device), y))
    return own


def evaluate_net(
    net: nn.Module,
    model: Model,
    data: Dataset,
    split: str = "test",
    *,
    likelihood: Likelihood | None = None,
) -> dict[str, float]:
    """Metrics of a plain network on a split of the data set.

    Arguments:
        model: of which it was made.
        likelihood: by which it predicts; that of ``model``, with the noise of the validation rows
            (:func:`validated`), if left out.
    """
    own = validated(model.likelihood, net, data) if likelihood is None else likelihood

    def judged(x: Tensor, y: Tensor) -> dict[str, float]:
        with evaluating(net):
            outputs = streamed(lambda part: give(net, part, data.fields)[None], x, data.fields)
        return evaluate_outputs(outputs, torch.ones(1, device=x.device), own, y, data.y_std)

    return by_parts(data, split, judged)
