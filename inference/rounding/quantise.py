"""Round the weights of a plain network: to significand bits, to a fixed step, to a codebook."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, TypeVar

import torch
from torch import Tensor, nn

from ...data import Between, Count, Options, Positive, PyroccamError
from .bits import MOST, round_fixed_point, round_significand

Net = TypeVar("Net", bound=nn.Module)

_MOST_STEPS = 200  # of Lloyd's algorithm, which has settled long before


Rounding = Callable[[Tensor], Tensor]
"""A way to round the weights of one layer; zeros stay zeros."""


@dataclass(frozen=True)
class Significand(Options):
    """Floating point with so many significand bits; the exponent is not limited."""

    bits: Annotated[int, Between(1, 53)]

    def __call__(self, weights: Tensor) -> Tensor:
        return round_significand(weights, self.bits)


@dataclass(frozen=True)
class FixedPoint(Options):
    """Multiples of ``2^-bits``."""

    bits: Annotated[int, Between(0, 30)]

    def __call__(self, weights: Tensor) -> Tensor:
        return round_fixed_point(weights, self.bits)


@dataclass(frozen=True)
class Multiples(Options):
    """Whole multiples of a step, which need be no power of two; as float32 multiplies them."""

    step: Positive

    def __call__(self, weights: Tensor) -> Tensor:
        step = torch.tensor(self.step).to(weights)
        return (weights / step).round() * step + 0.0  # no zero with a sign


@dataclass(frozen=True)
class Codebook(Options):
    """A few distinct values besides zero, so many at most, found by :func:`cluster`."""

    size: Count = 32

    def __call__(self, weights: Tensor) -> Tensor:
        kept = weights != 0
        out = torch.zeros_like(weights)
        if kept.any():
            book, index = cluster(weights[kept], self.size)
            out[kept] = book[index]
        return out


Bits = int | Rounding


def quantised(net: Net, bits: Bits | Mapping[str, Bits]) -> Net:
    """A copy of a network with rounded numbers, in evaluation mode, of the same dtypes. Biases and
    statistics that are not named are rounded to single precision.

    Arguments:
        net: a plain network.
        bits: for all weights, or for each layer by its name or that of its tensor. A whole number
            means so many significand bits; layers that are not named stay exact. Weights are the
            parameters of two and more dimensions; a tensor of one dimension is rounded only if it
            is named.

    Raises:
        PyroccamError: for a name the network does not have, a number that is not finite, or one too
            large for single precision.
    """
    out = copy.deepcopy(net).eval()
    tensors = dict(chain(out.named_parameters(), out.named_buffers()))
    chosen = _chosen(bits, tensors, {name for name, _ in out.named_parameters()})
    with torch.no_grad():
        for name, tensor in tensors.items():
            try:
                if not tensor.numel():
                    continue
                if name in chosen:
                    rounding = chosen[name]
                    rounding = Significand(rounding) if isinstance(rounding, int) else rounding
                    tensor.copy_(rounding(tensor))
                elif tensor.dim() < 2 and tensor.dtype == torch.float64:
                    narrow = tensor.float()
                    if not torch.equal(narrow.isfinite(), tensor.isfinite()):
                        raise PyroccamError(f"a number is too large for {narrow.dtype}")
                    tensor.copy_(narrow)
            except ValueError as error:
                raise PyroccamError(f"{name}: {error}") from error
    return out


def _chosen(
    bits: Bits | Mapping[str, Bits], tensors: Mapping[str, Tensor], parameters: set[str]
) -> dict[str, Bits]:
    weights = [n for n in tensors if n in parameters and tensors[n].dim() >= 2]
    if not isinstance(bits, Mapping):
        return dict.fromkeys(weights, bits)
    chosen: dict[str, Bits] = {}
    for key, value in bits.items():
        inside = [name for name in weights if name.rpartition(".")[0] == key]
        if key not in tensors and not inside:
            raise PyroccamError(f"bits names {key!r}, but the weights are {', '.join(weights)}.")
        chosen |= dict.fromkeys([key] if key in tensors else inside, value)
    return chosen


def cluster(weights: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """k-means in one dimension, by Lloyd's algorithm from equally spaced centres.

    Returns:
        The centres in rising order, ``(K,)``, in the weights' dtype, so many at most, for some may
        attract no weight; and each weight's nearest, of the weights' shape.

    References:
        Han, Mao, Dally 2016, "Deep Compression" (the equally spaced start).
    """
    w = weights.detach().cpu().double().flatten()
    if not w.isfinite().all():
        raise PyroccamError("A number to cluster is not finite")
    ordered = w.sort().values
    sums = torch.cat([torch.zeros(1, dtype=w.dtype), ordered.cumsum(0)])
    distinct = ordered.unique()
    if len(distinct) <= size:
        centres = distinct
    else:
        centres = torch.linspace(ordered[0].item(), ordered[-1].item(), size, dtype=w.dtype)
        for _ in range(_MOST_STEPS):
            # In one dimension a centre owns an interval: the borders are the midpoints.
            borders = torch.searchsorted(ordered, _midpoints(centres))
            edges = torch.cat([torch.tensor([0]), borders, torch.tensor([len(ordered)])])
            counts = edges.diff()
            means = (sums[edges[1:]] - sums[edges[:-1]])[counts > 0] / counts[counts > 0]
            if torch.equal(means, centres):
                break
            centres = means
    book = centres.to(weights)
    index = torch.bucketize(w, _midpoints(centres))
    return book, index.reshape(weights.shape).to(weights.device)


def _midpoints(centres: Tensor) -> Tensor:
    return (centres[1:] + centres[:-1]) / 2


LEAST_BITS = 3
"""Significand bits of what is no weight, at least: it is few numbers."""

_ROUNDED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rest_bits(
    net: nn.Module,
    nll: Callable[[nn.Module], float],
    tolerance: float,
    tables: Collection[str] = (),
) -> dict[str, Bits]:
    """As few significand bits, one number for all, for what a network keeps beside its weights as
    move its loss no more than is tolerated; buffers that are not in its ``state_dict()`` are made
    anew with it.

    Arguments:
        tables: names of weights that are rounded with them.

    Returns:
        The bits by name, for :func:`~pyroccam.inference.rounding.quantised`; none if all are
        needed.
    """
    numbers, kept = chain(net.named_parameters(), net.named_buffers()), net.state_dict()
    names = [
        n for n, t in numbers
        if n in kept and (t.dim() < 2 or n in tables) and t.dtype in _ROUNDED and t.isfinite().all()
    ]  # fmt: skip
    before = nll(net)
    for bits in range(LEAST_BITS, MOST):
        rest: dict[str, Bits] = dict.fromkeys(names, bits)
        try:
            moved = nll(quantised(net, rest)) - before
        except ValueError:  # predictions that so few digits make infinite
            continue
        if abs(moved) <= tolerance:
            return rest
    return {}
