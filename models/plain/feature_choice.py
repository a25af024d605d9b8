"""The one step that a cut network may have and torch has no module for: features by their index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard, cast

import torch
from torch import Tensor, fx, nn


class Select(fx.GraphModule):
    """The type of what :func:`select` makes, for type checkers: of no module is it the class."""

    index: Tensor


def select(index: Sequence[int] | Tensor, dim: int = 1) -> Select:
    """``x.index_select(dim, index)``: keeps some features, in the order of ``index``.

    It is of torch alone, a :class:`torch.fx.GraphModule`, so that a cut network which is pickled
    can be unpickled without this package.

    Arguments:
        index: positions of the kept features; a buffer, saved with the weights.
        dim: the axis of the features: 1 in front of a convolution, -1 in front of a linear layer.

    Example:
        >>> select([0, 2])(torch.tensor([[5.0, 6.0, 7.0]]))
        tensor([[5., 7.]])
    """
    root = nn.Module()
    root.register_buffer("index", torch.as_tensor(index, dtype=torch.long).clone())
    graph = fx.Graph()
    x, chosen = graph.placeholder("x"), graph.get_attr("index")
    graph.output(graph.call_method("index_select", (x, dim, chosen)))
    return cast(Select, fx.GraphModule(root, graph, "Select"))


def is_select(module: nn.Module | None) -> TypeGuard[Select]:
    """True of a module that does what :func:`select` makes, an unpickled one too."""
    if not isinstance(module, fx.GraphModule):
        return False
    steps = [(node.op, node.target) for node in module.graph.nodes]
    return steps[1:] == [
        ("get_attr", "index"), ("call_method", "index_select"), ("output", "output")
    ]  # fmt: skip


def selected_dim(module: Select) -> int:
    """The axis of the features of what :func:`select` made."""
    dim = [*module.graph.nodes][2].args[1]
    assert isinstance(dim, int)
    return dim
