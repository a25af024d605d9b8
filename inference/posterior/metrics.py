"""Scores of predictive distributions: accuracy, likelihood, Brier, calibration.

Every classification score takes *log*-probabilities, so that a likelihood is a likelihood
and a confident mistake costs what it should. Sums are taken in float64 whatever the network
ran in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...data import PyroccamError
from ...models.likelihoods import Likelihood

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = [
    "Reliability",
    "classification_metrics",
    "label_metrics",
    "mean_spread",
    "poster_ece",
    "reliability",
]

_TOLERANCE = 1e-3  # how far a row of probabilities may be from one
_NO_MEANS = ("ece", "f1", "auroc")
_ROWS = 1000  # whose similarities are compared, at most
_TAIL = 0.05  # of each side of the interval whose coverage is counted


class Reliability(NamedTuple):
    """Top-label reliability in equal-width bins of confidence over [0, 1], (bins,), on the CPU.

    Attributes:
        confidence: mean probability of the predicted class; nan where the bin is empty.
        accuracy: share of correct predictions; nan where the bin is empty.
        counts: number of rows.
    """

    confidence: Tensor
    accuracy: Tensor
    counts: Tensor

    @property
    def ece(self) -> float:
        """Expected calibration error: mean ``|accuracy - confidence|`` over rows, in [0, 1]."""
        gap = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return float((gap * self.counts).sum() / self.counts.sum())


def _checked_classification(log_probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(N, C) log-probabilities and (N,) labels, in float64 and int64.

    Rows within the tolerance are normalised exactly, so that no probability exceeds one.
    """
    log_p, labels = log_probs.detach().double(), y.detach().to(log_probs.device)
    fits = log_p.ndim == 2 and len(log_p) and labels.shape == log_p.shape[:1]
    known = fits and not y.is_floating_point() and int(labels.min()) >= 0
    known = known and int(labels.max()) < log_p.shape[1] and bool(torch.isfinite(log_p).all())
    if not known or float(torch.logsumexp(log_p, -1).abs().max()) > _TOLERANCE:
        raise PyroccamError(
            f"log_probs {tuple(log_p.shape)} and y {tuple(y.shape)} of {y.dtype}",
            "finite log-probabilities (N, C), as log_softmax gives them, and labels (N,) of them",
        )
    return torch.log_softmax(log_p, -1), labels.long()


