"""Digits of what is no weight: biases, scales and shifts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import nn

from .bits import MOST
from .quantise import Bits, quantised

LEAST_BITS = 3
"""Significand bits of what is no weight, at least: it is few numbers."""

_ROUNDED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rest_bits(
    net: nn.Module, nll: Callable[[nn.Module], float], tolerance: float
) -> dict[str, Bits]:
    """As few significand bits, one number for all, for what a network holds beside its weights as
    move its loss no more than is tolerated.

    Returns:
        The bits by name, for :func:`~pyroccam.inference.rounding.quantised`; none if all are
        needed.
    """
    numbers = chain(net.named_parameters(), net.named_buffers())
    names = [n for n, t in numbers if t.dim() < 2 and t.dtype in _ROUNDED and t.isfinite().all()]
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
