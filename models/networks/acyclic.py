"""Directed graphs without cycles: their order, and errors that name the edge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ...data import PyroccamError


class Edge(NamedTuple):
    """An edge, from one vertex to another."""

    source: str
    target: str

    @property
    def name(self) -> str:
        return f"{self.source}-{self.target}"


def inputs_of(edges: list[Edge], asked: Sequence[str] | None) -> tuple[str, ...]:
    if not edges:
        raise PyroccamError("A graph needs at least one edge, {(source, target): primitives}.")
    for edge in edges:
        for vertex in edge:
            if not isinstance(vertex, str) or not vertex or set(vertex) & set(".-"):
                found = f"vertex {vertex!r} of edge {edge.name!r}"
                raise PyroccamError(found, "a word without '.' and '-'")
    targets = {edge.target for edge in edges}
    sources = list(dict.fromkeys(edge.source for edge in edges if edge.source not in targets))
    if asked is None:
        if len(sources) > 1:
            edge = next(edge for edge in edges if edge.source == sources[1])
            found = f"vertex {sources[1]!r}, of edge {edge.name!r}, has no edges to it"
            raise PyroccamError(found, "one that can be reached", f"inputs={sources}")
        asked = sources
    for vertex in asked:
        if vertex in targets or all(vertex != edge.source for edge in edges):
            raise PyroccamError(f"inputs={vertex!r}", "a vertex with edges from it and none to it")
    for vertex in sources:
        if vertex not in asked:
            edge = next(edge for edge in edges if edge.source == vertex)
            found = f"vertex {vertex!r}, of edge {edge.name!r}, has no edges to it"
            raise PyroccamError(found, f"one of the inputs {list(asked)}")
    return tuple(asked)


def order_of(edges: list[Edge], inputs: Sequence[str]) -> list[str]:
    """Vertices, each behind those it depends on."""
    order = list(inputs)
    waiting = list(dict.fromkeys(edge.target for edge in edges))
    while waiting:
        ready = [
            vertex
            for vertex in waiting
            if all(edge.source in order for edge in edges if edge.target == vertex)
        ]
        if not ready:
            raise PyroccamError(f"the cycle {_cycle(edges, waiting)}", "a graph without one")
        order += ready
        waiting = [vertex for vertex in waiting if vertex not in ready]
    return order


def _cycle(edges: list[Edge], among: Sequence[str]) -> str:
    """One of the cycles, as a chain of edges; each vertex of ``among`` has an edge from another."""
    path = [among[0]]
    while path.count(path[-1]) < 2:
        path.append(next(e.source for e in edges if e.target == path[-1] and e.source in among))
    path = path[path.index(path[-1]) :][::-1]
    return ", ".join(Edge(a, b).name.join("''") for a, b in pairwise(path))


def output_of(edges: list[Edge], order: list[str]) -> str:
    sinks = [vertex for vertex in order if all(edge.source != vertex for edge in edges)]
    if len(sinks) > 1:
        edge = next(edge for edge in edges if edge.target == sinks[0])
        found = f"edge {edge.name!r} leads nowhere, of the last vertices {', '.join(sinks)}"
        raise PyroccamError(found, "one output")
    return sinks[0]
