"""Outputs of draws from the posterior of a Bayesian network."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import pyro
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from ...data import Between, PyroccamError, Seed, checked
from ...guides import NetworkGuide
from ...models import BayesianNetwork, dropping, evaluating, local_parameters, plain_kernels, seeded
from ...models.layers import convolves
from .layers import drawn_weights, layer_moments, mean_network

Noise = Literal["weights", "activations"]

# Weights of networks that are drawn at once, in numbers.
AT_ONCE = 2**24
Draws = Annotated[int, Between(1, 1_000_000)]  # of one prediction
ROWS_AT_ONCE = 2**16  # of all of them together
IMAGES_AT_ONCE = 2**11  # of 28 x 28, where hidden units are images: what a CPU's cache holds


def weights_of(
    model: BayesianNetwork,
    values: Mapping[str, Tensor],
    held: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    layers: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """Weights, biases and structure by their names in a plain network, from values of the sites.

    Arguments:
        values: ``(S, *)`` of every site, or of those of ``layers`` and of the structure.
        held: of layers by name, which of their weights follow from the values, and what the others
            are.
        layers: whose weights are wanted; of all layers by default.

    Returns:
        tensors ``(S, *)``.
    """
    found: dict[str, Tensor] = {}
    for name, layer in model.layers.items():
        if layers is not None and name not in layers:
            continue
        weights = drawn_weights(layer, values)
        if held is not None and name in held:
            chosen, others = held[name]
            weights["weight"] = torch.where(chosen, weights["weight"], others)
        prefix = f"{name}." if name else ""
        found |= {prefix + key: value for key, value in weights.items()}
    gammas = {prior.edge: prior.gamma(values[site]) for site, prior in model.structure.items()}
    return model.scaled(found, gammas) | {_gamma(edge): g for edge, g in gammas.items()}


def draw_weights(
    model: BayesianNetwork,
    guide: NetworkGuide,
    draws: int,
    only: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Weights, biases and structure of networks drawn from the posterior, by their names in a plain
    network.

    Arguments:
        draws: S.
        only: weights that are drawn, by layer, booleans in their shape; the others are means.

    Returns:
        tensors ``(S, *)``.
    """
    held = None
    if only is not None:
        means = layer_moments(model, guide)
        if unknown := sorted({*only} - {*means}):
            raise PyroccamError(f"only= of {unknown[0]!r}", f"Bayesian layers: {[*means]}")
        held = {name: (chosen, means[name].mean) for name, chosen in only.items()}
    return weights_of(model, guide.draw(draws), held)


def _gamma(edge: str) -> str:
    """Name of the buffer that says what the primitives of an edge count."""
    graph, _, own = edge.rpartition(".")
    return f"{graph}.gamma.{own}".lstrip(".")


class DrawnNetwork(nn.Module):
    """The network with fresh noise in every pass; differentiable in its inputs and parameters.

    Arguments:
        model, guide: a pair.
        noise: draw the ``weights`` once for a pass, or ``activations`` for each example, as the
            guide's local reparameterisation does in training. For linear layers each example has
            the same distribution either way; a convolution with drawn activations has noise of its
            own at every place, and is not the network that a posterior over weights speaks of.

    Dropout modules of the network are noise as well, whatever mode they are in (Gal, Ghahramani
    2016, arXiv:1506.02142).

    Raises:
        PyroccamError: for activations of a guide that draws its weights.
    """

    @checked
    def __init__(
        self, model: BayesianNetwork, guide: NetworkGuide, noise: Noise = "weights"
    ) -> None:
        super().__init__()
        if noise == "activations" and guide.scales is None:
            raise PyroccamError(
                f"noise='activations' of a {type(guide).__name__}", "a guide of local=True"
            )
        self.model, self.guide = model, guide
        self.noise: Noise = noise

    def forward(self, x: Tensor) -> Tensor:
        """Outputs ``(B, outputs)`` for ``x``, ``(B, *)``."""
        return self._pass(x, nullcontext())

    def passes(self, x: Tensor, count: int) -> Tensor:
        """Outputs of several passes, each with noise of its own: ``(S, B, outputs)``.

        What comes before the first random layer is computed once for all of them.
        """
        random = any(convolves(layer) for layer in self.model.layers.values())
        if count == 1 or (random and x.device.type == "cpu"):  # see outputs_of
            return torch.stack([self(x) for _ in range(count)])

        def one(zero: Tensor, part: Tensor) -> Tensor:
            return self._pass(part, _OwnNoise(zero))

        size = (images_at_once(x) if convolves(self) else ROWS_AT_ONCE) // count
        found = _together(one, x.new_zeros(count), x, None, size)
        return torch.stack([self(x) for _ in range(count)]) if found is None else found

    def _pass(self, x: Tensor, drawing: Any) -> Tensor:
        handler: Any = self.guide.handler if self.noise == "activations" else nullcontext()
        quiet = pyro.validation_enabled(False)
        with local_parameters(), quiet, dropping(self.model), handler:
            with drawing:
                trace = poutine.trace(self.guide).get_trace(x)
            outputs: Tensor = poutine.replay(self.model.outputs, trace=trace)(x)
        return outputs


class _OwnNoise(TorchFunctionMode):
    """Noise that a distribution writes into a new tensor, for each of the passes that are mapped.

    Arguments:
        zero: of each pass, mapped; a tensor to which it is added can hold what differs.
    """

    def __init__(self, zero: Tensor) -> None:
        super().__init__()
        self.zero = zero

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _WRITES_NOISE:
            empty = torch.zeros_like(args[0])
            args = (empty + self.zero.to(empty), *args[1:])
        return func(*args, **(kwargs or {}))


