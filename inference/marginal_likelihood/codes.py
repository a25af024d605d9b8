"""The prequential code: each block of targets by what was learnt of the blocks before."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...data.errors import PyroccamError
from ...models.checks import one_of
from ...models.contexts import seeded
from ..fits.fitting import fit as train
from ..fits.result import Fit
from .closed_form import Conjugate
from .joint import joint
from .result import LogEvidence

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["SHARES", "Block", "Predictive", "block_ends", "blocks_of", "prequential", "switching"]

SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Ends of the blocks as shares of the rows, doubling (Voita, Titov 2020)."""

Predictive = Literal["refit", "exact"]


class Block(NamedTuple):
    """A block of a code.

    Attributes:
        end: rows up to its end.
        nats: log-probability of its targets.
        passes: through all N rows, for the fit before it.
    """

    end: int
    nats: float
    passes: float = 0.0


def prequential(
    fit: Fit,
    *,
    predictive: Predictive = "refit",
    shares: Sequence[float] = SHARES,
    orders: int = 2,
    seed: int = 0,
    **settings: Any,
) -> LogEvidence:
    r"""The chain rule as a code: ``Σ_s log p(y_s | x_s, D_{<s})`` over blocks of rows.

    The model is fitted afresh on all rows before a block, by the settings of the fit, and what it
    predicts of the block is the code of that. The first block is sent without a model: classes are
    equally likely, targets of a regression standard normal (they are standardised by all rows,
    which a strict code would have to send first). Whatever the network, minus the value over
    ``ln 2`` is a number of bits that does send the targets, weights included, for the receiver can
    do the same fits; and with the predictive distribution of the model itself
    (``predictive="exact"``) the sum is the evidence, for every order and all blocks.

    Of one order and one seed it is a number without error. The error is that of the mean over
    ``orders`` of the rows, each with a seed of its own.

    Settings that were chosen by looking at all the targets are part of the code, and not counted.
    A network that was given trained weights begins every fit with them.

    Arguments:
        fit: whose model, guide and settings are used again.
        predictive: of a ``refit``, the mixture over its draws or depths; or ``exact``, of a model
            whose evidence is exact.
        shares: ends of the blocks, increasing to 1; blocks without a row are left out. In the
            ``exact`` code the first block has a predictive like all others.
        orders: of the rows, drawn at random.
        seed: of the orders and fits.
        settings: in place of those of the fit, such as ``epochs=50``.

    Raises:
        PyroccamError: for shares that do not increase to 1, no two orders, counts as targets, or an
            exact predictive that there is not.

    References:
        Dawid 1984, Present position and potential developments: the prequential approach; Blier,
        Ollivier 2018, The description length of deep learning models, arXiv:1802.07044.
    """
    one_of("predictive", predictive, ("refit", "exact"))
    if orders < 2:
        raise PyroccamError(
            f"prequential: got orders={orders}, expected 2 or more.\n"
            "A single order of the rows shows no error."
        )
    if predictive == "exact" and settings:
        raise PyroccamError(
            f'prequential: settings ({", ".join(settings)}) are for predictive="refit", with '
            '"exact" nothing is trained.\nLeave them out.'
        )
    begun = time.perf_counter()
    fit.data.refuse_weights("A code length")
    found = []
    for order in range(orders):
        rows = torch.randperm(fit.data.N, generator=torch.Generator().manual_seed(seed + order))
        if predictive == "exact":
            found.append(_exact_blocks(fit, rows, shares))
        else:
            found.append(blocks_of(fit, rows, shares, seed=seed + order, **settings))
    totals = torch.tensor([math.fsum(b.nats for b in one) for one in found], dtype=torch.float64)
    spread = float(totals.std())
    first, last = (sum(one[k].nats for one in found) / orders for k in (0, -1))
    return LogEvidence(
        "prequential",
        float(totals.mean()),
        spread / math.sqrt(orders),
        "exact" if predictive == "exact" else "code",
        fit.data.N,
        sum(block.passes for one in found for block in one),
        time.perf_counter() - begun,
        None,
        {"blocks": float(len(found[0])), "first": first, "last": last},
    )


def block_ends(rows: int, shares: Sequence[float], *, least: int = 1) -> list[int]:
    """Ends of the blocks that have rows, increasing to all ``rows``.

    Arguments:
        rows: N.
        shares: of them, increasing to 1.
        least: rows of the first block.

    Raises:
        PyroccamError: for shares that do not increase to 1.

    Example:
        >>> block_ends(100, (0.001, 0.02, 0.5, 1.0))
        [1, 2, 50, 100]
    """
    increasing = all(a < b for a, b in itertools.pairwise(shares))
    if not shares or not increasing or shares[0] <= 0.0 or shares[-1] != 1.0:
        raise PyroccamError(
            f"shares={list(shares)}: expected positive numbers that increase to 1.\n"
            "Take (0.1, 0.2, 0.4, 1.0), say."
        )
    return sorted({min(rows, max(least, round(share * rows))) for share in shares})


def blocks_of(
    fit: Fit, order: Tensor, shares: Sequence[float] = SHARES, *, seed: int = 0, **settings: Any
) -> list[Block]:
    """The blocks of a code, each by a fit on all that is before it.

    Arguments:
        order: of the training rows, ``(N,)``.
        fit, shares, seed, settings: as for :func:`prequential`.
    """
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
        raise PyroccamError(
            f"blocks has shape {tuple(blocks.shape)}, expected (models, blocks).\n"
            "Stack what blocks_of gives of each model."
        )
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
            raise PyroccamError(
                f"A first block of {data.task} has no code without a model, expected classes, "
                'labels or a regression.\nUse by="importance" or "laplace".'
            )


def _exact_blocks(fit: Fit, order: Tensor, shares: Sequence[float]) -> list[Block]:
    ends = [0, *block_ends(len(order), shares)]
    where = fit.data.device
    with joint(fit, "prequential") as density, seeded(0, where):
        blocks = [order[a:b].to(where) for a, b in itertools.pairwise(ends)]
        nats = Conjugate(density).log_predictive(blocks)
    return [Block(end, one) for end, one in zip(ends[1:], nats, strict=True)]
