"""What a step of a network does to features, as plain facts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, nn
from torch.fx import Node

from ...models.plain import CONVS, TRANSPOSED, layer_kind

RESHAPES = ("view", "reshape", torch.reshape)
"""Calls in which the number of features may be written."""

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


class Call(NamedTuple):
    """A step of a network: a node of its graph, the module that it calls, if it calls one, the
    ports of the tensors before it, and the shape of its result; what else it reads, such as sizes,
    which tensors are of truths, and which are never cut, and the nodes that are part of it, in the
    order in which they run: those that give several tensors, or rows that are not in front."""

    node: Node
    module: nn.Module | None
    ports: Mapping[Node, Port]
    shape: Size
    numbers: Mapping[Node, Any]
    truths: Collection[Node] = ()
    fixed: Collection[Node] = ()
    inner: tuple[Node, ...] = ()

    @property
    def tensors(self) -> list[Node]:
        """The tensors with features that it reads; none, where it reads others."""
        nodes = (n for part in (*self.inner, self.node) for n in part.all_input_nodes)
        read = [n for n in dict.fromkeys(nodes) if n not in self.numbers and n not in self.inner]
        return read if all(n in self.ports for n in read) else []

    @property
    def name(self) -> str:
        """Of the operation, or of the class of the module."""
        target = self.node.target if self.module is None else type(self.module)
        return str(getattr(target, "__name__", target))

    @property
    def only(self) -> Node | None:
        """The tensor that is read by a step that reads one."""
        nodes = self.node.all_input_nodes
        return nodes[0] if len(nodes) == 1 and nodes[0] in self.ports else None


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
        whole: a tensor of which all features that vary are in each of its own, whatever they are
            linked with.
        ties: features of the tensors it reads that can only be cut together, and with what node.
        asked: it said so itself.
    """

    axis: int
    links: list[Link]
    constants: Constants
    uses: Tensor | None = None
    rigid: bool = False
    mixed: list[Link] = field(default_factory=list)
    whole: Node | None = None
    ties: list[tuple[Node, Link]] = field(default_factory=list)
    asked: bool = False


NOTHING = Passing(1, [], lambda values: torch.empty(0))
"""What is said of a step that passes no features."""


def is_depthwise(module: nn.Module | None) -> bool:
    """True if each channel of a convolution is made of the same channel before it."""
    if not isinstance(module, CONVS) or layer_kind(module) is None:
        return False
    return module.groups == module.in_channels == module.out_channels > 1


def pads_zeros(module: nn.Module) -> bool:
    """True if a constant channel stops being one at the border.

    Of a transposed convolution it does so anywhere: each position gets other parts of the kernel.
    """
    if isinstance(module, TRANSPOSED):
        return True
    if not isinstance(module, CONVS) or module.padding_mode != "zeros":
        return False
    if type(module) not in CONVS:  # it may make a border of its own
        return True
    padding = module.padding
    return padding != "valid" if isinstance(padding, str) else any(padding)


def straight(node: Node, port: Port) -> Link:
    """Every feature of a tensor is made of the same one of another."""
    every = torch.arange(port.size)
    return Link(node, every, every)
