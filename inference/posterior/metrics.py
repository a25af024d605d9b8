"""Scores of predictive distributions: accuracy, likelihood, Brier, calibration.

Every classification score takes *log*-probabilities, so that a likelihood is a likelihood
and a confident mistake costs what it should. Sums are taken in float64 whatever the network
ran in.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...data import Count, PyroccamError, checked

__all__ = [
    "Reliability",
    "classification_metrics",
    "label_metrics",
    "mean_spread",
    "poster_ece",
    "regression_metrics",
    "reliability",
]

_TOLERANCE = 1e-3  # how far a row of probabilities, or the mixture weights, may be from one
_ECE_BINS = 15


class Reliability(NamedTuple):
    """Top-label reliability in equal-width bins of confidence over [0, 1], (bins,), on the CPU.

    Attributes:
        centers: middle of each bin.
        confidence: mean probability of the predicted class; nan where the bin is empty.
        accuracy: share of correct predictions; nan where the bin is empty.
        counts: number of rows.
    """

    centers: Tensor
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
    if log_p.ndim != 2 or not len(log_p) or labels.shape != log_p.shape[:1]:
        raise PyroccamError(
            f"log_probs and y of shapes {tuple(log_probs.shape)} and {tuple(y.shape)}",
            "(N, C) and (N,)",
        )
    classes = log_p.shape[1]
    if y.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise PyroccamError(f"y of {y.dtype}", f"whole numbers from 0 to {classes - 1}")
    worst = float(torch.logsumexp(log_p, -1).abs().max())
    if not worst <= _TOLERANCE or not bool(torch.isfinite(log_p).all()):
        raise PyroccamError(
            f"log_probs whose logsumexp is off by {worst:.4g}",
            "finite log-probabilities, as torch.log_softmax(logits, -1) gives them",
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

    The calibration error is torchmetrics' ``multiclass_calibration_error(norm="l1")``, but in
    double precision: single precision says 5e-4 of a perfect classifier on 60,000 rows.

    References:
        Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017.
        Brier, "Verification of forecasts expressed in terms of probability", 1950.
    """
    # It imports scipy.signal: a second or two, spared those who only ask for --help.
    from torchmetrics.functional.classification import multiclass_stat_scores
    from torchmetrics.functional.regression import mean_squared_error

    log_p, labels = _checked_classification(log_probs, y)
    n, classes = log_p.shape
    probs = log_p.exp()
    # "micro" scores are counts: true positives, false positives, ...
    hits = multiclass_stat_scores(probs, labels, num_classes=classes, average="micro")[0]
    one_hot = torch.nn.functional.one_hot(labels, classes).to(probs)
    brier = mean_squared_error(probs, one_hot, num_outputs=classes).sum()
    return {
        "accuracy": int(hits) / n,
        "nll": float(torch.nn.functional.nll_loss(log_p, labels)),
        "brier": float(brier),
        "ece": _reliability(probs, labels, _ECE_BINS).ece,
    }


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
    return {**found, "ece": _reliability(two, marks.reshape(-1), _ECE_BINS).ece}


@checked
def reliability(log_probs: Tensor, y: Tensor, bins: Count = _ECE_BINS) -> Reliability:
    """Confidence against accuracy of the predicted class, bin by bin.

    Arguments:
        log_probs, y: as for :func:`classification_metrics`.
        bins: of equal width over [0, 1]; a bin holds its lower edge, and the last one also holds 1.
    """
    log_p, labels = _checked_classification(log_probs, y)
    return _reliability(log_p.exp(), labels, bins)


def _reliability(probs: Tensor, labels: Tensor, bins: int) -> Reliability:
    edges = torch.linspace(0, 1, bins + 1, dtype=probs.dtype, device=probs.device)
    confidence, predicted = probs.max(-1)
    index = (torch.bucketize(confidence, edges, right=True) - 1).clamp(0, bins - 1)
    counts = torch.bincount(index, minlength=bins)
    correct = (predicted == labels).to(probs)
    return Reliability(
        centers=((edges[:-1] + edges[1:]) / 2).cpu(),
        confidence=(torch.bincount(index, confidence, minlength=bins) / counts).cpu(),
        accuracy=(torch.bincount(index, correct, minlength=bins) / counts).cpu(),
        counts=counts.cpu(),
    )


