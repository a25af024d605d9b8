"""A graph as calls of compiled parts, whose results lie where they are wanted."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from .regions import Region, is_view, regions_of, value_of
from .trace import root

aten = torch.ops.aten

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
# From a graph and the layouts of its inputs to what computes it from a list of inputs, and the
# strides of its outputs.
Compile = Callable[
    [fx.GraphModule, list[Layout]],
    tuple[Callable[[list[Tensor]], Sequence[Tensor]], list[tuple[int, ...]]],
]


def in_regions(
    graph: fx.GraphModule, compile: Compile, lying: Mapping[int, Tensor | int] | None = None
) -> fx.GraphModule:
    """The same function as calls of compiled parts, where equal ones are compiled once.

    The time of compilation hardly grows with the number of equal blocks. What parts find and
    another joins to one tensor (``torch.cat``) lies there from the start, in the graph's memory.

    Arguments:
        graph: of tensor operations; it leaves its inputs as they are. Changed in place.
        compile: makes a function of a part.
        lying: by position among the outputs, the tensor in which that output is wanted, or the
            position of the input whose value it replaces.

    Returns:
        ``graph``; outputs that lie where they are wanted are ``None``.
    """
    *_, output = graph.graph.nodes
    plan = _Plan(graph, lying or {})
    strides: dict[fx.Node, tuple[int, ...]] = {}
    functions = []
    for region in plan.regions:
        layouts = [_layout(plan.at.get(one[0], one[0]), strides) for one in region.given()]
        function, found = compile(region.graph(), layouts)
        functions.append(function)
        for part in region.parts:
            strides.update(zip((part[i] for i in region.outputs), found, strict=True))
    new = dict(plan.at)
    old = {n for region in plan.regions for part in region.parts for n in part} | plan.joined
    with graph.graph.inserting_before(output):
        for region, function in zip(plan.regions, functions, strict=True):
            given = region.given()
            for k, part in enumerate(region.parts):
                inputs = [new.get(one[k], one[k]) for one in given]
                call = graph.graph.call_function(function, (inputs,))
                for j, i in enumerate(region.outputs):
                    new[part[i]] = graph.graph.call_function(operator.getitem, (call, j))
    if plan.joined:  # a compiler may return memory that the graph keeps as it is
        with graph.graph.inserting_before(output):
            for n in set(tree_leaves(output.args)) - plan.lying:
                new[n] = graph.graph.call_function(torch.clone, (new.get(n, n),))
    output.args = tree_map(lambda n: None if n in plan.lying else new.get(n, n), output.args)
    for node in reversed(graph.graph.nodes):
        if node in old:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _layout(node: fx.Node, strides: dict[fx.Node, tuple[int, ...]]) -> Layout:
    value = value_of(node)
    return value.shape, strides.get(node, value.stride()), value.dtype, value.device


class _Plan:
    """What is computed where, and what lies where.

    Attributes:
        regions: in the order in which they are computed.
        joined: operations that join tensors, which nothing has to do any more.
        at: by operation, the memory in which its result lies.
        lying: outputs that lie where they are wanted.
    """

    def __init__(self, graph: fx.GraphModule, wanted: Mapping[int, Tensor | int]) -> None:
        self.graph = graph
        *nodes, self.output = graph.graph.nodes
        outputs = tree_leaves(self.output.args)
        # What is returned twice can lie at one place only, and stays an output.
        wanted = {i: where for i, where in wanted.items() if outputs.count(outputs[i]) == 1}
        inputs = [n for n in nodes if n.op == "placeholder"]
        self.memory = {outputs[i]: t for i, t in wanted.items() if isinstance(t, Tensor)}
        self.first, self.count = next(n for n in nodes if n.op != "placeholder"), 0
        self.joined = self._candidates(nodes)
        self.regions: list[Region] = []
        self._divide()
        while not all(map(self._is_complete, self.joined)):
            self.joined = set(filter(self._is_complete, self.joined))
            self._divide()
        self.at: dict[fx.Node, fx.Node] = {}
        self.lying = self.joined & self.memory.keys()
        for node in nodes:
            if node in self.joined:
                self._join(node)
        self._replace({outputs[i]: inputs[j] for i, j in wanted.items() if isinstance(j, int)})
        for region in self.regions:
            region.outputs = [i for i in region.outputs if self._is_read(region, i)]

    def _divide(self) -> None:
        self.regions = regions_of(self.graph, self.joined)
        self.home: dict[fx.Node, tuple[int, int, int]] = {
            n: (r, k, i)
            for r, region in enumerate(self.regions)
            for k, part in enumerate(region.parts)
            for i, n in enumerate(part)
        }

    def _candidates(self, nodes: Sequence[fx.Node]) -> set[fx.Node]:
        """Joined tensors of which no piece is one of another."""
        found: set[fx.Node] = set()
        claimed: set[fx.Node] = set()
        for node in sorted(nodes, key=lambda n: n not in self.memory):
            if self._may_lie(node) and claimed.isdisjoint(pieces := node.all_input_nodes):
                found.add(node)
                claimed.update(pieces)
        return found

    def _may_lie(self, node: fx.Node) -> bool:
        """True if pieces of a joined tensor can be written to their places."""
        if node.target is not aten.cat.default:
            return False
        pieces: Any = node.args[0]
        # The graph's memory is used again at the next call: nobody outside may hold it.
        held = node not in self.memory and any(map(self._is_returned, [node, *pieces]))
        return not held and len(set(pieces)) == len(pieces)

    def _is_returned(self, node: fx.Node) -> bool:
        return self.output in self._readers(node)

    def _is_complete(self, node: fx.Node) -> bool:
        """True if all parts of a region write a piece, or none, and it is worth it."""
        pieces: Any = node.args[0]
        if not all(n in self.home for n in pieces):
            return False
        # A part writes at its end: who reads the whole has to be another, and a later one.
        last = max(self.home[n][:2] for n in pieces)
        if any(n in self.home and self.home[n][:2] <= last for n in node.users):
            return False
        repeated = any(len(self.regions[self.home[n][0]].parts) > 1 for n in pieces)
        written = sum(map(len, self._together(pieces).values()))
        return (repeated or node in self.memory) and written == len(pieces)

    def _together(self, nodes: Sequence[fx.Node]) -> dict[tuple[int, int], list[int]]:
        """What all parts of a region find at the same place, as positions in ``nodes`` by part."""
        found: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for j, node in enumerate(nodes):
            r, k, i = self.home[node]
            if i not in self.regions[r].slots:
                found[r, i][k] = j
        return {
            (r, i): [js[k] for k in sorted(js)]
            for (r, i), js in found.items()
            if len(js) == len(self.regions[r].parts)
        }

    def _join(self, node: fx.Node) -> None:
        """Have the pieces of a joined tensor written to their places."""
        pieces: Any = node.args[0]
        value = value_of(node)
        dim = node.args[1] if len(node.args) > 1 else 0
        whole = self.memory.get(node)
        if whole is None:
            whole = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        sizes = [value_of(n).shape[dim] for n in pieces]
        self.at[node] = self._kept(whole)
        slots = [self._kept(t) for t in whole.split(sizes, dim)]
        for (r, i), js in self._together(pieces).items():
            self.regions[r].slots[i] = tuple(slots[j] for j in js)
        for piece, slot in zip(pieces, slots, strict=True):
            one, other = value_of(piece), value_of(slot)
            same = (one.stride(), one.dtype) == (other.stride(), other.dtype)
            if same and not self._is_returned(piece):
                self.at[piece] = slot

    def _kept(self, memory: Tensor) -> fx.Node:
        """A tensor as a node."""
        self.count += 1
        setattr(self.graph, name := f"kept_{self.count}", memory)
        with self.graph.graph.inserting_before(self.first):
            return self.graph.graph.create_node("get_attr", name)

    def _replace(self, inputs: dict[fx.Node, fx.Node]) -> None:
        """Have outputs written to the inputs that they replace, if nobody reads these later."""
        mine = [n for n, source in inputs.items() if n in self.home and self._is_last(n, source)]
        for (r, i), js in self._together(mine).items():
            slots = tuple(inputs[mine[j]] for j in js)
            others = [one for one in self.regions[r].inputs if one != slots]
            # Of two arguments a compiler does not see that they are one tensor.
            if any(root(n) is slot for one in others for n, slot in zip(one, slots, strict=True)):
                continue
            self.regions[r].slots[i] = slots
            self.lying |= {mine[j] for j in js}

    def _is_last(self, node: fx.Node, source: fx.Node) -> bool:
        """True if no part reads an input after the one that finds what replaces it."""
        here = self.home[node][:2]
        readers = list(self._readers(source))
        earlier = all(self.home.get(n, here)[:2] <= here for n in readers)
        same: bool = value_of(node).shape == value_of(source).shape
        return same and earlier and self.output not in readers

    def _readers(self, node: fx.Node) -> Iterator[fx.Node]:
        """What uses a tensor or a view of it."""
        for user in node.users:
            yield user
            if is_view(user):
                yield from self._readers(user)

    def _is_read(self, region: Region, i: int) -> bool:
        """True if what parts find is used elsewhere, and does not lie where it is used."""
        for part in region.parts:
            node = part[i]
            outside = [n for n in node.users if self.home.get(n, ())[:2] != self.home[node][:2]]
            outside = [n for n in outside if n not in self.joined]
            if node in self.lying:
                outside = [n for n in outside if n is not self.output]
            if outside and node not in self.at:
                return True
        return False
