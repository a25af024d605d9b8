"""A network cut at its learnt depth: a smaller plain one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...data import Between, PyroccamError, check
from ...models import LearntDepth
from ...models.plain import PrunedNetwork
from ..elbo import evidence
from ..posterior import EQUAL, random_network, require
from ..training import keeps_statistics, renew_statistics

if TYPE_CHECKING:
    from ..training import Fit

TailRule = Literal["tail_to_last", "proportional"]

PASSES = 4
"""Draws of random weights over which bounds of networks without a block are averaged."""


def at_depth(
    fit: Fit,
    exits: Literal["average", "last"] = "average",
    depth: int | None = None,
    rule: TailRule = "tail_to_last",
) -> PrunedNetwork:
    """A plain ``nn.Module``, in evaluation mode, that computes only the blocks up to a depth.

    Arguments:
        exits: ``average`` keeps the exits of all depths up to there and averages their
            probabilities; ``last`` keeps one exit.
        depth: where to cut, if not at the chosen depth.
        rule: where the mass of the deeper depths goes, see :func:`kept_depth_probs`.
    """
    model, _ = require(fit, LearntDepth, "A depth")
    assert fit.structure is not None
    depth = fit.structure.depth_chosen if depth is None else depth
    weights = kept_depth_probs(fit.structure.depth_probs, depth, rule)
    averaged = weights if exits == "average" else None
    return PrunedNetwork(model.stack, depth, averaged, model.likelihood)


def full_network(fit: Fit) -> PrunedNetwork:
    """The whole network in the same plain form, marginalising over every depth."""
    model, _ = require(fit, LearntDepth, "full_network")
    return PrunedNetwork(model.stack, model.max_depth, fit.weights, model.likelihood)


@torch.no_grad()
def settled(fit: Fit, depth: int | None = None) -> Fit:
    """The fit of the network of the chosen depth, which keeps its part of the posterior.

    q(d) knows of first blocks alone. Where ``fit.structure.blocks`` notes which of these are worth
    their description (:func:`worthwhile`), the others go. A fit of another model is handed back as
    it is.

    Arguments:
        depth: another than the chosen one, with all blocks up to there.
    """
    structure = getattr(fit, "structure", None)
    if structure is None or random_network(fit.model) is None:
        return fit
    if depth is not None:
        check("depth", depth, Annotated[int, Between(0, len(structure.depth_probs) - 1)])
        return _of_blocks(fit, depth)
    return _of_blocks(fit, structure.depth_chosen, structure.blocks)


@torch.no_grad()
def worthwhile(fit: Fit) -> tuple[int, ...]:
    r"""Blocks of the chosen depth that are worth their description, by their numbers from 0.

    Blocks are alike before there is data, and the network without one of them is as good a
    posterior as that of any depth. Its bound is evaluated in the same way,

    .. math:: \sum_n E_q \log p(y_n \mid x_n, w_S) / β - \sum_{l \in S} KL_l + \log p(S),

    with the weights that the blocks in S have, the prior of as many first blocks at the price of
    the numbers of these, and statistics of batch normalisation that are those of S. The
    block whose loss costs least goes, as long as the bound is then no more than
    :data:`~pyroccam.inference.posterior.depth.EQUAL` nats of a row below the greatest so far.

    Each bound is a mean over :data:`PASSES` passes of the training rows, with draws of its own.
    Blocks whose worth is within the error of that mean, some thousandths of a nat of a row, stay or
    go by the seed. D blocks take up to D (D + 1) / 2 bounds, which can be longer than the fit; so
    that no cut asks for it by itself. Note what it finds to have the others cut::

        fit.structure = dataclasses.replace(fit.structure, blocks=worthwhile(fit))

    Blocks that change the shape of what they are given cannot be skipped, and stay; of a point
    estimate, which has no bound, and where the bound of all of them is not finite, all do.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianStack`.
    """
    model: Any = fit.model
    assert fit.structure is not None
    depth, weight = fit.structure.depth_chosen, fit.settings.kl_weight
    kept = tuple(range(depth))
    if _of_blocks(fit, depth).guide.traits.point:
        return kept

    def bound(blocks: tuple[int, ...]) -> float:
        one = _of_blocks(fit, depth, blocks)
        found = evidence(one.model, one.guide, one.data, passes=PASSES)
        value = found.log_likelihood / weight - found.kl + model.log_prior_of(depth, blocks)
        return value if math.isfinite(value) else -math.inf

    def is_random(blocks: tuple[int, ...]) -> bool:
        parts = model.exits.at_names(depth, blocks).values()
        return any(
            name == part or name.startswith(f"{part}.") for name in model.layers for part in parts
        )

    skippable = model.start_network().skippable(fit.data.head(2)[0])
    if not {*kept} & {*skippable} or not math.isfinite(most := bound(kept)):
        return kept
    while loose := [block for block in kept if block in skippable]:
        without = (tuple(b for b in kept if b != block) for block in loose)
        rest = {blocks: bound(blocks) for blocks in without if is_random(blocks)}
        if not rest:
            break
        best = max(rest, key=rest.__getitem__)
        if rest[best] < most - EQUAL * fit.data.N / weight:
            break
        kept, most = best, max(most, rest[best])
    return kept


def _of_blocks(fit: Fit, depth: int, blocks: Sequence[int] | None = None) -> Fit:
    """The fit of the network of a depth, or of some of its blocks."""
    network: Any = random_network(fit.model)
    edges = {"depth": one_hot(torch.tensor(depth), network.max_depth + 1)}
    found = network.settled(fit.data, edges, blocks)
    model, names = found
    guide: Any = fit.guide.rebuild(model, names)
    for name, there in names.items():
        before, after = network.layers[name], model.layers[there]
        after.prior.load_state_dict(before.prior.state_dict())
        if after.bias is not None and before.bias is not None:
            after.bias.copy_(before.bias)
        for latent in after.latents():
            posterior = fit.guide.factor_of(before.site(latent))
            guide.factor_of(after.site(latent)).load_state_dict(posterior.state_dict())
    model.likelihood.load_state_dict(network.likelihood.state_dict())
    device = fit.data.device
    model, guide = model.to(device).eval(), guide.to(device)
    if blocks is not None and keeps_statistics(model):
        size, seed = fit.settings.batch_size, fit.settings.seed
        renew_statistics(model, guide, fit.data, batch_size=size, seed=seed)
    return replace(fit, model=model, guide=guide, structure=None)


def kept_depth_probs(probs: Tensor, depth: int, rule: TailRule = "tail_to_last") -> Tensor:
    """Weights ``(depth + 1,)`` over the depths 0 ... ``depth`` that a pruned network marginalises
    with.

    Arguments:
        probs: q(d), ``(D + 1,)``.
        rule: ``tail_to_last`` gives all mass of the depths cut off to the deepest one left (the
            authors' code); ``proportional`` conditions, ``q(d | d <= depth)``.

    Example:
        >>> kept_depth_probs(torch.tensor([0.2, 0.2, 0.6]), 1)
        tensor([0.2000, 0.8000])
        >>> kept_depth_probs(torch.tensor([0.2, 0.2, 0.6]), 1, "proportional")
        tensor([0.5000, 0.5000])
    """
    check("depth", depth, Annotated[int, Between(0, len(probs) - 1)])
    check("rule", rule, TailRule)
    kept = probs[: depth + 1].clone()
    if rule == "tail_to_last":
        kept[-1] = probs[depth:].sum()
    elif not kept.sum() > 0:
        raise PyroccamError(f"q gives no mass to the depths 0 ... {depth}", hint="tail_to_last")
    return kept / kept.sum()
