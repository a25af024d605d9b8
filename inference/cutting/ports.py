"""What a step of a network does to features, as plain facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Size, Tensor
from torch.fx import Node

__all__ = ["Link", "Passing", "Port", "straight"]

Constants = Callable[[Mapping[Node, Tensor]], Tensor]


@dataclass(frozen=True)
class Port:
    """A tensor of the network: its shape and the axis of its features."""

    shape: Size
    axis: int

    @property
    def size(self) -> int:
        """Number of features."""
        return self.shape[self.axis]


@dataclass(frozen=True)
class Link:
    """Feature ``into[k]`` of a result is made of feature ``of[k]`` of ``source``, ``(K,)`` each."""

    source: Node
    of: Tensor
    into: Tensor


@dataclass(frozen=True)
class Passing:
    """A step that keeps features apart.

    Arguments:
        axis: of the features of its result.
        links: where its features come from.
        constants: ``(C,)`` of its result, from those of the tensors it reads.
        uses: ``(C,)`` bool, which of its features depend on what it reads; ``None`` for all.
        rigid: the number of features is written into the call, so a cut has to change it.
        mixed: further features that its own are made of, which can be cut without them.
        ties: features of the tensors it reads that can only be cut together, and with what node.
    """

    axis: int
    links: list[Link]
    constants: Constants
    uses: Tensor | None = None
    rigid: bool = False
    mixed: list[Link] = field(default_factory=list)
    ties: list[tuple[Node, Link]] = field(default_factory=list)


def straight(node: Node, port: Port) -> Link:
    """Every feature of a tensor is made of the same one of another."""
    every = torch.arange(port.size)
    return Link(node, every, every)
