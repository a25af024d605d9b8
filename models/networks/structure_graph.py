"""Graphs of alternatives: every edge holds several primitives, and structure says which count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import cast

import torch
from torch import Tensor, fx, nn

from ...data import PyroccamError, checked
from .. import unknown_name
from .acyclic import Edge, inputs_of, order_of, output_of
from .identifiers import identifiers

Aggregation = Callable[[list[Tensor]], Tensor]
Primitives = Mapping[str, nn.Module] | Sequence[nn.Module]


def add(parts: list[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def mean(parts: list[Tensor]) -> Tensor:
    """The mean of tensors of one shape."""
    return add(parts) / len(parts)


def concatenate(parts: list[Tensor]) -> Tensor:
    """Side by side, along the features or channels."""
    return torch.cat(parts, 1)


AGGREGATIONS: dict[str, Aggregation] = {"sum": add, "mean": mean, "concatenate": concatenate}


class Gammas(nn.Module):
    """How much each primitive of each edge counts: one buffer ``(K,)`` by edge.

    Graphs that share this module share their structure, each with primitives of its own.
    """

    def __init__(self, primitives: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.primitives = {edge: tuple(names) for edge, names in primitives.items()}
        for edge, names in self.primitives.items():
            self.register_buffer(edge, torch.full((len(names),), 1.0 / len(names)))
        self._given: Mapping[str, Tensor] | None = None

    def of(self, edge: str) -> Tensor:
        """``(K,)``, or, of rows that differ in their structure, ``(rows, K)``."""
        if self._given is not None:
            return self._given[edge]
        return cast(Tensor, getattr(self, edge))

    @contextmanager
    def given(self, gammas: Mapping[str, Tensor]) -> Iterator[None]:
        """Others in their place, for a while."""
        self._given = gammas
        try:
            yield
        finally:
            self._given = None


class StructureGraph(nn.Module):
    r"""An acyclic graph whose edges are mixtures of primitives.

    .. math:: f_0(x) = x, \qquad
        f_v(x) = agg_v \big\{ \textstyle\sum_k γ^{jv}_k\, g^{jv}_k(f_j(x)) : (j, v) \in E \big\}

    A valid network for every γ in the cube. By itself it computes with the γ that its ``gamma``
    holds, at first the mean of all primitives; in a :class:`~pyroccam.models.StructuredNetwork` γ
    is random.

    Arguments:
        edges: primitives by (source, target): any modules, by name or in a list. Those of an edge
            give outputs of one shape, without a change to their inputs in place.
        aggregate: by vertex, what makes one value of its edges: ``sum`` (the default), ``mean``,
            ``concatenate`` (along dim 1), or a function of a list of tensors.
        inputs: vertices of the arguments of ``forward``, in their order; by default the one vertex
            without edges to it.
        gamma: of another graph with the same edges and names, to share its structure.

    Attributes:
        order: vertices, each behind those it depends on.
        inputs, output: vertices.

    Raises:
        PyroccamError: for a cycle, a vertex that cannot be reached or leads nowhere, an edge
            without primitives; when called, for outputs that do not fit together. The edge is
            named.

    References:
        Bakhteev, Strijov, Bayesian selection of deep learning model structure.

    Example:
        >>> graph = StructureGraph({
        ...     ("x", "hidden"): {"linear": nn.Linear(3, 4), "skip": nn.Linear(3, 4, bias=False)},
        ...     ("hidden", "y"): [nn.Linear(4, 1)],
        ... })
        >>> graph.primitives
        {'x-hidden': ('linear', 'skip'), 'hidden-y': ('0',)}
        >>> graph(torch.zeros(5, 3)).shape
        torch.Size([5, 1])
    """

    @checked
    def __init__(
        self,
        edges: Mapping[tuple[str, str], Primitives],
        *,
        aggregate: Mapping[str, str | Aggregation] | None = None,
        inputs: Sequence[str] | None = None,
        gamma: Gammas | None = None,
    ) -> None:
        super().__init__()
        self.edge_list = [Edge(*ends) for ends in edges]
        self.inputs = inputs_of(self.edge_list, inputs)
        self.order = order_of(self.edge_list, self.inputs)
        self.output = output_of(self.edge_list, self.order)
        self.edges = nn.ModuleDict()
        for edge, given in zip(self.edge_list, edges.values(), strict=True):
            self.edges[edge.name] = nn.ModuleDict(_named(edge, given))
        if isinstance(aggregate, str):
            raise PyroccamError(f"aggregate={aggregate!r}", f"{{{self.output!r}: {aggregate!r}}}")
        self.aggregate = _aggregations(aggregate or {}, self.edge_list)
        own = Gammas(self.primitives)
        if gamma is not None and gamma.primitives != own.primitives:
            raise PyroccamError(f"gamma= of {gamma.primitives}", f"one of {own.primitives}")
        self.gamma = own if gamma is None else gamma

    @property
    def primitives(self) -> dict[str, tuple[str, ...]]:
        """Names of the primitives by edge."""
        return {edge: tuple(self._alternatives(edge)) for edge in self.edges}

    def _alternatives(self, edge: str) -> nn.ModuleDict:
        """The primitives of an edge."""
        return cast(nn.ModuleDict, self.edges[edge])

    def forward(self, *x: Tensor) -> Tensor:
        """The value of the last vertex, for inputs ``(B, *)``."""
        if len(x) != len(self.inputs):
            raise PyroccamError(f"{len(x)} tensors", f"the inputs {', '.join(self.inputs)}")
        values = dict(zip(self.inputs, x, strict=True))
        for vertex in self.order:
            if vertex not in values:
                into = [edge for edge in self.edge_list if edge.target == vertex]
                parts = [self._mixture(edge, values[edge.source]) for edge in into]
                values[vertex] = self._together(vertex, into, parts)
        return values[self.output]

    def _mixture(self, edge: Edge, x: Tensor) -> Tensor:
        gamma = self.gamma.of(edge.name)
        total: Tensor | None = None
        first = ""
        for k, (name, primitive) in enumerate(self._alternatives(edge.name).items()):
            try:
                out = primitive(x)
            except RuntimeError as error:
                found = f"{tuple(x.shape)} of vertex {edge.source!r} ({error})"
                where = f"primitive {name!r} of edge {edge.name!r}"
                raise PyroccamError(found, f"what {where} takes") from error
            share = gamma[..., k]
            part = out * (share.reshape(-1, *[1] * (out.dim() - 1)) if share.dim() else share)
            if total is None:
                total, first = part, name
                continue
            if part.shape != total.shape:
                found = f"primitive {name!r} of edge {edge.name!r} gives {tuple(part.shape)}"
                raise PyroccamError(found, f"the shape {tuple(total.shape)} of {first!r}")
            total = total + part
        assert total is not None
        return total

    def _together(self, vertex: str, into: list[Edge], parts: list[Tensor]) -> Tensor:
        function = self.aggregate[vertex]
        shapes = {edge.name: tuple(part.shape) for edge, part in zip(into, parts, strict=True)}
        given = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        how = getattr(function, "__name__", str(function))
        misfit = PyroccamError(f"Vertex {vertex!r} cannot {how} what its edges give, {given}.")
        if function in (add, mean) and len({*shapes.values()}) > 1:  # they would be broadcast
            raise misfit
        try:
            return function(parts)
        except RuntimeError as error:
            raise misfit from error

    def discretise(self, choice: Mapping[str, str | Sequence[str]]) -> fx.GraphModule:
        """The plain network with some primitives only, each counted fully.

        Arguments:
            choice: by edge the name of a primitive, or of several, which are added. An edge with
                none of them is left out.

        Returns:
            a module of torch alone, in the mode of the graph, with the same modules in it.

        Raises:
            PyroccamError: for a name there is not, an edge without a choice, or a vertex that would
                be left without edges.
        """
        chosen = self._checked(choice)
        alive = self._alive(chosen, self._refuse)
        graph = fx.Graph()
        arguments, targets = identifiers({n: n for n in self.inputs}), self._targets()
        values = {name: graph.placeholder(arguments[name]) for name in self.inputs}
        root = nn.Module()
        for vertex in self.order:
            if vertex in values or vertex not in alive:
                continue
            into = [edge for edge in self.edge_list if edge.target == vertex]
            parts = []
            for edge in (e for e in into if chosen[e.name]):
                outs = []
                for name in chosen[edge.name]:
                    target = targets[edge.name, name]
                    root.add_module(target, self._alternatives(edge.name)[name])
                    outs.append(graph.call_module(target, (values[edge.source],)))
                parts.append(_write(graph, add, outs, len(outs)))
            values[vertex] = _write(graph, self.aggregate[vertex], parts, len(into))
        graph.output(values[self.output])
        net = fx.GraphModule(root, graph, "DiscreteGraph")
        return net.train(self.training)

    def _targets(self) -> dict[tuple[str, str], str]:
        """Names of all primitives, those that they have in a plain network, whatever is chosen."""
        every = ((edge, name) for edge, names in self.primitives.items() for name in names)
        return identifiers({both: "_".join(both) for both in every})

    def _checked(self, choice: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
        chosen: dict[str, list[str]] = {}
        for name in choice:
            if name not in self.primitives:
                raise PyroccamError(unknown_name("edge", name, self.primitives))
        for edge, names in self.primitives.items():
            if edge not in choice:
                raise PyroccamError(f"a choice without edge {edge!r}", f"one of {', '.join(names)}")
            asked = choice[edge]
            chosen[edge] = [asked] if isinstance(asked, str) else list(dict.fromkeys(asked))
            for name in chosen[edge]:
                if name not in names:
                    raise PyroccamError(unknown_name(f"primitive of edge {edge!r}", name, names))
        return chosen

    def empty(self, choice: Mapping[str, Sequence[str]], lost: Mapping[str, float]) -> list[str]:
        """Edges without a primitive, by a choice of names, that cannot do without one.

        ``lost`` is by edge what its first primitive costs. Of the edges into a vertex of which one
        is enough the cheapest is named, with what its source needs.
        """
        named: list[str] = []

        def price(edge: Edge) -> float:
            return (0.0 if choice[edge.name] else lost[edge.name]) + needs(edge.source)

        @cache  # paths through a graph are many
        def needs(vertex: str) -> float:
            if vertex in self.inputs:
                return 0.0
            kept, without = self._into(vertex, choice)
            filled = self._filled(vertex, without, price) if without else []
            return sum(map(price, kept + filled))

        def name(vertex: str, without: list[Edge]) -> list[Edge]:
            filled = self._filled(vertex, without, price)
            named.extend(edge.name for edge in filled)
            return filled

        self._alive(choice, name)
        return named

    def _filled(
        self, vertex: str, without: list[Edge], price: Callable[[Edge], float]
    ) -> list[Edge]:
        return [min(without, key=price)] if self._one_is_enough(vertex) else without

    def _one_is_enough(self, vertex: str) -> bool:
        return self.aggregate[vertex] in (add, mean)

    def _into(
        self, vertex: str, chosen: Mapping[str, Sequence[str]]
    ) -> tuple[list[Edge], list[Edge]]:
        """Edges into a vertex with a primitive, and those without if they cannot be left out."""
        into = [edge for edge in self.edge_list if edge.target == vertex]
        kept = [edge for edge in into if chosen[edge.name]]
        if kept and self._one_is_enough(vertex):
            return kept, []
        return kept, [edge for edge in into if not chosen[edge.name]]

    def _refuse(self, vertex: str, without: list[Edge]) -> list[Edge]:
        found = f"vertex {vertex!r} without edge {without[0].name!r}"
        raise PyroccamError(found, "a primitive for it, such as one that gives zeros")

    def _alive(
        self,
        chosen: Mapping[str, Sequence[str]],
        fill: Callable[[str, list[Edge]], list[Edge]],
    ) -> set[str]:
        """Vertices that the output depends on, with the edges that ``fill`` gives those that would
        be empty."""
        alive = {self.output}
        for vertex in reversed(self.order):
            if vertex not in alive or vertex in self.inputs:
                continue
            kept, without = self._into(vertex, chosen)
            if without:
                kept += fill(vertex, without)
            alive |= {edge.source for edge in kept}
        return alive

    def extra_repr(self) -> str:
        return f"{len(self.order)} vertices, {len(self.edge_list)} edges"


def _write(graph: fx.Graph, function: Aggregation, parts: list[fx.Node], edges: int) -> fx.Node:
    """Write an aggregation as the operations themselves, so that what is left is torch alone: of
    the parts of edges that are left, where all edges of the vertex count in a mean."""
    if function is concatenate:
        return parts[0] if len(parts) == 1 else graph.call_function(torch.cat, (parts, 1))
    if function not in (add, mean):
        return graph.call_function(function, (parts,))
    total = parts[0]
    for part in parts[1:]:
        total = graph.call_function(torch.add, (total, part))
    if function is mean and edges > 1:
        total = graph.call_function(torch.div, (total, edges))
    return total


def _named(edge: Edge, given: Primitives) -> dict[str, nn.Module]:
    named = dict(given) if isinstance(given, Mapping) else {str(k): m for k, m in enumerate(given)}
    if not named:
        raise PyroccamError(f"Edge {edge.name!r} has no primitives: give it at least one.")
    for name, module in named.items():
        where = f"primitive {name!r} of edge {edge.name!r}"
        if not isinstance(name, str) or not name or "." in name or hasattr(nn.ModuleDict(), name):
            raise PyroccamError(where, "a word without dots, unlike nn.ModuleDict's own")
        if not isinstance(module, nn.Module):
            raise PyroccamError(f"{where} is {type(module).__name__}, expected a torch.nn.Module.")
    return named


def _aggregations(
    asked: Mapping[str, str | Aggregation], edges: list[Edge]
) -> dict[str, Aggregation]:
    targets = list(dict.fromkeys(edge.target for edge in edges))
    for vertex, how in asked.items():
        if vertex not in targets:
            raise PyroccamError(unknown_name("vertex in aggregate=", vertex, targets))
        if isinstance(how, str) and how not in AGGREGATIONS:
            raise PyroccamError(unknown_name(f"aggregate of vertex {vertex!r}", how, AGGREGATIONS))
        if isinstance(how, nn.Module) or not (isinstance(how, str) or callable(how)):
            given = f"aggregate of vertex {vertex!r} is a {type(how).__name__}"
            raise PyroccamError(given, "a name, or a function of a list of tensors")
    found: dict[str, Aggregation] = {}
    for vertex in targets:
        how = asked.get(vertex, "sum")
        found[vertex] = AGGREGATIONS[how] if isinstance(how, str) else how
    return found
