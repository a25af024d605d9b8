"""Warnings of a fit against itself: that it learnt nothing, or was chosen at the edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ...data import Dataset
    from .result import Fit

__all__ = ["doubts", "nll_alone"]


def doubts(fit: Fit) -> list[str]:
    """Sentences for a person to read before the results; none where nothing is wrong.

    Looked at are the validation rows (the training rows where there are none): whether the network
    predicts better than the mean of the training targets, or their shares, and whether the
    checkpoint was chosen at the first moment at which one could be.
    """
    return [*_no_better_than_nothing(fit), *_at_the_edge(fit)]


def _no_better_than_nothing(fit: Fit) -> list[str]:
    data = fit.data
    split = "val" if len(data.x_val) else "train"
    rows = {"val": "validation", "train": "training"}[split]
    x, y = data.split(split)
    advice = "What it says of depth, weights or noise means nothing: train it otherwise, first."
    predicted = fit.predict(x)
    if data.task == "classification":
        found, alone = (
            -float(predicted.double().gather(1, y[:, None]).mean()),
            nll_alone(data, split),
        )
        if found < alone or _often_right(predicted, y, _log_shares(data)):
            return []
        return [
            f"The network is no better than the shares of the classes: {found:.3f} nats on the "
            f"{rows} rows, {alone:.3f} without looking at the inputs. {advice}"
        ]
    mean = data.y_train.double().mean(0)
    found_by = (predicted - y).double().square().mean(0).sqrt() * data.y_std.double()
    alone_by = (mean - y.double()).square().mean(0).sqrt() * data.y_std.double()
    bad = (found_by >= alone_by).nonzero()[:, 0].tolist()
    if not bad:
        return []
    t = bad[0]
    which = f" of target {t}" if len(found_by) > 1 else ""
    return [
        f"The network is no better than the mean{which}: RMSE {float(found_by[t]):.4g} on the "
        f"{rows} rows, {float(alone_by[t]):.4g} without looking at the inputs. {advice}"
    ]


def nll_alone(data: Dataset, split: str) -> float:
    """The mean negative log-likelihood of a prediction that does not look at the inputs, in nats.

    Of classes, their shares among the training rows (half a row more of each); of a regression, a
    normal with the mean and deviation of the training targets, standardised, summed over targets.

    Arguments:
        data: whose training rows are known.
        split: of the rows that are predicted.
    """
    _, y = data.split(split)
    if data.task == "classification":
        return -float(_log_shares(data)[y].mean())
    known, y = data.y_train.double(), y.double()
    normal = torch.distributions.Normal(known.mean(0), known.std(0, correction=0).clamp_min(1e-6))
    return -float(normal.log_prob(y).flatten(1).sum(1).mean())


def _log_shares(data: Dataset) -> torch.Tensor:
    counts = torch.bincount(data.y_train, minlength=data.outputs).double() + 0.5
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
    if len(window) < 3 or fit.best_epoch != window[0]["epoch"]:
        return []
    return [
        f"The best checkpoint is the first that could be chosen, epoch {fit.best_epoch} of "
        f"{epochs}: earlier ones may predict better. Fewer epochs, or more weight decay, may do so "
        "too."
    ]