_WRITES_NOISE = {
    getattr(Tensor, name) for name in ("normal_", "uniform_", "exponential_", "cauchy_")
}


@torch.no_grad()
@checked
def draw_outputs(
    model: BayesianNetwork,
    guide: NetworkGuide,
    x: Tensor,
    draws: Draws,
    *,
    noise: Noise = "weights",
    only: Mapping[str, Tensor] | None = None,
    seed: Seed = 0,
) -> Tensor:
    """Outputs of the network for draws from the posterior.

    Arguments:
        x: ``(N, *)``.
        draws: S.
        noise: see :class:`DrawnNetwork`. With drawn weights each draw is one network for all
            inputs.
        only: weights that are drawn, by layer, booleans in their shape; those of other layers are
            drawn, and the rest are means (``Curvatures.to_sample``). For drawn weights.
        seed: of the draws; the state of the generator is left as it was.

    Several networks pass at once where their weights fit into 64 MiB.

    Returns:
        ``(S, N, outputs)``.
    """
    if only is not None and noise != "weights":
        raise PyroccamError(f"only= beside noise={noise!r}", "noise='weights'")
    rows = rows_in_a_pass(x)
    with evaluating(model), seeded(seed, x.device):
        if noise != "weights":
            drawn = DrawnNetwork(model, guide, noise)
            return torch.cat([drawn.passes(part, draws) for part in x.split(rows)], 1)
        net = mean_network(model, guide)
        if guide.traits.point and not _drops(net):  # nothing is random
            one = torch.cat([net(part) for part in x.split(rows)])
            return one.expand(draws, *one.shape)
        count = sum(p.numel() for p in net.parameters())
        found: list[Tensor] = []
        with dropping(net):
            for size in chunks(draws, at_once(count, min(len(x), rows))):
                weights = draw_weights(model, guide, size, only)
                parts = [outputs_of(net, weights, part) for part in x.split(rows)]
                found.append(torch.cat(parts, 1))
        return torch.cat(found)


def outputs_of(
    net: nn.Module, weights: dict[str, Tensor], x: Tensor, *, own: bool = False
) -> Tensor:
    """Outputs of the networks with weights ``(S, *)`` in place of those of ``net``: ``(S, B,
    outputs)``.

    Arguments:
        x: rows of all, ``(B, *)``.
        own: each has rows of its own, ``(S, B, *)``; then all pass at once.
    """
    (count,) = {len(value) for value in weights.values()}

    def outputs(one: dict[str, Tensor], part: Tensor) -> Tensor:
        found: Tensor = functional_call(net, one, (part,))
        return found

    def one_by_one() -> Tensor:
        each = ({name: value[s] for name, value in weights.items()} for s in range(count))
        rows = x if own else [x] * count
        return torch.stack([outputs(*pair) for pair in zip(each, rows, strict=True)])

    size = images_at_once(x) // count if convolves(net) else len(x)
    if x.device.type == "cpu" and convolves(net):
        # Convolutions of several networks become grouped ones, which are slower on a CPU, unless
        # each has next to no rows; those that the networks share do not.
        owners = {name.rpartition(".")[0] for name in weights}
        few = own and x.shape[1] < 5
        if not few and any(convolves(net.get_submodule(owner)) for owner in owners):
            return one_by_one()
    found = _together(outputs, weights, x, 0 if own else None, size)
    return one_by_one() if found is None else found


def _together(
    f: Callable[[Any, Tensor], Tensor], each: Any, x: Tensor, own: int | None, size: int
) -> Tensor | None:
    """Outputs ``(S, B, outputs)`` of several networks at once, or ``None`` of what decides by
    values, say, which they cannot.

    Arguments:
        f: outputs of one of ``each``.
        own: dimension of ``x`` along which each has rows of its own, if they have.
        size: rows in a pass, of rows of all.
    """
    together = vmap(f, in_dims=(0, own), randomness="different")
    try:
        with plain_kernels():
            parts = x.split(max(1, size)) if own is None else [x]
            return torch.cat([together(each, part) for part in parts], 1)
    except (RuntimeError, ValueError) as error:  # a graph says the latter of a primitive
        if "vmap" not in str(error) and "Batching rule" not in str(error):
            raise
        return None


def _drops(module: nn.Module) -> bool:
    return any(isinstance(part, _DropoutNd) and part.p > 0.0 for part in module.modules())


def images_at_once(x: Tensor) -> int:
    """Rows of ``x``, ``(N, C, *)``, that may pass at once through networks with convolutions: the
    fewer, the larger their images are."""
    images = IMAGES_AT_ONCE if x.device.type == "cpu" else 4 * IMAGES_AT_ONCE
    return max(1, images * 28 * 28 // max(1, math.prod(x.shape[2:])))


def rows_in_a_pass(x: Tensor) -> int:
    """Rows of ``x`` in a pass through one network: 1024, or fewer large images."""
    return min(1024, images_at_once(x))


def at_once(weights: int, rows: int) -> int:
    """Networks that pass at once: so many that neither their weights nor their hidden units take
    much memory."""
    return max(1, min(AT_ONCE // max(weights, 1), ROWS_AT_ONCE // max(rows, 1)))


def chunks(total: int, most: int) -> list[int]:
    """A number in parts of at most ``most``."""
    return [min(most, total - start) for start in range(0, total, most)]
