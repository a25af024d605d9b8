"""Effects of one step of a network to features, for the steps that keep features apart.

A feature is one index along the axis of units or channels. A step *passes* features when every
feature of its result depends on one feature of each tensor it reads, and on nothing else: ReLU,
batch normalisation in evaluation mode, a residual sum, flattening. Steps that say more than an
answer can are listed here; all others are asked (:mod:`.asking`), and what passes none counts as
reading all it gets.

Constants are vectors with one number for each feature, NaN where the feature is not constant.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Node

from ...models.plain import NORMS, PaddedLayerNorm
from ...models.unpacked import Cell, Heads
from .ports import RESHAPES, Call, Link, Passing, straight


def passing(call: Call) -> Passing | None:
    """How a step passes features; ``None`` if it is not known to."""
    if any(isinstance(v, Node) for v in call.node.kwargs.values()):
        return None
    rule = _RULES.get(call.node.target if call.module is None else type(call.module))
    return None if rule is None else rule(call)


def _group_norm(call: Call) -> Passing | None:
    """Normalisation over groups of channels: those of a group are made of each other, and go
    together."""
    module, source = call.module, call.only
    assert isinstance(module, nn.GroupNorm)
    if source is None or call.ports[source].axis != 1:
        return None
    every = torch.arange(module.num_channels).unflatten(0, (module.num_groups, -1))
    each = every.shape[1]
    links = [Link(source, every.roll(k, 1).flatten(), every.flatten()) for k in range(each)]
    alone = copy.deepcopy(module).cpu().double()
    uses = None if module.weight is None else _double(module.weight) != 0

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        value = values[source]
        unknown = value.isnan().unflatten(0, (-1, each)).any(1).repeat_interleave(each)
        if uses is not None:
            unknown &= uses
        out: Tensor = alone(value.nan_to_num(0.0)[None, :, None].expand(-1, -1, 2))[0, :, 0]
        return out.detach().masked_fill(unknown, math.nan)

    return Passing(1, links, constants, uses)


def _norm(call: Call) -> Passing | None:
    """Normalisation over all features: those that are zero, and not read, are in none of the
    others."""
    module: Any = call.module
    source = call.only
    last = len(call.shape) - 1
    if source is None or call.ports[source].axis != last or len(module.normalized_shape) > 1:
        return None
    every, weight = torch.ones(call.shape[-1]).bool(), module.weight
    centred = isinstance(module, nn.LayerNorm)
    if weight is None and not centred:  # which would need one
        return None
    uses = every if weight is None else _double(weight) != 0
    bias = getattr(module, "bias", None)
    shift = torch.zeros(len(every)).double() if bias is None else _double(bias)
    alone = copy.deepcopy(module).cpu().double()

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        if not values[source].isnan().any():
            return cast(Tensor, alone(values[source])).detach()
        varies = uses if centred else uses & (values[source] != 0)
        return shift.masked_fill(varies, math.nan)

    return Passing(last, [straight(source, call.ports[source])], constants, uses, whole=source)


def _lookup(call: Call) -> Passing | None:
    """Features of ids, which no feature comes before."""
    module = call.module
    assert isinstance(module, nn.Embedding)
    if len(call.node.all_input_nodes) != 1:
        return None
    weight = _double(module.weight)
    value = torch.where((weight == weight[:1]).all(0), weight[0], math.nan)
    return Passing(len(call.shape) - 1, [], lambda values: value)


def _heads(call: Call) -> Passing | None:
    """Attention: a feature is that of the values, at other positions. Which positions, all queries
    and keys of its head say. A constant is one at every position."""
    node, module, ports = call.node, call.module, call.ports
    parts = [n for n in node.args[:3] if isinstance(n, Node) and n in ports]
    assert isinstance(module, Heads)
    if len(parts) != 3:
        return None
    if any(ports[n].axis != 2 or len(ports[n].shape) != 3 for n in parts):
        return None
    query, key, value = parts
    of, into = [], []
    first = start = 0
    for wide, size in zip(module.query_sizes, module.value_sizes, strict=True):
        pairs = torch.cartesian_prod(
            torch.arange(first, first + wide), torch.arange(start, start + size)
        )
        of.append(pairs[:, 0])
        into.append(pairs[:, 1])
        first, start = first + wide, start + size
    mixed = [Link(n, torch.cat(of), torch.cat(into)) for n in (query, key)]
    return Passing(
        2,
        [straight(value, ports[value])],
        lambda values: values[value],
        mixed=mixed,
        ties=[(key, straight(query, ports[query]))],
    )


def _heads_apart(call: Call) -> Passing | None:
    """``(B, T, units) -> (B, T, ..., heads, size)``: a head is made of all of its units, and needs
    them; of queries, keys and values, if they are side by side. With their number written into it,
    whole heads can be cut where the forward is traced by symbols."""
    node, shape = call.node, call.shape
    first = node.args[0] if node.args else None
    if not isinstance(first, Node) or first not in call.ports or len(node.args) < 2:
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


def _part(call: Call) -> Passing | None:
    """One of the things that a recurrent cell gives: its units at all steps, or at the last."""
    node, ports, shape = call.node, call.ports, call.shape
    source = call.only
    if source is None or not isinstance(node.args[1], int):
        return None
    root: Any = node.graph.owning_module
    of = root.get_submodule(str(source.target)) if source.op == "call_module" else None
    if not isinstance(of, Cell) or shape[-1] != ports[source].size:
        return None
    link = straight(source, ports[source])
    return Passing(len(shape) - 1, [link], lambda values: values[source])


_RULES: dict[Any, Callable[[Call], Passing | None]] = {
    **{nn.GroupNorm: _group_norm, nn.Embedding: _lookup, Heads: _heads},
    **dict.fromkeys((*NORMS, PaddedLayerNorm), _norm),
    **dict.fromkeys(RESHAPES, _heads_apart),
    operator.getitem: _part,
}
"""By the class of the module, or by what is called."""


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
