"""The first pass of a pair, on copies: what it trains, and what cannot be trained.

Some networks write to their inputs, which are a person's data; some give outputs without a
gradient. Both are seen here, once, so that no step has to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.func import functional_call

from ...data import NetworkError, PyroccamError
from ...models import changed, evaluating, give_copies
from ..elbo import Bound, Terms, first_non_finite
from .optimizer import parameter_groups
from .settings import Settings

Pair = tuple[nn.Module, nn.Module]


class _Once(Messenger):
    """Nothing is sampled within: not in a backward pass, where it would be drawn anew."""

    def _process_message(self, msg: Any) -> None:
        raise NetworkError(
            f"the backward pass computes {msg['name'] or 'a layer'} again, with other weights",
            "no torch.utils.checkpoint around a random layer",
        )


class _InTerms(nn.Module):
    """A bound that is called for its terms."""

    def __init__(self, bound: Bound) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, x: Tensor, y: Tensor) -> Terms:
        return self.bound.terms(x, y)


def trained_by(
    pairs: Sequence[Pair], bounds: Sequence[Bound], settings: Settings, x: Tensor, y: Tensor
) -> set[int]:
    """Positions of the parameters of the first bound that get a gradient.

    Leaves batch, buffers and random numbers as they are. From now on, networks that write to their
    inputs get copies of them, in all pairs.

    Raises:
        PyroccamError: if the batch cannot be kept as it is, or the likelihood is complex.
        NetworkError: if the outputs of the network have no gradient.
    """
    first, (model, _) = bounds[0], pairs[0]
    terms, spoilt = _look(pairs[0], first, x, y)
    if spoilt:
        for one, _ in pairs:
            give_copies(one)
        terms, spoilt = _look(pairs[0], first, x, y)
    if spoilt:
        raise PyroccamError(f"{type(model).__name__} changes its batch in place", "inplace=False")
    if terms.log_likelihood.is_complex():
        raise PyroccamError("complex outputs of the network", "real ones", "out.real")
    try:
        with _Once():
            _refuse_detached(pairs[0], first, settings, terms.log_likelihood)
    except RuntimeError as error:
        if "use_reentrant" in str(error):
            raise NetworkError("use_reentrant=True in the network", "use_reentrant=False") from None
        raise
    loss = terms.loss(first.kl_weight)
    if not loss.requires_grad:
        return set()
    parameters = list(first.parameters())
    wanted = [p for p in parameters if p.requires_grad]
    grads = torch.autograd.grad(loss, wanted, allow_unused=True)
    got = {id(p) for p, g in zip(wanted, grads, strict=True) if g is not None}
    return {i for i, p in enumerate(parameters) if id(p) in got}


def _look(pair: Pair, bound: Bound, x: Tensor, y: Tensor) -> tuple[Terms, bool]:
    """The bound, and whether a pass, in training or evaluation mode, writes to the batch."""
    cuda = [x.device] if x.device.type == "cuda" else []
    spoilt = False
    for mode in (evaluating(pair[0]), torch.enable_grad()):  # the last is differentiated
        own = x.clone(), y.clone()
        versions = [t._version for t in own]
        held = {f"bound.{n}": t.detach().clone() for n, t in bound.named_buffers()}
        with torch.random.fork_rng(devices=cuda), mode:
            try:
                terms: Terms = functional_call(_InTerms(bound), held, own)
            except ValueError as error:
                if "Expected parameter" not in str(error):
                    raise
                # What was not finite, instead of the distribution that met it.
                why = first_non_finite(*pair, *own, stepped=False)
                raise PyroccamError(f"Before the first step, {why}.") from error
        before = zip(own, (x, y), versions, strict=True)
        spoilt = spoilt or any(changed(*one) for one in before)
    return terms, spoilt


def _refuse_detached(pair: Pair, bound: Bound, settings: Settings, log_likelihood: Tensor) -> None:
    """Refuse a network of which the likelihood learns nothing, though there is something to be
    trained in it."""
    groups = parameter_groups(settings, *pair)
    # Not the likelihood's noise, and what only a KL depends on: those learn without a network.
    network = ("weights", "structure", "posterior")
    own = [p for group in groups if group["name"] in network for p in group["params"]]
    if not own:
        return
    if log_likelihood.requires_grad:
        grads = torch.autograd.grad(log_likelihood, own, allow_unused=True, retain_graph=True)
        if any(g is not None for g in grads):
            return
    names = {id(p): name for name, p in bound.named_parameters()}
    raise NetworkError(
        f"the outputs of {type(pair[0]).__name__} have no gradient: the likelihood depends on none "
        f"of the {len(own)} parameters to be trained "
        f"({names[id(own[0])].removeprefix('model.')} ...)",
        "outputs computed from them by torch",
    )
