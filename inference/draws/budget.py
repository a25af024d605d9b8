"""How many blocks a file of a size has, and how large the file of a KL is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import nn

from ...data import PyroccamError
from ..files import Sent, overhead
from .frequencies import Grid
from .options import Draw

_USUAL = 4000
"""Bytes at most, where no size is given."""


def fitting_in(
    net: nn.Module, names: Iterable[str], grids: Mapping[str, Grid], count: int, how: Draw
) -> int:
    """How many blocks a file of the size has."""
    most = min(8 * (_USUAL if how.bytes is None else how.bytes) // how.bits, count)
    sent = Sent(_apart(list(names)), how.seed, 0, [0] * max(most, 1), grids)
    beside = overhead(net, sent)
    size = min(count // 4 + beside, _USUAL) if how.bytes is None else how.bytes
    blocks = min(8 * (size - beside) // how.bits, count)
    if blocks < 1:
        needed = beside + math.ceil(how.bits / 8)
        raise PyroccamError(
            f"bytes={size}, of which how the network is built takes {beside}", f"at least {needed}"
        )
    return blocks


def filled(net: nn.Module, scales: Mapping[str, int], count: int, how: Draw, kl: float) -> int:
    """How many blocks a KL of all weights fills, in nats."""
    if not 0 < kl < math.inf:
        raise PyroccamError(f"The posterior of the fit has a KL of {kl:g}", "one above 0")
    bits = kl / math.log(2)
    blocks = math.ceil(bits / (how.bits - how.slack))
    if blocks > count:
        raise PyroccamError(
            f"bits={how.bits} of an index, and a KL of {bits / count:.3g} bits a weight",
            "more bits, or a fit with a larger kl_weight",
        )
    beside = overhead(net, Sent(scales, how.seed, 0, [0] * blocks))
    size = beside + math.ceil(blocks * how.bits / 8)
    if how.bytes is not None and size > how.bytes:
        raise PyroccamError(
            f"bytes={how.bytes}, and the fit has a KL of {bits:,.0f} bits, which takes {size}."
        )
    return blocks


def _apart(names: list[str]) -> dict[str, int]:
    """A deviation for each layer, unlike that of the one before."""
    layers = [name.rpartition(".")[0] for name in names]
    order = list(dict.fromkeys(layers))
    return {name: order.index(layer) % 256 for name, layer in zip(names, layers, strict=True)}
