"""Equal parts of a graph, each of them described once; and from when on it pays to compile them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from .fusion import source_of
from .trace import root, written

aten = torch.ops.aten

LEAST = 4
"""Parts, below which they are compiled one by one."""

SHORTEST = 8
"""Operations of a part, below which a call of it costs more than it saves."""


@dataclass
class Region:
    """Parts of a graph that do the same to different tensors.

    Attributes:
        parts: operations of each, in one order.
        sources: of each argument of each operation, an operation of the part (true) or an input.
        inputs: for each input what the parts get, one after the other.
        outputs: positions in a part of what is used elsewhere.
        slots: by position in a part, the tensors to which the parts write what they find there.
    """

    parts: list[list[fx.Node]]
    sources: list[tuple[bool, int]]
    inputs: list[tuple[fx.Node, ...]]
    outputs: list[int]
    slots: dict[int, tuple[fx.Node, ...]] = field(default_factory=dict)

    def given(self) -> list[tuple[fx.Node, ...]]:
        """The inputs, and the slots that are none of them."""
        return list(dict.fromkeys([*self.inputs, *self.slots.values()]))

    def graph(self) -> fx.GraphModule:
        """What a part does: a function of ``given`` that returns a tuple."""
        graph, left = fx.Graph(), iter(self.sources)
        given = {one: graph.placeholder(f"given_{i}") for i, one in enumerate(self.given())}
        inputs = [given[one] for one in self.inputs]
        own: list[fx.Node] = []

        def source(_: fx.Node) -> fx.Node:
            inside, i = next(left)
            return own[i] if inside else inputs[i]

        for node in self.parts[0]:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), source)
            own.append(graph.create_node("call_function", node.target, args, kwargs))
        for i, slots in self.slots.items():
            graph.call_function(aten.copy_.default, (given[slots], own[i]))
        graph.output(tuple(own[i] for i in self.outputs))
        return fx.GraphModule({}, graph)


def regions_of(graph: fx.GraphModule, without: Collection[fx.Node] = ()) -> list[Region]:
    """A graph of tensor operations, but for those that are done elsewhere, in parts, in an order in
    which they can be computed; equal ones in one region."""
    nodes = [n for n in _in_order(graph) if n not in without]
    codes: dict[Any, int] = {}
    signatures = np.array([codes.setdefault(_signature(n), len(codes)) for n in nodes])
    found: list[Region | None] = []
    done = 0
    for start, stop, period in repeats(signatures):
        first, count = _best_cut(nodes, start, stop, period)
        parts = [nodes[i : i + period] for i in range(first, first + count * period, period)]
        for chosen in (parts, parts[1:], parts[:-1]):  # the outermost may be connected otherwise
            if len(chosen) >= LEAST and (region := _region(chosen)) is not None:
                begin = first + period * (chosen[0] is not parts[0])
                found += [_region([nodes[done:begin]])] if begin > done else []
                found.append(region)
                done = begin + period * len(chosen)
                break
    found += [_region([nodes[done:]])] if done < len(nodes) else []
    regions = [region for region in found if region is not None]
    home = {n: (id(r), k) for r in regions for k, part in enumerate(r.parts) for n in part}
    # What changes a tensor has to see all that is a view of it.
    apart = any(home.get(n) != home.get(root(w)) for n in nodes for w in written(n))
    if not apart and len(regions) == len(found):
        return regions
    whole = _region([nodes])
    assert whole is not None, "only what is no tensor is returned"
    return [whole]


def _in_order(graph: fx.GraphModule) -> Iterator[fx.Node]:
    """Operations, those of inputs alone just before their first use and views just after that of
    which they are."""
    operations = [n for n in graph.graph.nodes if n.op == "call_function"]
    late: set[fx.Node] = set()
    for node in operations:
        of_inputs = all(
            a.op == "placeholder" or (a in late and is_view(a)) for a in node.all_input_nodes
        )
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if node.all_input_nodes and of_inputs and not random:
            late.add(node)
    done: set[fx.Node] = set()

    def emit(node: fx.Node) -> Iterator[fx.Node]:
        for source in node.all_input_nodes:
            if source in late and source not in done:
                yield from emit(source)
        if node in done:  # as a view of what was just emitted
            return
        done.add(node)
        yield node
        items = not isinstance(value_of(node), Tensor)  # which is not handed on as it is
        for user in node.users:
            if user not in done and is_view(user) and (items or user not in late):
                yield from emit(user)

    for node in [*(n for n in operations if n not in late), *operations]:
        if node not in done:
            yield from emit(node)


def is_view(node: fx.Node) -> bool:
    """True of a view of one tensor, or of an item of a tuple."""
    return len(node.all_input_nodes) == 1 and source_of(node) is not None and not written(node)


def value_of(node: fx.Node) -> Any:
    """An example of what a node gives."""
    if node.op == "get_attr":
        return getattr(node.graph.owning_module, str(node.target))
    return node.meta.get("val")


def _signature(node: fx.Node) -> Any:
    """What an operation does, and to tensors of which forms."""

    def code(a: Any) -> Any:
        if isinstance(a, fx.Node):
            return "node", _form(value_of(a))
        return tuple(map(code, a)) if isinstance(a, list | tuple) else repr(a)

    options = tuple((name, code(value)) for name, value in node.kwargs.items())
    return node.target, code(node.args), options, _form(value_of(node))


def _form(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return tuple(map(_form, value)) if isinstance(value, list | tuple) else None


def repeats(codes: np.ndarray) -> list[tuple[int, int, int]]:
    """Where a sequence ``(n,)`` repeats itself: ``(start, stop, period)``, from left to right.

    Of all stretches that hold :data:`LEAST` periods of at least :data:`SHORTEST`, the one with
    most that is said again is taken, then those before it and after it.
    """
    best = (0, 0, 0, 0)
    for period in range(SHORTEST, len(codes) // LEAST + 1):
        same = np.concatenate([[False], codes[:-period] == codes[period:], [False]])
        for start, stop in np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2):
            if (count := (stop - start) // period + 1) >= LEAST:
                best = max(
                    best, (int(count - 1) * period, -period, -int(start), int(stop) + period)
                )
    saved, period, start, stop = best[0], -best[1], -best[2], best[3]
    if not saved:
        return []
    after = [(stop + first, stop + last, p) for first, last, p in repeats(codes[stop:])]
    return [*repeats(codes[:start]), (start, stop, period), *after]


def _best_cut(nodes: list[fx.Node], start: int, stop: int, period: int) -> tuple[int, int]:
    """Where the first part begins, so that few numbers go from one to the next; and their count."""
    place = {n: i for i, n in enumerate(nodes)}

    def across(cut: int) -> float:
        total = 0.0
        for node in nodes[cut - period : cut]:
            if any(cut <= place.get(user, 0) < cut + period for user in node.users):
                value = value_of(node)
                # What is no tensor, as the pair of mean and variance, cannot be handed on.
                total += value.numel() if isinstance(value, Tensor) else float("inf")
        return total

    first = min(range(start, start + period), key=lambda first: across(first + period))
    return first, (stop - first) // period


def _region(parts: list[list[fx.Node]]) -> Region | None:
    """Parts as a region; ``None`` if they are not connected alike, or by what is no tensor."""
    places = [{n: i for i, n in enumerate(part)} for part in parts]
    inputs: dict[tuple[fx.Node, ...], int] = {}
    sources: list[tuple[bool, int]] = []
    for alike in zip(*parts, strict=True):
        for given in zip(*map(_arguments, alike), strict=True):
            inside = {place.get(n) for place, n in zip(places, given, strict=True)}
            if len(inside) > 1:
                return None
            if (i := inside.pop()) is not None:
                sources.append((True, i))
            elif isinstance(value_of(given[0]), Tensor):
                sources.append((False, inputs.setdefault(given, len(inputs))))
            else:
                return None
    outputs = [
        i
        for i, alike in enumerate(zip(*parts, strict=True))
        if any(not place.keys() >= n.users.keys() for place, n in zip(places, alike, strict=True))
    ]
    if not all(isinstance(value_of(parts[0][i]), Tensor) for i in outputs):
        return None
    return Region(parts, sources, list(inputs), outputs)


def _arguments(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


# Fitted to what benchmarks/tracing.py measures on a CPU of two cores, with nothing in the
# compiler's cache, for a run may not go another way the second time.
SECONDS_SAVED = 1.45e-6, 1.5e-10
"""By compiling, at each step: of each operation, and of each number that operations write (without
convolutions, which are torch's own either way and take most of the time)."""

SECONDS_SPENT = 2.5, 0.011
"""On compiling: once, and on each operation of parts that are not equal."""


def pays_from(graph: fx.GraphModule) -> int:
    """Steps from which on compiling the graph of a step saves more time than it takes."""
    nodes = [n for n in graph.graph.nodes if _counts(n)]
    values = [v for n in nodes if isinstance(v := value_of(n), Tensor)]
    each, number = SECONDS_SAVED
    saved = each * len(nodes)
    if not any("convolution" in str(n.target) for n in nodes):
        saved += number * sum(v.numel() for v in values)
    distinct = sum(map(_counts, (n for region in regions_of(graph) for n in region.parts[0])))
    once, more = SECONDS_SPENT
    return math.ceil((once + more * distinct) / saved) if saved else 0


def _counts(node: fx.Node) -> bool:
    return node.op == "call_function" and not is_view(node)
