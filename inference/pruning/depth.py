"""A network cut at its learnt depth: a smaller plain one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ...models.learnt_depth import LearntDepth
from ...models.plain.pruned import Form, PrunedNetwork
from ..posterior.family import random_network, require

if TYPE_CHECKING:
    from ..fits.fitting import Fit

__all__ = ["TailRule", "full_network", "kept_depth_probs", "prune", "settled"]

TailRule = Literal["tail_to_last", "proportional"]


def prune(
    fit: Fit, *, form: Form = "marginal", depth: int | None = None, rule: TailRule = "tail_to_last"
) -> PrunedNetwork:
    """A plain ``nn.Module`` that computes only the blocks up to the chosen depth.

    Arguments:
        fit: of a :class:`~pyroccam.models.LearntDepth`.
        form: ``marginal`` keeps the exits of all depths up to there and averages their
            probabilities; ``single`` keeps one exit.
        depth: where to cut, if not at the chosen depth.
        rule: where the mass of the deeper depths goes, see
            :func:`~pyroccam.inference.pruning.depth.kept_depth_probs`.

    Returns:
        A network in evaluation mode that shares nothing with the fit.

    Raises:
        TypeError: if nothing was learnt about depth.
        ValueError: for a depth or form that does not exist.
    """
    cut = "Its weights are cut by inference.compress." if fit.model.random_weights else ""
    model, _ = require(fit, LearntDepth, "prune", cut)
    assert fit.structure is not None
    if form not in ("marginal", "single"):
        raise ValueError(f"form must be 'marginal' or 'single', got {form!r}.")
    depth = fit.structure.depth_chosen if depth is None else depth
    weights = kept_depth_probs(fit.structure.depth_probs, depth, rule)
    return PrunedNetwork(
        model.stack, depth, weights if form == "marginal" else None, model.likelihood
    )


def full_network(fit: Fit) -> PrunedNetwork:
    """The whole network in the same plain form, marginalising over every depth."""
    model, _ = require(fit, LearntDepth, "full_network")
    return PrunedNetwork(model.stack, model.max_depth, fit.weights, model.likelihood)


@torch.no_grad()
def settled(fit: Fit, depth: int | None = None) -> Fit:
    """The fit of the network of the chosen depth, which keeps its part of the posterior.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianStack`, which is not changed; any other is
            handed back as it is.
        depth: another than the chosen one.

    Raises:
        ValueError: for a depth that the stack has not.
    """
    structure = getattr(fit, "structure", None)
    if structure is None or (network := random_network(fit.model)) is None:
        return fit
    chosen = torch.zeros(len(structure.depth_probs))
    depth = structure.depth_chosen if depth is None else depth
    if not 0 <= depth < len(chosen):
        raise ValueError(f"depth {depth} is outside 0 ... {len(chosen) - 1} of this stack.")
    chosen[depth] = 1.0
    found = network.settled(fit.data, {"depth": chosen})
    if found is None:
        return fit
    model, names = found
    guide: Any = fit.guide.of(model, names)
    for name, there in names.items():
        before, after = network.layers[name], model.layers[there]
        after.prior.load_state_dict(before.prior.state_dict())
        if after.bias is not None and before.bias is not None:
            after.bias.copy_(before.bias)
        for latent in after.latents():
            posterior = fit.guide.factor_of(f"{name}.{latent}")
            guide.factor_of(f"{there}.{latent}").load_state_dict(posterior.state_dict())
    model.likelihood.load_state_dict(network.likelihood.state_dict())
    device = fit.data.device
    return replace(fit, model=model.to(device).eval(), guide=guide.to(device), structure=None)


def kept_depth_probs(probs: Tensor, depth: int, rule: TailRule = "tail_to_last") -> Tensor:
    """Weights over the depths 0 ... ``depth`` that a pruned network marginalises with.

    Arguments:
        probs: q(d), ``(D + 1,)``.
        depth: where the network is cut.
        rule: ``tail_to_last`` gives all mass of the depths cut off to the deepest one left (the
            authors' code); ``proportional`` conditions, ``q(d | d <= depth)``.

    Returns:
        ``(depth + 1,)``, summing to one.

    Raises:
        ValueError: for an unknown rule or a depth that q does not have.

    Example:
        >>> kept_depth_probs(torch.tensor([0.2, 0.2, 0.6]), 1)
        tensor([0.2000, 0.8000])
        >>> kept_depth_probs(torch.tensor([0.2, 0.2, 0.6]), 1, "proportional")
        tensor([0.5000, 0.5000])
    """
    if not 0 <= depth < len(probs):
        raise ValueError(f"depth {depth} is outside 0 ... {len(probs) - 1}.")
    kept = probs[: depth + 1].clone()
    if rule == "tail_to_last":
        kept[-1] = probs[depth:].sum()
    elif rule != "proportional":
        raise ValueError(f"rule must be 'tail_to_last' or 'proportional', got {rule!r}.")
    elif not kept.sum() > 0:
        raise ValueError(
            f"q gives no mass to the depths 0 ... {depth}, so it cannot be conditioned on them: "
            "use rule='tail_to_last', or cut deeper."
        )
    return kept / kept.sum()
