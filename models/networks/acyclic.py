"""Directed graphs without cycles: their order, and errors that name the edge."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
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
    given = sources[:1] if asked is None else list(asked)
    if odd := [v for v in (*given, *sources) if (v in given) != (v in sources)]:
        named = [edge.name for edge in edges if odd[0] in edge]
        found = f"inputs={given} and vertex {odd[0]!r}, of the edges {named}"
        raise PyroccamError(found, f"the vertices without edges to them, inputs={sources}")
    return tuple(given)


def order_of(edges: list[Edge], inputs: Sequence[str]) -> list[str]:
    """Vertices, each behind those it depends on."""
    order = list(inputs)
    waiting = list(dict.fromkeys(edge.target for edge in edges))
    sorter = TopologicalSorter({v: [e.source for e in edges if e.target == v] for v in waiting})
    try:
        sorter.prepare()
    except CycleError as error:
        found = ", ".join(Edge(a, b).name.join("''") for a, b in pairwise(error.args[1]))
        raise PyroccamError(f"the cycle {found}", "a graph without one") from None
    while sorter.is_active():
        ready = sorter.get_ready()
        order += sorted({*ready} - {*inputs}, key=waiting.index)
        sorter.done(*ready)
    return order


def output_of(edges: list[Edge], order: list[str]) -> str:
    sinks = [vertex for vertex in order if all(edge.source != vertex for edge in edges)]
    if len(sinks) > 1:
        edge = next(edge for edge in edges if edge.target == sinks[0])
        found = f"edge {edge.name!r} leads nowhere, of the last vertices {', '.join(sinks)}"
        raise PyroccamError(found, "one output")
    return sinks[0]
