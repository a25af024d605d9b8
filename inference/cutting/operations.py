"""The operations of torch that are known to keep features apart, and those that write in place."""

from __future__ import annotations

import operator

import torch
from torch import nn
from torch.fx import Node
from torch.nn import functional as F

from ...models.plain import CONVS, TRANSPOSED, layer_kind

# Stateless, the same function on every entry. Random ones are the identity in evaluation mode.
IDENTITY_MODULES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
POINTWISE_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Hardshrink, nn.Softshrink),
)
POINTWISE_FUNCTIONS = {
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus),
    *(F.tanh, F.sigmoid, F.hardtanh, F.hardswish, F.hardsigmoid, F.logsigmoid, F.softsign),
    *(torch.relu, torch.relu_, torch.tanh, torch.sigmoid, torch.abs, torch.exp, torch.square),
    *(torch.sqrt, torch.neg, torch.clamp, torch.sin, torch.cos, torch.maximum, torch.minimum),
    *(torch.add, torch.sub, torch.mul, torch.div, torch.pow, operator.neg, operator.pow),
    *(operator.add, operator.sub, operator.mul, operator.truediv),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
}
POINTWISE_METHODS = {
    *("relu", "tanh", "sigmoid", "abs", "exp", "square", "sqrt", "neg", "clamp", "contiguous"),
    *("clone", "detach", "add", "sub", "mul", "div", "pow", "sin", "cos"),
}
PRODUCTS = {torch.mul, operator.mul, operator.imul, "mul", "mul_"}
DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d}


def is_depthwise(module: nn.Module) -> bool:
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
    padding = module.padding
    return padding != "valid" if isinstance(padding, str) else any(padding)


def overwritten(node: Node, module: nn.Module | None) -> set[Node]:
    """The steps whose values ``node`` changes behind the back of another reader.

    ``y = relu_(x)`` is harmless if nobody else reads ``x``, or anything ``x`` is a view of.
    Otherwise their later readers see other values than the graph says.
    """
    if not _in_place(node, module):
        return set()
    chain, waiting = set(), list(node.all_input_nodes)
    while waiting:
        step = waiting.pop()
        if step not in chain:
            chain.add(step)
            if not _fresh(step):
                waiting += step.all_input_nodes
    if all(len(step.users) == 1 for step in chain):
        return set()
    return chain


def _in_place(node: Node, module: nn.Module | None) -> bool:
    if module is not None:
        return bool(getattr(module, "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    named = name.endswith("_") and not name.endswith("__")
    named |= node.target in (operator.iadd, operator.isub, operator.imul, operator.itruediv)
    asked = bool(node.kwargs.get("inplace")) or "out" in node.kwargs
    return named or asked or any(arg is True for arg in node.args)


def _fresh(node: Node) -> bool:
    """True if its result certainly has memory of its own."""
    if node.op == "call_module":
        root = node.graph.owning_module
        module = None if root is None else root.get_submodule(str(node.target))
        views = (nn.Flatten, nn.Unflatten, *IDENTITY_MODULES)
        return module is not None and not isinstance(module, views) and not _in_place(node, module)
    if node.op != "call_function" or _in_place(node, None):
        return node.op == "placeholder"
    return node.target in POINTWISE_FUNCTIONS or "pool" in getattr(node.target, "__name__", "")
