"""Operations of a graph that are differentiated, mapped and fused better in another form."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten


def differentiable(graph: fx.GraphModule, normalisation: bool) -> fx.GraphModule:
    """The same graph with some operations written out.

    Batch normalisation then fuses with what surrounds it, and does not shuffle memory when it is
    mapped over replicates. Noise in a new tensor can differ between these.
    """
    graph = copy.deepcopy(graph)
    for node in graph.graph.nodes:
        if node.target is aten.batch_norm.default:
            node.target = _batch_norm if normalisation else node.target
        elif node.target is aten.dropout.default:
            _write_out_dropout(graph.graph, node)
        elif node.target in _NOISE and _unseen(node.args[0]):
            node.target = _NOISE[node.target]
    graph.recompile()
    return graph


def _unseen(node: fx.Node) -> bool:
    """True if a tensor, and what it is a view of, has no use but one."""
    if node.op in ("placeholder", "get_attr") or len(node.users) > 1:
        return False
    source = source_of(node)
    return source is None or _unseen(source)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """``aten::batch_norm`` in elementary operations, running statistics included."""
    shape = [1, -1] + [1] * (x.dim() - 2)
    if training or running_mean is None or running_var is None:
        count = x.numel() // x.shape[1]
        var, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        if running_mean is not None and running_var is not None:
            unbiased = count / max(count - 1, 1)
            running_mean.mul_(1 - momentum).add_(mean.detach(), alpha=momentum)
            running_var.mul_(1 - momentum).add_(var.detach(), alpha=momentum * unbiased)
    else:
        mean, var = running_mean, running_var
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    out = (x - mean.view(shape)) * scale.view(shape)
    return out if bias is None else out + bias.view(shape)


def _write_out_dropout(graph: fx.Graph, node: fx.Node) -> None:
    """Write out dropout: what it draws is an operation by itself."""
    x, p, train = node.args
    drawn: fx.Node | None = None
    if train and 0.0 < p < 1.0:  # type: ignore[operator]
        with graph.inserting_before(node):
            drawn = graph.call_function(aten.rand_like.default, (x,))
    node.target, node.args = _dropout, (x, p, train, drawn)


def _dropout(x: Tensor, p: float, train: bool, drawn: Tensor | None = None) -> Tensor:
    if drawn is not None:
        return x * (drawn >= p) / (1.0 - p)
    return x * 0.0 if train and p == 1.0 else x


def _normal_(t: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return torch.randn_like(t) * std + mean


def _uniform_(t: Tensor, start: float = 0.0, stop: float = 1.0) -> Tensor:
    return torch.rand_like(t) * (stop - start) + start


def _exponential_(t: Tensor, rate: float = 1.0) -> Tensor:
    # Never 0, of which a Gumbel variable takes the logarithm.
    drawn = -torch.log1p(-torch.rand_like(t)) / rate
    return drawn.clamp_min(torch.finfo(t.dtype).tiny)


def _bernoulli_(t: Tensor, p: float = 0.5) -> Tensor:
    return (torch.rand_like(t) < p).to(t.dtype)


# Of a tensor only its shape matters to these.
DRAWS: set[Any] = {
    aten.randn.default,
    aten.rand.default,
    aten.randn_like.default,
    aten.rand_like.default,
    _normal_,
    _uniform_,
    _exponential_,
    _bernoulli_,
}

_NOISE: dict[Any, Callable[..., Tensor]] = {
    aten.normal_.default: _normal_,
    aten.uniform_.default: _uniform_,
    aten.exponential_.default: _exponential_,
    aten.bernoulli_.float: _bernoulli_,
}


def source_of(node: fx.Node) -> fx.Node | None:
    """The node that ``node`` is a view of, if it is one."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if isinstance(node.target, torch._ops.OpOverload):
        returns = node.target._schema.returns
        return node.args[0] if returns and returns[0].alias_info is not None else None
    return node.args[0] if node.target is operator.getitem else None
