"""Variational network quantisation: a density with a spike at each level of a learnt codebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...data import Positive, PyroccamError
from ..distributions import (
    SPIKE_KLS,
    Levels,
    MultiSpikeLogUniform,
    SpikeKL,
    SpikeTable,
    spike_table,
    to_levels,
)
from .base import Latent, LayerPrior, LayerShape, WeightPrior
from .log_uniform import LogUniform

# Levels, of which the best is the start, and weights, as many quantiles of all, that tell it.
_TRIED, _ENOUGH = 100, 10_000


@dataclass(frozen=True)
class MultiSpike(WeightPrior):
    r"""``p(w) ∝ Σ_k 1 / |w - c_k|`` for each weight, about the levels of its layer. Biases are
    N(0, 1).

    .. math:: c_k = -a, …, 0, …, a \text{ equally apart}

    The largest level a of each layer is learnt with the weights, and begins where rounding the
    weights of the network to the levels moves them least (:func:`best_level`). In the end
    :func:`~pyroccam.inference.shrink` sets weights that are mostly noise to zero, and the others
    to the nearest level. The guide begins at a standard deviation of e^-4.

    The density is the same in any unit, so that nothing but the weights holds a: it never falls
    below a least level, and is slow. Adam moves a parameter by its rate, whatever its unit: a is
    kept in units of ``rate``, and one learning rate serves all.

    Arguments:
        levels: K, an odd number in 3 ... 15, zero included: 3 take 2 bits of a weight, 7 take 3.
        kl: ``"exact"``; ``"achterhold"``, as published, for 3 levels.
        first: the layer that the network uses first has ``"levels"`` like the others, or is
            ``"free"``: its prior is log-uniform, and what is left of it keeps values of its own.
        rate: learning rate of a as a multiple of that of the weights.
        least: a is at least this, divided by the square root of the weights of an output.
        start: a begins at this multiple of the level that moves the weights least.

    References:
        Achterhold, Koehler, Schmeink, Genewein 2018, Variational network quantization, ICLR. There
        the least level is 0.05, whatever the layer: that of a 5 x 5 convolution of one channel
        here.

    Example:
        >>> layer = LayerShape("fc", torch.Size([3, 4]), None, 1, False, 4)
        >>> MultiSpike(levels=5).for_layer(layer)()["weight"].levels.detach()
        tensor([-0.3375, -0.1688,  0.0000,  0.1688,  0.3375])
    """

    words = "multi-spike, multi-spike:7, multi-spike:3:achterhold, multi-spike:3:first-free"

    levels: Levels = 3
    kl: SpikeKL = "exact"
    first: Literal["levels", "free"] = "levels"
    rate: Positive = 0.01
    least: Positive = 0.25
    start: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl == "achterhold" and self.levels != 3:
            raise PyroccamError(f"kl='achterhold' of {self.levels} levels", "3 of them, or 'exact'")

    @classmethod
    def from_words(cls, argument: str) -> WeightPrior:
        levels, *rest = argument.split(":")
        free = [word for word in rest if word == "first-free"]
        kl: Any = [word for word in rest if word != "first-free"]  # its check decides which
        if len(free) > 1 or len(kl) > 1:
            raise PyroccamError("one word is there twice.")
        options: dict[str, Any] = {"levels": int(levels), **({"kl": kl[0]} if kl else {})}
        return cls(first="free" if free else "levels", **options)

    def for_network(self) -> WeightPrior:
        return _FirstFree(self) if self.first == "free" else self

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        return _MultiSpikeLayer(layer, self)


class _FirstFree(WeightPrior):
    """The prior of one network, whose first layer has no levels."""

    def __init__(self, prior: MultiSpike) -> None:
        self.prior, self.first = prior, True

    def for_network(self) -> WeightPrior:
        return self.prior.for_network()  # another network has a first layer of its own

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        if self.first:
            self.first = False
            return LogUniform("molchanov" if self.prior.kl == "achterhold" else "exact").for_layer(
                layer
            )
        return self.prior.for_layer(layer)


class _MultiSpikeLayer(LayerPrior):
    rate: Tensor
    least: Tensor

    def __init__(self, layer: LayerShape, prior: MultiSpike) -> None:
        # Numbers that a person gave are buffers: a run that goes on has to have the same.
        super().__init__(
            layer, rate=prior.rate, least=prior.least / math.sqrt(layer.fan_in),
            levels=prior.levels, of_kl=SPIKE_KLS.index(prior.kl), begin=prior.start,
        )  # fmt: skip
        self.given = prior
        # Of the weights that torch begins with: uniform, up to one by the root of the fan-in.
        usual = max(0.675 * prior.start, prior.least) / math.sqrt(layer.fan_in)
        self.level = nn.Parameter(torch.tensor(usual / prior.rate))
        # Not buffers, which are numbers that a person gave; they move as buffers do.
        self.table = SpikeTable(*(part.to(self.zero) for part in spike_table(prior.levels)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _MultiSpikeLayer:
        self.table = SpikeTable(*map(fn, self.table))
        super()._apply(fn, recurse)
        return self

    @torch.no_grad()
    def begin_at(self, weight: Tensor) -> None:
        found = best_level(weight, self.given.levels)
        if found:  # a layer without a weight says nothing
            self.level.fill_(max(self.given.start * found, float(self.least)) / float(self.rate))

    def latents(self) -> Mapping[str, Latent]:
        start = math.exp(-4.0)
        level = self.rate * self.level
        # With the gradient of the limit: by that of a clamp, zero, it would never come back.
        level = level + (self.least - level).clamp(min=0.0).detach()
        shape = self.layer.weight
        each = MultiSpikeLogUniform(level, self.given.levels, shape, self.given.kl, self.table)
        weight = Latent(
            each.to_event(len(shape)), start=(None, start), unbounded=True, levels=each.codebook
        )
        return {"weight": weight, **self.standard_bias(start)}


def best_level(weight: Tensor, levels: int) -> float:
    """The largest level a, of those up to the largest weight, at which rounding to the nearest of
    the K levels equally apart in [-a, a] moves the weights least, in squares.

    Arguments:
        weight: of any shape.
        levels: K, odd.

    Returns:
        zero where all weights are.
    """
    w = weight.detach().double().flatten().abs().sort().values
    largest = float(w[-1]) if w.numel() else 0.0
    w = w[:: -(-len(w) // _ENOUGH) or 1]
    if not largest > 0.0:
        return 0.0
    tried = [largest * (k + 1) / _TRIED for k in range(_TRIED)]
    return min(tried, key=lambda a: float((w - to_levels(w, a, levels)).square().sum()))
