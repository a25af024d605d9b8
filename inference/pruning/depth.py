"""Cut the depth for real: a smaller plain network, and how much faster it is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...models.bayesian import BayesianNetwork
from ...models.plain.pruned import Form, PrunedNetwork
from ..fits.fitting import Fit
from ..posterior.depth import TailRule, pruned_weights

__all__ = ["count_parameters", "prune", "seconds_per_batch"]


def prune(
    fit: Fit,
    *,
    form: Form = "marginal",
    depth: int | None = None,
    rule: TailRule = "tail_to_last",
) -> PrunedNetwork:
    """A plain ``nn.Module`` that computes only the blocks up to the chosen depth.

    Arguments:
        fit: of a :class:`~pyroccam.models.LearntDepth`.
        form: ``marginal`` keeps the exits of all depths up to there and averages their
            probabilities; ``single`` keeps one exit.
        depth: where to cut, if not at the chosen depth.
        rule: where the mass of the deeper depths goes, see
            :func:`~pyroccam.inference.posterior.depth.pruned_weights`.

    Returns:
        A network in evaluation mode that shares nothing with the fit.

    Raises:
        TypeError: if nothing was learnt about depth.
        ValueError: for a depth or form that does not exist.
    """
    if fit.structure is None:
        random = isinstance(fit.model, BayesianNetwork)
        raise TypeError(
            f"prune needs a fit of models.LearntDepth, got one of {type(fit.model).__name__}, "
            "whose depth is fixed already." + " Its weights are cut by compress." * random
        )
    if form not in ("marginal", "single"):
        raise ValueError(f"form must be 'marginal' or 'single', got {form!r}.")
    depth = fit.structure.depth_chosen if depth is None else depth
    weights = pruned_weights(fit.structure.depth_probs, depth, rule)
    return PrunedNetwork(
        fit.model.stack, depth, weights if form == "marginal" else None, fit.model.likelihood
    )


def full_network(fit: Fit) -> PrunedNetwork:
    """The whole network in the same plain form, marginalising over every depth."""
    return PrunedNetwork(fit.model.stack, fit.model.max_depth, fit.weights, fit.model.likelihood)


def count_parameters(module: nn.Module) -> int:
    """Trainable numbers in a module."""
    return sum(p.numel() for p in module.parameters())


def seconds_per_batch(
    nets: Mapping[str, nn.Module], x: Tensor, *, rounds: int = 15, least_seconds: float = 0.01
) -> dict[str, float]:
    """Median wall time of a forward pass on ``x``, the contenders alternating in each round.

    Arguments:
        nets: contenders, in evaluation mode.
        x: one batch.
        rounds: measurements of each.
        least_seconds: a measurement repeats the pass until it lasts this long.
    """

    def passes(net: Any, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            net(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    x = x.clone()  # which a network may change in place
    times: dict[str, list[float]] = {name: [] for name in nets}
    with torch.inference_mode():
        counts = {}
        for name, net in nets.items():
            passes(net, 2)
            counts[name] = max(1, int(least_seconds / max(passes(net, 2), 1e-9)))
        for _ in range(rounds):
            for name, net in nets.items():
                times[name].append(passes(net, counts[name]))
    return {name: statistics.median(t) for name, t in times.items()}
