"""Networks that change their inputs in place: they get copies, for the inputs are a person's data.

``nn.ReLU(inplace=True)`` at the beginning is enough, or ``x -= x.mean()``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import Model


def changed(t: Tensor, before: Tensor, version: int) -> bool:
    """A pass has written to a tensor, of which there is a copy and its version from before; what
    goes through ``.data`` or NumPy leaves the version."""
    return t._version != version or not torch.allclose(t, before, rtol=0, atol=0, equal_nan=True)


def own_copies(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A forward pre-hook: the module computes with copies of its inputs."""
    return tuple(one.clone() if isinstance(one, Tensor) else one for one in inputs)


def give_copies(net: nn.Module) -> None:
    """Let a network, or a model, compute with copies of its inputs from now on, and with it those
    that are made of it."""
    first = net.entry if isinstance(net, Model) else net
    if own_copies not in first._forward_pre_hooks.values():
        first.register_forward_pre_hook(own_copies)
