"""The smallest network that, trained once more, predicts as well as the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..cutting.surgery import ROWS, cut
from ..fits.retraining import RATES, Retrained, retrain, row_losses
from ..posterior.weight_moments import mean_network
from .decision import Decision
from .relevance import Irrelevance, irrelevance
from .thresholds import with_zeros

if TYPE_CHECKING:
    from ..fits.fitting import Fit

__all__ = ["NATS", "SHARES", "smallest", "thresholds_of_share"]

SHARES = (0.8, 0.65, 0.5, 0.33, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.017, 0.012, 0.008)
"""Shares of the weights that networks of the search keep, before what dies of a cut is gone."""

NATS = 0.02
"""What a smaller network may lose of a validation row."""


def smallest(fit: Fit, epochs: int, trained: nn.Module | None = None) -> tuple[Decision, Retrained]:
    """The smallest network on the way from the whole one to almost nothing that is as good.

    Groups (or weights) go in the order of their irrelevance, in all layers alike; at each size the
    rest is trained as numbers. A network is as good as the whole one if its mean loss on the
    validation rows, with half a standard error of the difference for luck, is above that of the
    whole by 0.02 nats at most. Sizes are bisected, as if a smaller network were never better.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`, with validation rows.
        epochs: passes of each training.
        trained: the whole network as numbers; it is what the others have to be as good as, and what
            is left begins with its weights where they predict better than the posterior means.

    References:
        Renda, Frankle, Carbin 2020, arXiv:2003.02389: weights of before may serve as well.
    """
    model, guide = fit.model, fit.guide
    found = irrelevance(model, guide, by="noise")
    sources = [mean_network(model, guide)]
    if trained is not None:
        sources.append(trained)

    def cut_at(share: float, whole: nn.Module) -> Decision:
        thresholds = thresholds_of_share(found, share)
        zeros = with_zeros(whole, found, thresholds, model)
        net, report = cut(zeros.cpu(), fit.data.x_train[:ROWS].cpu())
        return Decision(model, guide, whole, net, report, found, thresholds)

    def loss(one: tuple[Decision, Retrained]) -> float:
        return float(one[1].losses.mean())

    first = [cut_at(1.0, source) for source in sources]
    whole = first[-1], retrain(first[-1].net, fit, epochs)
    means = first[0], retrain(first[0].net, fit, 0, ())
    rates = {whole[1].lr or RATES[0], RATES[1]}  # the second is for what lost much
    good = [min(whole, means, key=loss)]
    low, high = 0, len(SHARES)  # all before low are good, none from high on
    while low < high:
        middle = (low + high) // 2
        drafts = [cut_at(SHARES[middle], source) for source in sources]
        best = min(drafts, key=lambda one: float(row_losses(one.net, fit).mean()))
        tried = best, retrain(best.net, fit, epochs, sorted(rates))
        if _as_good(tried[1].losses - whole[1].losses):
            good.append(tried)
            low = middle + 1
        else:
            high = middle
    return min(good, key=lambda one: sum(int(p.count_nonzero()) for p in one[1].net.parameters()))


def _as_good(worse: Tensor) -> bool:
    """True if losses are higher by no more than is allowed, half a standard error included."""
    return float(worse.mean() + 0.5 * worse.std() / len(worse) ** 0.5) <= NATS


def thresholds_of_share(found: Mapping[str, Irrelevance], share: float) -> dict[str, float]:
    """Thresholds by layer, at one irrelevance, that keep a share of all weights; the least
    irrelevant part of each layer stays."""
    values = torch.cat([one.values.flatten().double() for one in found.values()])
    sizes = torch.cat(
        [torch.full((one.values.numel(),), one.size / one.values.numel()) for one in found.values()]
    )
    order = values.argsort()
    reached = sizes[order].double().cumsum(0) / sizes.sum()
    last = min(int((reached < share - 1e-9).sum()), len(values) - 1)
    t = float(values[order[last]])
    return {name: max(t, float(one.values.min())) for name, one in found.items()}
