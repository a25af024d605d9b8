"""A graph that is run as it is, without a compiler: the same operations with less Python."""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from .elementary import LARGE
from .trace import root, written

aten = torch.ops.aten

LEAST = 2048
"""Numbers of a tensor from which on an operation is faster in several others."""


def lean(graph: fx.GraphModule, changed: Collection[int]) -> fx.GraphModule:
    """The graph of :func:`~pyroccam.inference.compilation.trace.joint_graph`, for running without a
    compiler.

    Operations become functions of torch's Python interface, which parse their arguments faster than
    operators called by schema; views are taken once; state, not a copy of it, is changed in place.

    Arguments:
        graph: changed in place and returned.
        changed: positions of the inputs of which the graph changes a copy, its first.
    """
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    copied = {inputs[i] for i in changed}
    kept = {root(n) for node in graph.graph.nodes for n in written(node)}  # copies of constants
    known: dict[Any, fx.Node] = {}
    for node in list(graph.graph.nodes):
        source: Any = node.args[0] if node.args else None
        if node.target is aten.clone.default and source in copied:
            copied.remove(source)
            if node in kept:
                kept.add(source)
            _drop(graph, node, source)
        elif (
            _is_its_input(node)
            and node not in kept
            and not (node.target is aten.pow.Tensor_Scalar and root(source) in kept)
        ):
            _drop(graph, node, source)
        elif node.target is aten.t.default and getattr(source, "target", None) is aten.t.default:
            _drop(graph, node, source.args[0])
        elif node.target in _VIEWS:
            same = known.setdefault((node.target, str(node.args)), node)
            if same is not node:
                _drop(graph, node, same)
    graph.graph.eliminate_dead_code(is_impure_node=_changes)
    for node in graph.graph.nodes:
        if node.target is aten.pow.Tensor_Scalar and node.args[1] == 2 and _agree(node, "dtype"):
            node.target, node.args = torch.mul, (node.args[0], node.args[0])
        elif node.target is aten.slice.Tensor and len(node.args) == 4 and node.args[1] == 0:
            source, _, start, stop = node.args
            node.target = operator.getitem
            node.args = (source, slice(start, None if stop >= sys.maxsize else stop))
        elif node.target in LARGE and _size(node) >= LEAST:
            node.target = LARGE[node.target]
        elif not node.kwargs or node.target in _KEYWORDS:
            node.target = _python(node.target)
    _lay_down_numbers(graph)
    graph.recompile()
    return graph


def _lay_down_numbers(graph: fx.GraphModule) -> None:
    """Make tensors of numbers beside tensors, once for all calls: torch makes one at each, which
    takes longer than a small operation does. On a CPU, and where the tensor keeps all digits that
    the operation would."""
    known: dict[tuple[float, torch.dtype], fx.Node] = {}
    first = next(iter(graph.graph.nodes))
    for node in list(graph.graph.nodes):
        if node.target not in _BESIDE_NUMBERS or len(node.args) != 2:
            continue
        source, number = node.args
        dtype = source.meta["val"].dtype
        exact = dtype in (torch.float32, torch.float64) and _agree(node, "dtype")
        if not isinstance(number, int | float) or not exact or not _size(node):
            continue
        if (number, dtype) not in known:
            name = f"number_{len(known)}"
            graph.register_buffer(name, torch.tensor(number, dtype=dtype))
            with graph.graph.inserting_before(first):
                known[number, dtype] = graph.graph.get_attr(name)
        node.args = source, known[number, dtype]


def _is_its_input(node: fx.Node) -> bool:
    """True also of a view of the same shape and of a power of one, as a derived square has it."""
    if node.target in _RESHAPES:
        return _agree(node, "shape")
    if node.target is aten.pow.Tensor_Scalar:
        return bool(node.args[1] == 1) and _agree(node, "dtype")
    return node.target in _NOTHING


def _agree(node: fx.Node, what: str) -> bool:
    """True if a node and its input are known to have the same shape, or dtype."""
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes[:1])]
    return all(hasattr(one, what) for one in values) and bool(
        getattr(values[0], what) == getattr(values[-1], what)
    )


def _size(node: fx.Node) -> int:
    """Numbers of a tensor on a CPU."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.numel()
    return 0


def _drop(graph: fx.GraphModule, node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    graph.graph.erase_node(node)


def _changes(node: fx.Node) -> bool:
    """True if a node matters though nothing uses what it returns."""
    if node.op in ("placeholder", "output"):
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable or "batch_norm" in schema.name)


_NOTHING = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}

_RESHAPES = {aten.view.default, aten.expand.default}

_VIEWS = {
    aten.t.default,
    aten.transpose.int,
    aten.view.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.permute.default,
}

_KEYWORDS = {aten.var_mean.correction, aten.add.Tensor, aten.add_.Tensor, aten.clone.default}

_FUNCTIONS = {
    *("abs", "add", "addmm", "bmm", "cat", "clone", "convolution", "div", "exp", "log", "log1p"),
    *("mean", "mm", "mul", "native_batch_norm", "neg", "permute", "pow", "reciprocal", "relu"),
    *("rsqrt", "sigmoid", "sqrt", "square", "squeeze", "sub", "sum", "t", "tanh", "transpose"),
    *("unsqueeze", "var_mean", "where"),
}

_METHODS = {"add_", "expand", "log1p_", "mul_", "reciprocal_", "sub_", "view"}


_BESIDE_NUMBERS = {
    *(torch.add, torch.div, torch.mul, torch.sub),
    *(torch.Tensor.add_, torch.Tensor.mul_, torch.Tensor.sub_),
}

# Their alpha, which the interface does not take.
_POSITIONAL = {aten.add.Scalar, aten.sub.Scalar, aten.add_.Scalar, aten.sub_.Scalar}


def _python(operation: Any) -> Any:
    """The same operation in torch's Python interface, if it is there."""
    if not isinstance(operation, torch._ops.OpOverload) or operation in _POSITIONAL:
        return operation
    space, _, name = operation._schema.name.partition("::")
    if space != "aten" or name not in _FUNCTIONS | _METHODS:
        return operation
    return getattr(torch if name in _FUNCTIONS else torch.Tensor, name)
