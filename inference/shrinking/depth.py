"""A network cut at its learnt depth: a smaller plain one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...data import Between, PyroccamError, check
from ...models import LearntDepth
from ...models.plain import PrunedNetwork
from ..posterior import random_network, require

if TYPE_CHECKING:
    from ..training import Fit

TailRule = Literal["tail_to_last", "proportional"]


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

    A fit of another model is handed back as it is.

    Arguments:
        depth: another than the chosen one.
    """
    structure: Any = getattr(fit, "structure", None)
    if structure is None or random_network(fit.model) is None:
        return fit
    depth = structure.depth_chosen if depth is None else depth
    check("depth", depth, Annotated[int, Between(0, len(structure.depth_probs) - 1)])
    network: Any = random_network(fit.model)
    edges = {"depth": one_hot(torch.tensor(depth), network.max_depth + 1)}
    model, names = network.settled(fit.data, edges)
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
