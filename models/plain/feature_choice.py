"""The one step that a cut network may have and torch has no module for: features by their index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn


class Select(fx.GraphModule):
    """The type of what :func:`select` makes, for type checkers: of no module is it the class."""

    index: Tensor


def select(index: Sequence[int] | Tensor, dim: int = 1, zeros: bool = False) -> Select:
    """``x.index_select(dim, index)``: keeps some features, in the order of ``index``.

    It is of torch alone, a :class:`torch.fx.GraphModule`, so that a cut network which is pickled
    can be unpickled without this package.

    Arguments:
        index: positions of the kept features; a buffer, saved with the weights.
        dim: the axis of the features: 1 in front of a convolution, -1 in front of a linear layer.
        zeros: the position behind the last feature is a zero; ``dim`` counts from the end.

    Example:
        >>> select([0, 2])(torch.tensor([[5.0, 6.0, 7.0]]))
        tensor([[5., 7.]])
        >>> select([0, 2, 1], -1, zeros=True)(torch.tensor([[5.0, 7.0]]))
        tensor([[5., 0., 7.]])
    """
    root = nn.Module()
    root.register_buffer("index", torch.as_tensor(index, dtype=torch.long).clone())
    graph = fx.Graph()
    x = graph.placeholder("x")
    if zeros:
        x = graph.call_function(F.pad, (x, [*[0] * (-2 * dim - 1), 1]))
    chosen = graph.get_attr("index")
    graph.output(graph.call_method("index_select", (x, dim, chosen)))
    return cast(Select, fx.GraphModule(root, graph, "Select"))


def is_select(module: nn.Module | None) -> TypeGuard[Select]:
    """True of a module that does what :func:`select` makes, an unpickled one too."""
    if not isinstance(module, fx.GraphModule):
        return False
    steps = [node.target for node in module.graph.nodes if node.target is not F.pad]
    return steps[1:] == ["index", "index_select", "output"]


def fills_zeros(module: Select) -> bool:
    """True if it makes features that are zero."""
    return any(node.target is F.pad for node in module.graph.nodes)


def selected_dim(module: Select) -> int:
    """The axis of the features of what :func:`select` made."""
    dim = [*module.graph.nodes][-2].args[1]
    assert isinstance(dim, int)
    return dim