def classification_metrics(log_probs: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, negative log-likelihood, Brier score and calibration error.

    Arguments:
        log_probs: log-probabilities of the classes, (N, C), C >= 2, that sum to one within 1e-3.
        y: labels in 0 ... C - 1, (N,), integers.

    Returns:
        ``accuracy``; ``nll``, nats per row; ``brier``, the squared error *summed over the classes*,
        mean of the rows, in [0, 2]; ``ece``, of the top label, 15 equal-width bins, in [0, 1].

    Raises:
        PyroccamError: if a shape, a type, a label or the normalisation is wrong.

    References:
        Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017.
        Brier, "Verification of forecasts expressed in terms of probability", 1950.
    """
    log_p, labels = _checked_classification(log_probs, y)
    probs = log_p.exp()
    one_hot = torch.nn.functional.one_hot(labels, log_p.shape[1])
    return {
        "accuracy": float((probs.argmax(-1) == labels).double().mean()),
        "nll": float(torch.nn.functional.nll_loss(log_p, labels)),
        "brier": float((probs - one_hot).square().sum(-1).mean()),
        "ece": _reliability(probs, labels).ece,
    }


def rank_correlation(first: Tensor, other: Tensor) -> float:
    """Spearman's correlation of the cosines of all pairs of rows in two embeddings of them: whether
    the same rows are the most alike.

    Arguments:
        first, other: ``(N, T)`` and ``(N, U)``, N at least 3.

    References:
        Spearman 1904, "The proof and measurement of association between two things"; Cer et al.
        2017, arXiv:1708.00055, for embeddings of sentences.
    """
    from scipy.stats import spearmanr

    lower, upper = torch.triu_indices(len(first), len(first), 1)
    units = (torch.nn.functional.normalize(one.double().cpu(), dim=-1) for one in (first, other))
    pairs = [(one @ one.T)[lower, upper].numpy() for one in units]
    return float(spearmanr(*pairs).statistic)


def label_metrics(probs: Tensor, y: Tensor) -> dict[str, float]:
    """Scores of labels of which each row may have any number.

    Arguments:
        probs: probability of each label, (N, L).
        y: 0 or 1 for each, (N, L).

    Returns:
        ``accuracy``: share of all labels of all rows that a probability above a half predicts.
        ``f1`` and ``auroc``: means over the labels ("macro"), the latter over those of which there
        are rows with and without. ``brier``: mean squared error, in [0, 1]. ``ece``: of all labels
        of all rows, as of two classes.

    Raises:
        PyroccamError: for shapes that differ, or probabilities that are none.
    """
    from torchmetrics.functional.classification import multilabel_auroc, multilabel_f1_score

    p, marks = probs.detach().double(), y.detach().to(probs.device).long()
    if p.ndim != 2 or p.shape != y.shape or not bool(((p >= 0) & (p <= 1)).all()):
        raise PyroccamError(
            f"probs and y of shapes {tuple(probs.shape)} and {tuple(y.shape)}",
            "probabilities in [0, 1] and labels, both (N, L)",
        )
    labels = p.shape[1]
    found = {
        "accuracy": float(((p > 0.5) == (marks > 0)).double().mean()),
        "f1": float(multilabel_f1_score(p, marks, num_labels=labels, average="macro")),
    }
    both = (marks.amin(0) == 0) & (marks.amax(0) == 1)
    if count := int(both.sum()):
        of = p[:, both], marks[:, both]
        found["auroc"] = float(multilabel_auroc(*of, num_labels=count, average="macro"))
    found["brier"] = float((p - marks).square().mean())
    two = torch.stack([1 - p, p], -1).reshape(-1, 2)
    return {**found, "ece": _reliability(two, marks.reshape(-1)).ece}


def reliability(log_probs: Tensor, y: Tensor) -> Reliability:
    """Confidence against accuracy of the predicted class, in 15 bins of equal width over [0, 1]; a
    bin holds its lower edge, and the last one also holds 1.

    Arguments:
        log_probs, y: as for :func:`classification_metrics`.
    """
    log_p, labels = _checked_classification(log_probs, y)
    return _reliability(log_p.exp(), labels)


def _reliability(probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    edges = torch.linspace(0, 1, bins + 1, dtype=probs.dtype, device=probs.device)
    confidence, predicted = probs.max(-1)
    index = (torch.bucketize(confidence, edges, right=True) - 1).clamp(0, bins - 1)
    counts = torch.bincount(index, minlength=bins)
    correct = (predicted == labels).to(probs)
    return Reliability(
        confidence=(torch.bincount(index, confidence, minlength=bins) / counts).cpu(),
        accuracy=(torch.bincount(index, correct, minlength=bins) / counts).cpu(),
        counts=counts.cpu(),
    )


def poster_ece(log_probs: Tensor, y: Tensor) -> float:
    """The calibration number of the depth-search poster's table, which is no calibration error:

    * all C class probabilities of a row count as separate predictions;
    * a prediction is a hit only if its class is both the label *and* the likeliest class of
      its row, so the probability rightly given to second choices never earns a hit;
    * of ten bins of equal width, each holds its upper edge, and the frequency of hits in a bin is
      compared with that *upper edge* and not with the mean prediction in it.

    Arguments:
        log_probs, y: as for :func:`classification_metrics`.

    Returns:
        The mean ``|frequency - upper edge|`` over the N * C predictions (the poster prints per
        cent).

    The authors' own evaluation drops probabilities of exactly zero and turns to nan when a
    bin is empty; here zeros fall in the lowest bin, and an empty bin counts for nothing.

    References:
        Antoran, Allingham and Hernandez-Lobato, "Variational depth search in ResNets",
        2020, table 1 of the poster.
    """
    log_p, labels = _checked_classification(log_probs, y)
    probs, bins = log_p.exp(), 10
    edges = torch.linspace(0, 1, bins + 1, dtype=probs.dtype, device=probs.device)
    rows = torch.arange(len(labels), device=labels.device)
    hits = torch.zeros_like(probs)
    hits[rows, labels] = (probs.argmax(-1) == labels).to(probs)
    index = (torch.bucketize(probs.reshape(-1), edges) - 1).clamp(0, bins - 1)
    counts = torch.bincount(index, minlength=bins)
    hits_per_bin = torch.bincount(index, hits.reshape(-1), minlength=bins)
    return float((hits_per_bin - edges[1:] * counts).abs().sum() / counts.sum())


def mean_spread(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Mean and sample standard deviation of every metric over repeated runs.

    Arguments:
        runs: one mapping of metrics per run. A run may lack a metric that others have.

    Returns:
        For each metric ``mean``, ``sd`` (of n - 1; None for a single run) and ``n``, the number of
        runs that report it.

    Raises:
        PyroccamError: if a value is not finite.
    """
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.items():
            if not math.isfinite(value):
                raise PyroccamError(f"{name}={value} of a run", "a finite number")
            values.setdefault(name, []).append(float(value))
    return {
        name: {
            "mean": fmean(column),
            "sd": stdev(column) if len(column) > 1 else None,
            "n": len(column),
        }
        for name, column in values.items()
    }


def by_parts(
    data: Dataset, split: str, judge: Callable[[Tensor, Tensor], dict[str, float]]
) -> dict[str, float]:
    """Scores of a split; training rows that are streamed pass in parts, and of their scores those
    are left that are means over rows, or roots of such."""
    if split != "train" or not data.streamed:
        return judge(*data.split(split))
    sums: dict[str, float] = {}
    rows = 0
    for x, y in data.parts(split, weighted=False):
        rows += len(x)
        for name, value in judge(x, y).items():
            if name not in _NO_MEANS:
                term = value * value if name == "rmse" else value
                sums[name] = sums.get(name, 0.0) + len(x) * term
    return {n: math.sqrt(s / rows) if n == "rmse" else s / rows for n, s in sums.items()}


def score_classes(likelihood: Likelihood, log_probs: Tensor, y: Tensor) -> dict[str, float]:
    """Scores of classes: :func:`classification_metrics`; of classes in an order
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
        ``rmse`` (or what :func:`label_metrics` gives, of
        labels) and ``nll``; of counts ``deviance``, that of a Poisson distribution; of some
        likelihoods ``mae``, mean absolute error, ``coverage``, the share of targets in the
        central 90 % of the mixture, and ``similarity`` (:func:`rank_correlation`).
    """
    mean, y = mean.double(), y.double()
    if likelihood.task == "multi-label":
        found = label_metrics(mean, y)
    else:
        found = {"rmse": float((mean - y).square().mean().sqrt())}
    if "mae" in likelihood.scores:
        found["mae"] = float((mean - y).abs().mean())
    if "similarity" in likelihood.scores:
        found["similarity"] = rank_correlation(mean[:_ROWS], y[:_ROWS])
    if likelihood.task == "counts":
        # 2 (y log(y / m) - y + m): nothing where both are equal, and y log y is zero at zero.
        found["deviance"] = float(2 * (torch.xlogy(y, y / mean) - y + mean).mean())
    found["nll"] = -float(log_p.double().mean())
    if below is not None:
        found["coverage"] = float(((below > _TAIL) & (below < 1 - _TAIL)).double().mean())
    return found
