"""The smallest network that, trained once more, predicts as well as the best of all sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..cutting.surgery import ROWS, cut
from ..fits.retraining import RATES, Retrained, retrain, row_losses
from ..posterior.weight_moments import mean_network
from .decision import Decision
from .relevance import Irrelevance, irrelevance
from .thresholds import with_zeros

if TYPE_CHECKING:
    from ..fits.fitting import Fit

__all__ = ["NATS", "SHARES", "smallest", "thresholds_of_share"]

SHARES = (0.5, 0.33, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.017, 0.012, 0.008)
"""Shares of the weights that networks of the search keep, before what dies of a cut is gone."""

NATS = 0.02
"""What a smaller network may lose of a row, however well the rows tell the two apart."""


def smallest(fit: Fit, epochs: int, trained: nn.Module | None = None) -> tuple[Decision, Retrained]:
    """The smallest network on the way from the whole one to almost nothing that is as good.

    Groups (or weights) go in the order of their irrelevance, in all layers alike; at each size the
    rest is trained as numbers. A network is as good as the best if its mean loss on the
    validation rows is above that of the best by no more than half a standard error of the
    difference, or 0.02 nats. Sizes are bisected, as if a smaller network were never
    better.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`, with validation rows.
        epochs: passes of each training.
        trained: the whole network as numbers; it is one of those that are compared, and what is
            left begins with its weights where they predict better than the posterior means.

    References:
        Breiman, Friedman, Olshen, Stone 1984, section 3.4.3: the rule of one standard error, of
            which a set of 40 validation rows lets too much pass.
        Renda, Frankle, Carbin 2020, arXiv:2003.02389: weights of before may serve as well.
    """
    model, guide = fit.model, fit.guide
    found = irrelevance(model, guide, by="noise")
    sources = [mean_network(model, guide)]
    if trained is not None:
        sources.append(trained)

    def cut_at(thresholds: Mapping[str, float]) -> Decision:
        drafts = []
        for whole in sources:
            zeros = with_zeros(whole, found, thresholds, model)
            net, report = cut(zeros.cpu(), fit.data.x_train[:ROWS].cpu())
            drafts.append(Decision(model, guide, whole, net, report, found, dict(thresholds)))
        return min(drafts, key=lambda one: float(row_losses(one.net, fit).mean()))

    def candidate(share: float, rates: Sequence[float]) -> tuple[Decision, Retrained]:
        decision = cut_at(thresholds_of_share(found, share))
        return decision, retrain(decision.net, fit, epochs, rates)

    tried = [candidate(1.0, RATES)]
    rates = RATES if tried[0][1].lr is None else (tried[0][1].lr,)
    low, high = 0, len(SHARES)  # all before low are good, none from high on
    while low < high:
        middle = (low + high) // 2
        tried.append(candidate(SHARES[middle], rates))
        best = min((one[1].losses for one in tried), key=lambda losses: float(losses.mean()))
        low, high = (middle + 1, high) if _as_good(tried[-1][1], best) else (low, middle)
    best = min((one[1].losses for one in tried), key=lambda losses: float(losses.mean()))
    good = [one for one in tried if _as_good(one[1], best)]
    return min(good, key=lambda one: sum(int(p.count_nonzero()) for p in one[1].net.parameters()))


def _as_good(one: Retrained, best: torch.Tensor) -> bool:
    worse = one.losses - best
    error = float(worse.std()) / len(worse) ** 0.5
    return float(worse.mean()) <= max(error / 2, NATS)


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
