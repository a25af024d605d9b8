"""Attention as it is written out in a forward: heads apart, attending, and side by side again.

Whole heads can be cut where the forward counts them itself, ``view(*shape, -1, size)``; with their
number written into it, ``view(*shape, heads, size)``, they stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Size, Tensor, nn
from torch.fx import Node
from torch.nn import functional as F

from .ports import Link, Passing, Port, straight

__all__ = ["attend", "heads_apart", "heads_joined", "reshaped"]


def _sizes(node: Node, ports: Mapping[Node, Port]) -> tuple[Node, list[object]] | None:
    """What a reshaping call reads, and the sizes that it is given."""
    called = node.op == "call_method" and node.target in ("view", "reshape")
    called |= node.target is torch.reshape
    first = node.args[0] if node.args else None
    if not called or not isinstance(first, Node) or first not in ports or len(node.args) < 2:
        return None
    sizes = node.args[1:] if len(node.args) > 2 else node.args[1]
    return (first, [*sizes]) if isinstance(sizes, tuple | list) else None


def heads_apart(
    node: Node, module: nn.Module | None, ports: Mapping[Node, Port], shape: Size
) -> Passing | None:
    """``(B, T, units) -> (B, T, heads, size)``: a head is made of all of its units, and needs
    them."""
    found = _sizes(node, ports)
    if found is None or len(shape) != 4 or found[1][2] != -1:
        return None
    source, port = found[0], ports[found[0]]
    if port.axis != 2 or port.shape[:2] != shape[:2] or len(port.shape) != 3:
        return None
    of = torch.arange(port.size)
    size = shape[3]

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        each = values[source].unflatten(0, (-1, size))
        return torch.where((each == each[:, :1]).all(1), each[:, 0], math.nan)

    return Passing(2, [Link(source, of, of // size)], constants)


def heads_joined(
    node: Node, module: nn.Module | None, ports: Mapping[Node, Port], shape: Size
) -> Passing | None:
    """``(B, T, heads, size) -> (B, T, units)``."""
    found = _sizes(node, ports)
    if found is None or len(shape) != 3 or found[1][2] != -1:
        return None
    source, port = found[0], ports[found[0]]
    if port.axis != 2 or port.shape[:2] != shape[:2] or len(port.shape) != 4:
        return None
    into = torch.arange(shape[2])
    of = into // port.shape[3]
    return Passing(2, [Link(source, of, into)], lambda values: values[source][of])


def reshaped(
    node: Node, module: nn.Module | None, ports: Mapping[Node, Port], shape: Size
) -> Passing | None:
    """To the shape that it has, with the features counted."""
    found = _sizes(node, ports)
    if found is None or ports[found[0]].shape != shape or found[1][ports[found[0]].axis] != -1:
        return None
    source, port = found[0], ports[found[0]]
    return Passing(port.axis, [straight(source, port)], lambda values: values[source])


def attend(
    node: Node, module: nn.Module | None, ports: Mapping[Node, Port], shape: Size
) -> Passing | None:
    """Heads that attend ``(B, heads, T, size)``, each by its own queries and keys; the same mask
    goes for all of them."""
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
