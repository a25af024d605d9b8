"""Directed graphs without cycles: their order, and errors that name the edge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ...data.errors import PyroccamError

__all__ = ["Edge", "inputs_of", "order_of", "output_of"]


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
                raise PyroccamError(
                    f"Edge {edge.name!r}: vertices are named by words without '.' and '-', got "
                    f"{vertex!r}."
                )
    targets = {edge.target for edge in edges}
    sources = list(dict.fromkeys(edge.source for edge in edges if edge.source not in targets))
    if asked is None:
        if len(sources) > 1:
            edge = next(edge for edge in edges if edge.source == sources[1])
            raise PyroccamError(
                f"Vertices {', '.join(map(repr, sources))} have no edges to them: {sources[1]!r}, "
                f"of edge {edge.name!r}, cannot be reached. Give it an edge, or name all inputs, "
                f"inputs={sources}."
            )
        asked = sources
    for vertex in asked:
        if vertex in targets or all(vertex != edge.source for edge in edges):
            raise PyroccamError(
                f"inputs= names {vertex!r}, which must have edges from it and none to it."
            )
    for vertex in sources:
        if vertex not in asked:
            edge = next(edge for edge in edges if edge.source == vertex)
            raise PyroccamError(
                f"Vertex {vertex!r}, of edge {edge.name!r}, cannot be reached: it is none of the "
                f"inputs {list(asked)} and has no edges to it."
            )
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
            raise PyroccamError(
                f"The graph has the cycle {_cycle(edges, waiting)}: leave an edge out."
            )
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
        raise PyroccamError(
            f"Vertices {', '.join(map(repr, sinks))} have no edges from them, but a network "
            f"has one output: edge {edge.name!r} leads nowhere."
        )
    return sinks[0]
