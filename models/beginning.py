"""Where a module began: its numbers at one moment, to be put back in a copy of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Numbers", "numbers_of", "put_back"]

Numbers = dict[str, Tensor]
"""Parameters and buffers by name."""


def numbers_of(module: nn.Module, without: Iterable[str] = ()) -> Numbers:
    """A copy of all parameters and buffers, statistics included, whoever made them.

    Arguments:
        without: names of parts that are left out.
    """
    out = tuple(without)
    return {
        name: tensor.detach().clone()
        for name, tensor in _named(module).items()
        if not any(not part or name.startswith(f"{part}.") for part in out)
    }


@torch.no_grad()
def put_back(module: nn.Module, numbers: Numbers) -> None:
    """Give a module, or a copy of it, the numbers that it had; what it had not then stays.

    Arguments:
        module: on any device, of any type.
        numbers: by :func:`numbers_of`.
    """
    for name, tensor in _named(module).items():
        if name in numbers:
            tensor.copy_(numbers[name])


def _named(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
