"""Warnings of a fit against itself: that it learnt nothing, or was chosen at the edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...models.likelihoods import LEAST_ROWS, learns_noise

if TYPE_CHECKING:
    from ...data import Dataset, Marginal
    from ..posterior import How
    from .result import Fit

WORSE = 0.05
"""Nats of a validation row by which an earlier moment has to be better to be spoken of."""

COLLAPSED = 0.05
"""Noise, over the spread of the targets, at which training rows may have been learnt by heart."""

APART = 0.2
"""Total variation from which on q(d) is elsewhere than the exact posterior."""


def doubts(fit: Fit) -> list[str]:
    """Sentences for a person to read before the results; none where nothing is wrong.

    Looked at are the validation rows (the training rows where there are none): whether the network
    predicts better than the mean of the training targets, or their shares, and is no surer than it
    may be, whether it predicted better before a checkpoint could be chosen, and whether q(d) is the
    exact posterior.
    """
    found = [*_no_better_than_nothing(fit), *_collapsed(fit)]
    return [*found, *_at_the_edge(fit), *not_arrived(fit)]


def _no_better_than_nothing(fit: Fit) -> list[str]:
    data = fit.data
    split = "val" if len(data.x_val) else "train"
    rows = {"val": "validation", "train": "training"}[split]
    x, y = next(data.parts(split, weighted=False))  # of what is streamed, it says as much as all
    advice = "What it says of depth, weights or noise means nothing: train it otherwise, first."
    # Of points a draw is of a dropout, which is for the training.
    points = fit.model.random_weights and fit.guide.traits.point
    how: How = "deterministic" if points else "ensemble"
    outputs = fit.outputs(x, how)
    predicted = fit.predicted(fit.left_out(outputs, y) if split == "val" else outputs)
    alone = -float(_density_alone(data, y).mean())
    if data.task == "classification":
        found = -float(predicted.double().gather(1, y[:, None]).mean())
        if found < alone:
            return []
        said = f"{found:.3f} nats on the {rows} rows, {alone:.3f} without looking at the inputs."
        if _often_right(predicted, y, _log_shares(data)):
            return [
                "The network is too sure of itself: its probabilities are worse than the shares of "
                f"the classes, {said} Fewer epochs, or more weight decay, may help."
            ]
        return [f"The network is no better than the shares of the classes: {said} {advice}"]
    assert data.marginal.mean is not None
    mean = data.marginal.mean
    found_by = (predicted - y).double().square().mean(0).sqrt() * data.y_std.double()
    spread = (mean - y.double()).square().mean(0).sqrt()
    alone_by = spread * data.y_std.double()
    varies = spread > torch.finfo(torch.float32).eps  # of a constant there is nothing to learn
    bad = ((found_by >= alone_by) & varies).nonzero()[:, 0].tolist()
    if bad:
        t = bad[0]
        which = f" of target {t}" if len(found_by) > 1 else ""
        return [
            f"The network is no better than the mean{which}: RMSE {float(found_by[t]):.4g} on the "
            f"{rows} rows, {float(alone_by[t]):.4g} without looking at the inputs. {advice}"
        ]
    units = float(data.y_std.double().log().sum())
    found = fit.evaluate(split, how)["nll"]
    if found < alone + units or not fit.model.likelihood.has_noise:
        return []
    return [
        f"The network is too sure of itself, though nearer than the mean: {found:.3f} nats on the "
        f"{rows} rows, {alone + units:.3f} for a normal of the training targets (in their units). "
        "Fewer epochs, or more weight decay, may help."
    ]


def _collapsed(fit: Fit) -> list[str]:
    """Of weights that are numbers, noise that no validation rows have said."""
    likelihood = fit.model.likelihood
    numbers = not fit.model.random_weights or fit.guide.traits.point
    least = float(getattr(likelihood, "scale", torch.ones(1)).detach().min())
    validated = len(fit.data.x_val) >= LEAST_ROWS
    if not numbers or validated or not learns_noise(likelihood) or least > COLLAPSED:
        return []
    return [
        f"The noise of the training rows has collapsed to {least:.2g} of the spread of the targets:"
        " predictions of new rows are as sure, and nothing says that they may be. Keep "
        f"{LEAST_ROWS} validation rows or more (val_fraction=)."
    ]


def nll_alone(data: Dataset, split: str) -> float:
    """The mean of minus :func:`log_density_alone`, in nats."""
    return -float(log_density_alone(data, split).mean())


def log_density_alone(data: Dataset, split: str, rows: torch.Tensor | None = None) -> torch.Tensor:
    """The log density of rows by a prediction that does not look at the inputs, in nats, ``(N,)``.

    Of classes, their shares among the training rows (one row more of each, so that none is
    impossible); of other tasks, summed over targets, the distribution with the mean and, where it
    has two moments, the variance of the training targets, standardised as they are.

    Arguments:
        data: whose training rows are known.
        split: of the rows that are predicted.
        rows: their places, all if left out.
    """
    return _density_alone(data, data.split(split)[1] if rows is None else data.take(split, rows)[1])


def _density_alone(data: Dataset, y: torch.Tensor) -> torch.Tensor:
    if data.task == "classification":
        return _log_shares(data)[y]
    return _of_targets_alone(data.task, data.marginal).log_prob(y.double()).sum(1)


def _of_targets_alone(task: str, known: Marginal) -> torch.distributions.Distribution:
    """The distribution of each target ``(T,)`` with the mean, and of what has two moments the
    variance, of the training targets."""
    assert known.mean is not None
    assert known.variance is not None
    mean, variance = known.mean, known.variance.clamp_min(1e-12)
    if task == "multi-label":  # no label is impossible
        return torch.distributions.Bernoulli((known.rows * mean + 1.0) / (known.rows + 2.0))
    if task == "counts":
        mean = mean.clamp_min(0.5 / known.rows)
        # Beyond a variance of the mean; at less it is all but a Poisson distribution.
        failures = mean.square() / (variance - mean).clamp_min(1e-6 * mean)
        return torch.distributions.NegativeBinomial(failures, logits=(mean / failures).log())
    return torch.distributions.Normal(mean, variance.sqrt())


def _log_shares(data: Dataset) -> torch.Tensor:
    assert data.marginal.counts is not None
    counts = data.marginal.counts.double() + 1.0
    return counts.log() - counts.sum().log()


def _often_right(log_probabilities: torch.Tensor, y: torch.Tensor, shares: torch.Tensor) -> bool:
    """True if the commonest class would be right less often, by two standard errors and more.

    Too sure of itself on a few rows, such a network has learnt all the same.
    """
    right = float((log_probabilities.argmax(-1) == y).double().mean())
    alone = float((shares.argmax() == y).double().mean())
    return right > alone + 2 * (alone * (1 - alone) / len(y)) ** 0.5


def _at_the_edge(fit: Fit) -> list[str]:
    if not len(fit.data.x_val) or fit.settings.checkpoint == "last" or fit.structure is None:
        return []
    epochs = fit.settings.epochs_for(fit.data.N)
    first = fit.settings.selectable_from(fit.guide) * epochs
    window = [row for row in fit.history if row["epoch"] >= first - 1e-9]
    before = [row for row in fit.history if row["epoch"] < first - 1e-9]
    best = min(before, key=lambda row: row["val_nll"], default=None)
    if best is not None and best["val_nll"] < fit.val_nll - WORSE:
        return [
            f"The validation NLL was {best['val_nll']:.3f} at epoch {best['epoch']:.0f} and is "
            f"{fit.val_nll:.3f} at epoch {fit.best_epoch}, the best after q(d) had time to arrive, "
            f"from epoch {first:.0f} on. Fewer epochs, or more weight decay, may lose less."
        ]
    if len(window) < 3 or fit.best_epoch != window[0]["epoch"]:
        return []
    return [
        f"The best checkpoint is the first that could be chosen, epoch {fit.best_epoch} of "
        f"{epochs}: earlier ones may predict better. Fewer epochs, or more weight decay, may do so "
        "too."
    ]


def not_arrived(fit: Fit) -> list[str]:
    """That q(d) is not the exact posterior; of the closed form the estimate in training, which the
    exact posterior has replaced since."""
    found = fit.structure
    if found is None:
        return []
    running, apart = "", found.tv_to_exact
    if found.tv_running is not None:
        running = "the running estimate of it, by which the weights were trained, "
        apart = found.tv_running
    if apart <= APART:
        return []
    return [
        f"q(d) has not arrived: {running or 'it '}is {apart:.2f} in total variation from the exact "
        "posterior given the weights. Train longer, or with a smaller hold= of the guide."
    ]
