"""Scores of a mixture of predictions, by what its likelihood is of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...models.likelihoods import Likelihood
from .metrics import classification_metrics, label_metrics

if TYPE_CHECKING:
    from ...data import Dataset

_ROOTS = ("rmse",)
_NO_MEANS = ("ece", "f1", "auroc")

_TAIL = 0.05  # of each side of the interval whose coverage is counted


def by_parts(
    data: Dataset, split: str, judge: Callable[[Tensor, Tensor], dict[str, float]]
) -> dict[str, float]:
    """Scores of a split; of training rows that are streamed part by part, as :func:`merged`."""
    if split != "train" or not data.streamed:
        return judge(*data.split(split))
    return merged((len(x), judge(x, y)) for x, y in data.parts(split, weighted=False))


def merged(parts: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Scores of all rows from those of parts of them, each with its number of rows. Only of those
    that are means over rows, or roots of such: others are left out."""
    sums: dict[str, float] = {}
    rows = 0
    for count, scores in parts:
        rows += count
        for name, value in scores.items():
            if name not in _NO_MEANS:
                term = value * value if name in _ROOTS else value
                sums[name] = sums.get(name, 0.0) + count * term
    return {n: math.sqrt(s / rows) if n in _ROOTS else s / rows for n, s in sums.items()}


def score_classes(likelihood: Likelihood, log_probs: Tensor, y: Tensor) -> dict[str, float]:
    """Scores of classes: those of
    :func:`~pyroccam.inference.posterior.metrics.classification_metrics`; of classes in an order
    also ``rank_mae``, the mean distance in ranks of the label from the median of what is predicted,
    which has the least expected distance.
    """
    found = classification_metrics(log_probs, y)
    if "rank_mae" in likelihood.scores:
        median = (log_probs.double().exp().cumsum(-1)[:, :-1] < 0.5).sum(-1)
        found["rank_mae"] = float((median - y).abs().double().mean())
    return found


def score_targets(
    likelihood: Likelihood, mean: Tensor, log_p: Tensor, y: Tensor, below: Tensor | None = None
) -> dict[str, float]:
    """Scores of targets, all in their original units, the rows equally weighted.

    Arguments:
        mean: of the mixture, ``(N, T)``.
        log_p: log density of the targets of each row, ``(N,)``, in nats.
        y: targets, ``(N, T)``.
        below: probability by the mixture of less than each target, ``(N, T)``, if the likelihood
            has it.

    Returns:
        ``rmse`` (or what :func:`~pyroccam.inference.posterior.metrics.label_metrics` gives, of
        labels) and ``nll``; of counts ``deviance``, that of a Poisson distribution; of some
        likelihoods ``mae``, mean absolute error, and ``coverage``, the share of targets in the
        central 90 % of the mixture.
    """
    mean, y = mean.double(), y.double()
    if likelihood.task == "multi-label":
        found = label_metrics(mean, y)
    else:
        found = {"rmse": float((mean - y).square().mean().sqrt())}
    if "mae" in likelihood.scores:
        found["mae"] = float((mean - y).abs().mean())
    if likelihood.task == "counts":
        # 2 (y log(y / m) - y + m): nothing where both are equal, and y log y is zero at zero.
        found["deviance"] = float(2 * (torch.xlogy(y, y / mean) - y + mean).mean())
    found["nll"] = -float(log_p.double().mean())
    if below is not None:
        found["coverage"] = float(((below > _TAIL) & (below < 1 - _TAIL)).double().mean())
    return found