@checked
def poster_ece(log_probs: Tensor, y: Tensor, bins: Count = 10) -> float:
    """The calibration number of the depth-search poster's table, which is no calibration error:

    * all C class probabilities of a row count as separate predictions;
    * a prediction is a hit only if its class is both the label *and* the likeliest class of
      its row, so the probability rightly given to second choices never earns a hit;
    * the frequency of hits in a bin is compared with the bin's *upper edge*
      (0.1, 0.2, ..., 1.0) and not with the mean prediction in it.

    With ten classes a perfect and fully confident classifier scores 0.09, and an honest one that is
    right 95 % of the time, at a confidence of 0.95, scores 0.095.

    Arguments:
        log_probs, y: as for :func:`classification_metrics`.
        bins: of equal width; a bin holds its upper edge.

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
    probs = log_p.exp()
    edges = torch.linspace(0, 1, bins + 1, dtype=probs.dtype, device=probs.device)
    rows = torch.arange(len(labels), device=labels.device)
    hits = torch.zeros_like(probs)
    hits[rows, labels] = (probs.argmax(-1) == labels).to(probs)
    index = (torch.bucketize(probs.reshape(-1), edges) - 1).clamp(0, bins - 1)
    counts = torch.bincount(index, minlength=bins)
    hits_per_bin = torch.bincount(index, hits.reshape(-1), minlength=bins)
    return float((hits_per_bin - edges[1:] * counts).abs().sum() / counts.sum())


def regression_metrics(
    means: Tensor, stds: Tensor, weights: Tensor, y: Tensor, y_std: Tensor
) -> dict[str, float]:
    """Root mean squared error and negative log-likelihood of a mixture of Normals.

    The predictive density of a row is ``sum_s w_s prod_t Normal(y_t; mean_st, std_st)``: a
    component (a depth, a posterior draw) is joint over the targets. Means, deviations and
    targets are standardised; both scores are in the original units of the targets.

    Arguments:
        means: of the components, (S, N, T).
        stds: broadcastable to (S, N, T).
        weights: of the components, (S,), not negative, summing to one.
        y: standardised targets, (N, T).
        y_std: what the targets were divided by, (T,).

    Returns:
        ``rmse`` of the mixture's mean, over rows and targets; ``nll``, mean over rows of minus the
        log density.

    Raises:
        PyroccamError: if a shape does not fit, a value is not finite, a deviation is not
            positive, or the weights are not a distribution.
    """
    given = means, stds, weights, y, y_std
    shapes = [tuple(value.shape) for value in given]
    try:
        s, n, t = torch.broadcast_shapes(stds.shape, means.shape)
    except (RuntimeError, ValueError):
        s, n, t = 0, 0, 0
    if [shapes[0], *shapes[2:]] != [(s, n, t), (s,), (n, t), (t,)]:
        named = dict(zip(("means", "stds", "weights", "y", "y_std"), shapes, strict=True))
        raise PyroccamError(f"shapes {named}", "means (S, N, T), weights (S,), y (N, T)")
    mu, sigma, w, target, scale = (
        value.detach().to(means.device, torch.float64) for value in given
    )
    if not all(bool(torch.isfinite(v).all()) for v in (mu, sigma, w, target, scale)):
        raise PyroccamError("nan or infinite values", "finite ones")
    if not bool((sigma > 0).all()) or not bool((scale > 0).all()):
        raise PyroccamError("deviations that are not positive", "positive ones")
    if not bool((w >= 0).all()) or abs(float(w.sum()) - 1) > _TOLERANCE:
        raise PyroccamError(f"weights of sum {float(w.sum()):.4g}", "shares of sum 1")
    w = w / w.sum()
    z = (target - mu) / sigma
    log_density = -(0.5 * z.square() + sigma.log() + 0.5 * math.log(2 * math.pi))
    log_density = (log_density - scale.log()).sum(-1)  # (S, N), in original units
    nll = -torch.logsumexp(w.log()[:, None] + log_density, 0).mean()
    from torchmetrics.functional.regression import mean_squared_error  # slow to import

    mean = (w[:, None, None] * mu).sum(0)
    squared = mean_squared_error(mean * scale, target * scale, num_outputs=t)
    return {"rmse": math.sqrt(float(squared.mean())), "nll": float(nll)}


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
    spread: dict[str, dict[str, float | None]] = {}
    for name, column in values.items():
        n = len(column)
        mean = math.fsum(column) / n
        variance = math.fsum((v - mean) ** 2 for v in column) / (n - 1) if n > 1 else None
        sd = None if variance is None else math.sqrt(variance)
        spread[name] = {"mean": mean, "sd": sd, "n": n}
    return spread
