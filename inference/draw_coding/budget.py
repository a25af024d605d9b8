"""How many blocks a file of a size has, and how large the file of a KL is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import nn

from ...data.errors import PyroccamError
from .draw_file import overhead
from .sample import WIDEST, Sample

__all__ = ["filled", "fitting_in"]

_USUAL = 4000
"""Bytes at most, where no size is given."""


def fitting_in(net: nn.Module, names: Iterable[str], count: int, how: Sample) -> int:
    """How many blocks a file of the size has.

    Arguments:
        net: plain; what it sends as it is may still be trained.
        names: of the coded tensors.
        count: of their weights.
        how: with the size, or none.

    Raises:
        PyroccamError: if it has none, with the size that it needs.
    """
    scales = _apart(list(names))
    most = min(8 * (_USUAL if how.size is None else how.size) // how.bits, count)
    beside = overhead(net, scales, how.seed, max(most, 1), ahead=True)
    size = min(count // 4 + beside, _USUAL) if how.size is None else how.size
    blocks = min(8 * (size - beside) // how.bits, count)
    if blocks < 1:
        needed = beside + math.ceil(how.bits / 8)
        raise PyroccamError(
            f"A file of {size} bytes was asked for, but how the network is built takes {beside}, "
            f"and a block {how.bits / 8:.3g}.\nGive at least {needed}, or a smaller network."
        )
    return blocks


def filled(net: nn.Module, scales: Mapping[str, int], count: int, how: Sample, kl: float) -> int:
    """How many blocks a KL fills.

    Arguments:
        net: plain; what it sends as it is may still be trained.
        scales: bytes of the deviations of the coded tensors.
        count: of their weights.
        how: with the bits of an index, and the size, if any.
        kl: of all weights, in nats.

    Raises:
        PyroccamError: for a KL that is no number, or nothing; if there are fewer weights; if a file
            of the size has fewer blocks, with the size that it needs.
    """
    if not 0 < kl < math.inf:
        raise PyroccamError(
            f"The posterior of the fit has a KL of {kl:g}: "
            + ("it is its prior, and says nothing.\nFit longer, or with a smaller kl_weight."
               if kl == 0 else "it is broken.\nFit again, with a smaller lr.")
        )  # fmt: skip
    bits = kl / math.log(2)
    blocks = math.ceil(bits / (how.bits - how.slack))
    if blocks > count:
        wider = math.ceil(bits / count + how.slack)
        more = f"Give Sample(bits={wider}), fit" if wider <= WIDEST else "Fit"
        raise PyroccamError(
            f"The posterior of the fit has {bits / count:.3g} bits of KL a weight, and an index of "
            f"{how.bits} bits has to hold those of a weight at least.\n{more} with a larger "
            "kl_weight, or take posterior='trained'."
        )
    size = overhead(net, scales, how.seed, blocks, ahead=True) + math.ceil(blocks * how.bits / 8)
    if how.size is not None and size > how.size:
        raise PyroccamError(
            f"A file of {how.size} bytes was asked for, but the posterior of the fit has a KL of "
            f"{bits:,.0f} bits, which takes {size}.\nGive at least that, fit with a larger "
            "kl_weight, or take posterior='trained'."
        )
    return blocks


def _apart(names: list[str]) -> dict[str, int]:
    """A deviation for each layer, unlike that of the one before."""
    layers = [name.rpartition(".")[0] for name in names]
    order = list(dict.fromkeys(layers))
    return {name: order.index(layer) % 256 for name, layer in zip(names, layers, strict=True)}
