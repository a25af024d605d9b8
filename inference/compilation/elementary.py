"""Operations in other words, which compute the same in less time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten


def log1p(x: Tensor) -> Tensor:
    """``log(1 + x)`` of any shape, to about one unit in the last place.

    With u the rounded sum and r = x - (u - 1) what was rounded away, which is exact, this is
    log(u + r) = log u + r / u, but for the square of a rounding. ``torch.log1p`` is as exact, and
    takes up to four times as long (docs/speed.md).

    References:
        ``gsl_log1p`` of the GNU Scientific Library; Goldberg 1991, "What every computer scientist
        should know about floating-point arithmetic", theorem 4, for the same as a product.
    """
    if not x.is_floating_point():
        return torch.log1p(x.to(torch.get_default_dtype()))
    one = 1.0 + x
    rounded = one - 1.0
    return one.log() - torch.where(rounded == x, 0.0, (rounded - x) / one)


def _log1p_(x: Tensor) -> Tensor:
    return x.copy_(log1p(x))


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta x)) / beta``, and ``x`` above the threshold, as torch has it."""
    scaled = beta * x
    return torch.where(scaled > threshold, x, log1p(scaled.exp()) / beta)


def _gather(x: Tensor, dim: int, index: Tensor, **options: Any) -> Any:
    """``torch.gather`` of one entry of each row, as a sum, which fuses with what surrounds it.

    An index of no entry, of which torch's raises an error, gives NaN.
    """
    if not _takes_one(x, dim, index):
        return NotImplemented
    picked = torch.where(_is_at(x, dim, index), x, 0.0).sum(dim, keepdim=True)
    return torch.where((index >= 0) & (index < x.shape[dim]), picked, float("nan"))


def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """``torch.scatter_add`` of one entry to each row."""
    if not _takes_one(x, dim, index) or src.shape != index.shape:
        return NotImplemented
    return x + torch.where(_is_at(x, dim, index), src, 0.0)


def _addmm(bias: Tensor, one: Tensor, other: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """A vector beside a small product, where its addition is a part of what follows.

    Of a large one the library adds sooner than a loop of its own.
    """
    numbers = one.shape[0] * other.shape[1]
    # Of fewer digits the library rounds once, after the addition.
    exact = one.device.type == "cpu" and one.dtype in (torch.float32, torch.float64)
    if not exact or bias.dim() != 1 or numbers > FEW or (beta, alpha) != (1, 1):
        return NotImplemented
    # A dimension in between, for the compiler joins a product and what is right behind it.
    return (torch.mm(one, other)[None] + bias)[0]


def _takes_one(x: Tensor, dim: int, index: Tensor) -> bool:
    rest = [*x.shape] or [0]
    rest[dim] = 1
    # Contiguous, for a recorded view may need the strides that torch's operation gives.
    return x.is_floating_point() and x.is_contiguous() and [*index.shape] == rest


def _is_at(x: Tensor, dim: int, index: Tensor) -> Tensor:
    places = torch.arange(x.shape[dim], device=x.device)
    return places.view([-1 if i == dim % x.dim() else 1 for i in range(x.dim())]) == index


FEW = 4096
"""Numbers of a product above which its bias is better left to the library."""

FUSED: dict[Any, Any] = {
    aten.log1p.default: log1p,
    aten.softplus.default: softplus,
    aten.gather.default: _gather,
    aten.scatter_add.default: _scatter_add,
    aten.addmm.default: _addmm,
}
"""For a compiler, which makes one loop of each; ``NotImplemented`` leaves the operation."""

LARGE: dict[Any, Any] = {
    aten.log1p.default: log1p,
    aten.log1p_.default: _log1p_,
    aten.softplus.default: softplus,
}
"""For graphs that run as they are, of tensors so large that operations cost more than calls."""


LANES = 16
"""Numbers that a processor's widest registers take."""


def upright(graph: fx.GraphModule) -> None:
    """Find products of few columns with rows and columns exchanged, in place.

    A compiler's loops run along what lies next to each other: here the rows of a batch.

    Arguments:
        graph: functional, with ``meta["val"]`` in every node. Only a compiler that follows indices,
            not strides, may take it: views that are recorded in it expect the old strides.
    """
    for node in list(graph.graph.nodes):
        added = node.target is aten.addmm.default
        if not (added or node.target is aten.mm.default) or node.kwargs:
            continue
        rows, columns = node.meta["val"].shape
        if not (columns < LANES and columns < rows and node.meta["val"].device.type == "cpu"):
            continue
        one, other = node.args[-2:]
        with graph.graph.inserting_before(node):
            turned = [_call(graph, aten.permute.default, t, [1, 0]) for t in (other, one)]
            new = _call(graph, aten.permute.default, _call(graph, aten.mm.default, *turned), [1, 0])
            if added:
                new = _call(graph, aten.add.Tensor, new, node.args[0])
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
    graph.recompile()


def _call(graph: fx.GraphModule, target: Any, *args: Any) -> fx.Node:
    node = graph.graph.call_function(target, args)
    node.meta["val"] = target(*fx.node.map_arg(args, lambda n: n.meta["val"]))
    return node
