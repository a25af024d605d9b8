"""Effects of one step of a network to features, for the steps that keep features apart.

A feature is one index along the axis of units or channels. A step *passes* features when every
feature of its result depends on one feature of each tensor it reads, and on nothing else: ReLU,
batch normalisation in evaluation mode, a residual sum, flattening. Steps of which there are many,
or that say more than an answer can, are listed here; all others, such as pooling, are asked
(:mod:`.asking`), and what passes none counts as reading all it gets.

Constants are vectors with one number for each feature, NaN where the feature is not constant.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from ...models.plain import CONVS, NORMS
from ...models.unpacked import Cell, Heads
from .heads import attend, heads_apart, heads_joined, of_each_head, reshaped
from .operations import (
    DROPOUTS,
    IDENTITY_MODULES,
    POINTWISE_FUNCTIONS,
    POINTWISE_METHODS,
    POINTWISE_MODULES,
    PRODUCTS,
    is_depthwise,
    pads_zeros,
)
from .ports import Call, Link, Passing, straight


def passing(call: Call) -> Passing | None:
    """How a step passes features; ``None`` if it is not known to."""
    if (found := attend(call)) is not None:
        return found
    if any(isinstance(v, Node) for v in call.node.kwargs.values()):
        return None
    for rule in (
        *(_pointwise, _norm, _depthwise, _flatten, _cat, _group_norm, _lookup, _heads, _part),
        *(_transpose, heads_apart, heads_joined, reshaped, of_each_head),
    ):
        if (found := rule(call)) is not None:
            return found
    return None


def _pointwise(call: Call) -> Passing | None:
    node, module, ports, shape = call
    identity = type(module) in IDENTITY_MODULES or node.target in DROPOUTS
    if module is not None:
        known = identity or type(module) in POINTWISE_MODULES
        known &= not (isinstance(module, nn.PReLU) and module.num_parameters > 1)
    elif node.op == "call_method":
        known = str(node.target).removesuffix("_") in POINTWISE_METHODS
    else:
        known = node.target in POINTWISE_FUNCTIONS or (
            identity and node.kwargs.get("training") is False and len(node.args) == 1
        )
    inputs = node.all_input_nodes
    if not known or not inputs or any(n not in ports for n in inputs):
        return None
    first = ports[inputs[0]]
    for port in (ports[n] for n in inputs):
        if (port.axis, port.size, len(port.shape)) != (first.axis, first.size, len(shape)):
            return None
    if shape[first.axis] != first.size:
        return None

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        if identity:
            return values[inputs[0]]
        args: Any = map_arg(node.args, lambda n: values[n].clone())
        if module is not None:
            out = copy.deepcopy(module).cpu().double()(*args)
        elif node.op == "call_method":
            out = getattr(args[0], str(node.target))(*args[1:], **node.kwargs)
        else:
            assert callable(node.target)
            out = node.target(*args, **node.kwargs)
        unknown = torch.stack([values[n].isnan() for n in inputs]).any(0)
        if node.target in PRODUCTS:  # zero, whatever the other is, as behind a gate
            zero = torch.stack([values[n] == 0 for n in inputs]).any(0)
            out, unknown = out.masked_fill(zero, 0.0), unknown & ~zero
        return out.masked_fill(unknown, math.nan)

    return Passing(first.axis, [straight(n, ports[n]) for n in inputs], constants)


def _norm(call: Call) -> Passing | None:
    module, source = call.module, call.only
    if type(module) not in NORMS or source is None or call.ports[source].axis != 1:
        return None
    assert isinstance(module, NORMS)
    link = straight(source, call.ports[source])
    if module.running_mean is None or module.running_var is None:
        # It uses the statistics of the batch: channels stay apart, but nothing is known to stay.
        return Passing(1, [link], lambda values: torch.full_like(values[source], math.nan))
    mean, variance = _double(module.running_mean), _double(module.running_var)
    scale = (variance + module.eps).rsqrt()
    shift = torch.zeros_like(scale)
    if module.affine:
        scale, shift = scale * _double(module.weight), _double(module.bias)

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        return torch.where(scale == 0, shift, (values[source] - mean) * scale + shift)

    return Passing(1, [link], constants, uses=scale != 0)


def _group_norm(call: Call) -> Passing | None:
    """Normalisation over groups of channels: those of a group are made of each other, and go
    together."""
    module, source = call.module, call.only
    if type(module) is not nn.GroupNorm or source is None or call.ports[source].axis != 1:
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


def _depthwise(call: Call) -> Passing | None:
    module, source = call.module, call.only
    if module is None or not is_depthwise(module) or source is None:
        return None
    if call.ports[source].axis != 1:
        return None
    assert isinstance(module, CONVS)
    weight = _double(module.weight).flatten(1)
    bias = weight.new_zeros(len(weight)) if module.bias is None else _double(module.bias)
    uses = (weight != 0).any(1)
    padded = pads_zeros(module)

    def constants(values: Mapping[Node, Tensor]) -> Tensor:
        value = values[source]
        if padded:
            value = value.masked_fill(value != 0, math.nan)
        return torch.where(uses, weight.sum(1) * value + bias, bias)

    return Passing(1, [straight(source, call.ports[source])], constants, uses)


def _flatten(call: Call) -> Passing | None:
    """``(B, ...) -> (B, units)``: a channel becomes a block of units."""
    node, module, ports, shape = call
    called = node.op == "call_method" and node.target in ("view", "reshape", "flatten")
    called |= node.target in (torch.flatten, torch.reshape) or type(module) is nn.Flatten
    first = node.args[0] if node.args else None
    if not called or not isinstance(first, Node) or first not in ports or len(shape) != 2:
        return None
    port = ports[first]
    if port.shape[0] != shape[0] or len(port.shape) < 2 or port.shape.numel() != shape.numel():
        return None
    rigid = False
    if node.target in ("view", "reshape", torch.reshape):
        sizes = node.args[1:] if len(node.args) > 2 else node.args[1]
        if not isinstance(sizes, (tuple, list)) or len(sizes) != 2 or not isinstance(sizes[1], int):
            return None
        rigid = sizes[1] != -1
    each = torch.arange(port.size).view(-1, *[1] * (len(port.shape) - 1 - port.axis))
    of = each.expand(port.shape[1:]).reshape(-1)
    link = Link(first, of, torch.arange(len(of)))
    return Passing(1, [link], lambda values: values[first][of], rigid=rigid)


def _cat(call: Call) -> Passing | None:
    """A concatenation along the features."""
    node, _, ports, shape = call
    if node.target not in (torch.cat, torch.concat) or not isinstance(node.args[0], (list, tuple)):
        return None
    parts = [n for n in node.args[0] if isinstance(n, Node) and n in ports]
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if len(parts) != len(node.args[0]) or not isinstance(dim, int):
        return None
    axis = dim % len(shape)
    if axis == 0 or any(ports[n].axis != axis for n in parts):
        return None
    links, start = [], 0
    for part in parts:
        every = torch.arange(ports[part].size)
        links.append(Link(part, every, every + start))
        start += len(every)
    return Passing(axis, links, lambda values: torch.cat([values[n] for n in parts]))


def _lookup(call: Call) -> Passing | None:
    """Features of ids, which no feature comes before."""
    module = call.module
    if type(module) is not nn.Embedding or len(call.node.all_input_nodes) != 1:
        return None
    weight = _double(module.weight)
    value = torch.where((weight == weight[:1]).all(0), weight[0], math.nan)
    return Passing(len(call.shape) - 1, [], lambda values: value)


def _heads(call: Call) -> Passing | None:
    """Attention: a feature is that of the values, at other positions. Which positions, all queries
    and keys of its head say. A constant is one at every position."""
    node, module, ports, _ = call
    parts = [n for n in node.args[:3] if isinstance(n, Node) and n in ports]
    if not isinstance(module, Heads) or len(parts) != 3 or len(node.args) < 3:
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


def _part(call: Call) -> Passing | None:
    """One of the things that a recurrent cell gives: its units at all steps, or at the last."""
    node, _, ports, shape = call
    source = call.only
    if node.target is not operator.getitem or source is None or not isinstance(node.args[1], int):
        return None
    root: Any = node.graph.owning_module
    of = root.get_submodule(str(source.target)) if source.op == "call_module" else None
    if not isinstance(of, Cell) or shape[-1] != ports[source].size:
        return None
    link = straight(source, ports[source])
    return Passing(len(shape) - 1, [link], lambda values: values[source])


def _transpose(call: Call) -> Passing | None:
    """Two axes that change places."""
    source, dims = call.only, call.node.args[1:]
    if not call.is_of("transpose", torch.transpose) or source is None or len(dims) != 2:
        return None
    port = call.ports[source]
    one, other = (int(d) % len(call.shape) for d in dims if isinstance(d, int))
    axis = {one: other, other: one}.get(port.axis, port.axis)
    if axis == 0:
        return None
    return Passing(axis, [straight(source, port)], lambda values: values[source])


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
