"""Attention as it is written out in a forward: heads apart, attending, and side by side again.

Whole heads can be cut where the forward counts them itself, ``view(*shape, -1, size)``; with their
number written into it, ``view(*shape, heads, size)``, where it can be traced by symbols.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.nn import functional as F

from .ports import Call, Link, Passing, straight

_PRODUCTS = {torch.matmul, operator.matmul, "matmul"}
_ADDED = {operator.add, operator.iadd, torch.add, "add", "masked_fill"}


def heads_apart(call: Call) -> Passing | None:
    """``(B, T, units) -> (B, T, ..., heads, size)``: a head is made of all of its units, and needs
    them; of queries, keys and values, if they are side by side."""
    node, shape = call.node, call.shape
    first = node.args[0] if node.args else None
    called = call.is_of("view", torch.reshape) or call.is_of("reshape")
    if not called or not isinstance(first, Node) or first not in call.ports or len(node.args) < 2:
        return None
    sizes, port = node.args[1:] if len(node.args) > 2 else node.args[1], call.ports[first]
    if not isinstance(sizes, tuple | list) or len(sizes) != len(shape) or len(shape) < 4:
        return None
    if (port.axis, len(port.shape)) != (2, 3) or port.shape[:2] != shape[:2]:
        return None
    axis = len(shape) - 2
    into = torch.arange(shape[axis])[:, None].expand(shape[2:]).flatten()

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        each = values[first].view(shape[2:]).movedim(-2, 0).flatten(1)
        return torch.where((each == each[:, :1]).all(1), each[:, 0], math.nan)

    link = Link(first, torch.arange(port.size), into)
    return Passing(axis, [link], constants, rigid=sizes[axis] != -1)


def attend(call: Call) -> Passing | None:
    """Heads that attend ``(B, heads, T, size)``, each by its own queries and keys; the same mask
    goes for all of them."""
    node, ports = call.node, call.ports
    if node.target is not F.scaled_dot_product_attention:
        return None
    named = {name: node.kwargs[name] for name in ("query", "key", "value") if name in node.kwargs}
    parts = [*node.args[:3], *named.values()]
    mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
    if len(parts) != 3 or not all(isinstance(part, Node) and part in ports for part in parts):
        return None
    query, key, value = (part for part in parts if isinstance(part, Node))
    size = ports[value].size
    if any((ports[n].axis, ports[n].size, len(ports[n].shape)) != (1, size, 4) for n in
           (query, key, value)):  # fmt: skip
        return None
    if mask is not None:
        seen = ports[mask].shape if isinstance(mask, Node) and mask in ports else None
        if seen is None or (len(seen) > 2 and seen[-3] != 1):
            return None
    return Passing(
        1,
        [straight(n, ports[n]) for n in (query, key, value)],
        lambda values: values[value].masked_fill(values[value] != 0, math.nan),
    )


def of_each_head(call: Call) -> Passing | None:
    """Attention in single steps on ``(B, heads, ., .)``: products of two, a mask that is the same
    for all heads, a softmax of each."""
    node, ports, shape = call.node, call.ports, call.shape
    parts = node.all_input_nodes
    if len(shape) != 4 or not parts or any(n not in ports or ports[n].axis != 1 for n in parts):
        return None
    heads = [n for n in parts if ports[n].size == shape[1] and len(ports[n].shape) == 4]
    masks = [n for n in parts if n not in heads]
    product = node.target in _PRODUCTS and len(heads) == 2
    one_mask = len(masks) == 1 and len(ports[masks[0]].shape) == 4 and ports[masks[0]].size == 1
    added = node.target in _ADDED and len(heads) == 1 and one_mask
    if not product and not added and not (_is_softmax(call) and len(heads) == 1):
        return None
    every = torch.arange(shape[1])
    mixed = [Link(n, torch.zeros_like(every), every) for n in masks]

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        zero = torch.stack([values[n] == 0 for n in heads]).any(0) & bool(product)
        return torch.where(zero, 0.0, math.nan).double()

    links = [straight(n, ports[n]) for n in heads]
    return Passing(1, links, constants, mixed=mixed)


def _is_softmax(call: Call) -> bool:
    """True for one over the last axis, which is that of positions."""
    node, module = call.node, call.module
    if module is not None:
        return isinstance(module, nn.Softmax) and module.dim in (-1, 3)
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    return call.is_of("softmax", F.softmax, torch.softmax) and dim in (-1, 3)
