"""The prequential code: each block of targets by what was learnt of the blocks before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ...data import Between, PyroccamError, Seed, checked
from ..training import Fit
from ..training import fit as train
from .estimator import Estimator, LogEvidence

if TYPE_CHECKING:
    from ...data import Dataset

SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Ends of the blocks as shares of the rows, doubling (Voita, Titov 2020)."""


class Block(NamedTuple):
    """A block of a code: rows up to its end, the log-probability of its targets, and passes through
    all N rows for the fit before it."""

    end: int
    nats: float
    passes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Prequential(Estimator):
    r"""The chain rule as a code: ``Σ_s log p(y_s | x_s, D_{<s})`` over blocks of rows.

    The model is fitted afresh on all rows before a block, by the settings of the fit, and what it
    predicts of the block (the mixture over draws or depths) is the code of that. The first block is
    sent without a model: classes are equally likely, targets of a regression standard normal (they
    are standardised by all rows, which a strict code would have to send first). Whatever the
    network, minus the value over ``ln 2`` is a number of bits that does send the targets, weights
    included, for the receiver can do the same fits.

    Of one order and one seed it is a number without error. The error is that of the mean over
    ``orders`` of the rows, each with a seed of its own.

    Settings that were chosen by looking at all the targets are part of the code, and not counted.
    A network that was given trained weights begins every fit with them.

    Arguments:
        shares: ends of the blocks, increasing to 1; blocks without a row are left out.
        orders: of the rows, drawn at random.
        seed: of the orders and fits.
        settings: in place of those of the fit, such as ``{"epochs": 50}``.

    References:
        Dawid 1984, Present position and potential developments: the prequential approach; Blier,
        Ollivier 2018, The description length of deep learning models, arXiv:1802.07044.
    """

    name = "prequential"

    shares: Sequence[float] = SHARES
    orders: Annotated[int, Between(2)] = 2
    seed: Seed = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def estimate(self, fit: Fit) -> LogEvidence:
        found = []
        for seed in range(self.seed, self.seed + self.orders):
            rows = torch.randperm(fit.data.N, generator=torch.Generator().manual_seed(seed))
            found.append(blocks_of(fit, rows, self.shares, seed=seed, **self.settings))
        totals = torch.tensor(
            [math.fsum(b.nats for b in one) for one in found], dtype=torch.float64
        )
        first, last = (sum(one[k].nats for one in found) / self.orders for k in (0, -1))
        return LogEvidence(
            value=float(totals.mean()),
            error=float(totals.std()) / math.sqrt(self.orders),
            direction="code",
            passes=sum(block.passes for one in found for block in one),
            details={"blocks": float(len(found[0])), "first": first, "last": last},
        )


def block_ends(rows: int, shares: Sequence[float], *, least: int = 1) -> list[int]:
    """Ends of the blocks that have rows, increasing to all ``rows``.

    Example:
        >>> block_ends(100, (0.001, 0.02, 0.5, 1.0))
        [1, 2, 50, 100]
    """
    increasing = all(a < b for a, b in itertools.pairwise(shares))
    if not shares or not increasing or shares[0] <= 0.0 or shares[-1] != 1.0:
        raise PyroccamError(f"shares={list(shares)}", "positive numbers that increase to 1")
    return sorted({min(rows, max(least, round(share * rows))) for share in shares})


@checked
def blocks_of(
    fit: Fit, order: Tensor, shares: Sequence[float] = SHARES, *, seed: Seed = 0, **settings: Any
) -> list[Block]:
    """The blocks of a code, each by a fit on all that is before it."""
    # The next block is predicted by a fit to these rows, of which batch normalisation needs two.
    ends = block_ends(len(order), shares, least=2)
    data = fit.data
    order = order.to(data.device)
    found = [Block(ends[0], _without_a_model(data, order[: ends[0]]))]
    own = {**vars(fit.settings), **settings}
    for place, (start, end) in enumerate(itertools.pairwise(ends)):
        before, block = _rows(data, order[:start]), order[start:end]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = fit.model.anew(before)
            guide = fit.guide.rebuild(model)
        again = {**own, "seed": seed + 1000 * place}
        where = str(data.device)
        made = train(model, guide, before, device=where, progress=False, **again)
        outputs, weights = made.components(data.x_train[block])
        with torch.no_grad():
            log_weights = weights.double().log()
            each = model.likelihood.log_predictive(
                outputs.double(), log_weights, data.y_train[block]
            )
        passes = made.settings.epochs_for(start) * start / len(order)
        found.append(Block(end, float(each.double().sum()), passes))
    return found


def switching(blocks: Tensor) -> float:
    r"""``log p(y)`` of a code that may change the model between blocks, in nats.

    A mixture over all sequences of models: the first is any of the M, and before block s (the
    first is 1) it is changed with probability 1 / s, to any of the M. By the forward recursion; so
    a large network that is worse than a small one on few rows does no harm there ("catch-up").

    Arguments:
        blocks: log-probabilities of the blocks, ``(M, S)``, of models by row.

    References:
        van Erven, Grünwald, de Rooij 2012, Catching up faster by switching sooner.

    Example:
        >>> round(switching(torch.tensor([[-1.0, -9.0], [-9.0, -1.0]])), 2)
        -4.08
    """
    if blocks.dim() != 2 or not blocks.shape[1]:
        raise PyroccamError(f"blocks of shape {tuple(blocks.shape)}", "(models, blocks)")
    blocks = blocks.double()
    models = len(blocks)
    log_share = blocks.new_full((models,), -math.log(models)) + blocks[:, 0]
    for place in range(1, blocks.shape[1]):
        change = 1.0 / (place + 1)
        anew = log_share.logsumexp(0) + math.log(change / models)
        log_share = torch.logaddexp(log_share + math.log1p(-change), anew) + blocks[:, place]
    return float(log_share.logsumexp(0))


def _rows(data: Dataset, chosen: Tensor) -> Dataset:
    """The data of these training rows alone, and none to validate: the receiver has no others."""
    return replace(
        data,
        x_train=data.x_train[chosen],
        y_train=data.y_train[chosen],
        x_val=data.x_val[:0],
        y_val=data.y_val[:0],
        val_weights=None,
    )


def _without_a_model(data: Dataset, chosen: Tensor) -> float:
    """Log-probability of targets in nats before anything is known."""
    y = data.y_train[chosen]
    match data.task:
        case "classification":
            assert data.classes is not None
            return -len(y) * math.log(data.classes)
        case "multi-label":
            return -y.numel() * math.log(2.0)
        case "regression":
            return float(-0.5 * (y.double().square() + math.log(2 * math.pi)).sum())
        case _:
            raise PyroccamError(f"a first block of {data.task}", "classes, labels or a regression")
