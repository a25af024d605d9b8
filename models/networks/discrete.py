"""Networks with graphs of alternatives in them: their structures, and plain ones in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from ...data import checked
from .structure_graph import Gammas, StructureGraph


def discretised(net: nn.Module, choice: Mapping[str, str | Sequence[str]]) -> nn.Module:
    """The network with plain ones in place of its graphs, by a choice as for
    :meth:`StructureGraph.discretise` with the names that :func:`structures` gives to edges; a
    change in place, but for the network that is a graph itself."""
    prefixes = {graph: prefix for prefix, graph in graphs_in(net)}  # before the first is replaced
    places = net.named_modules(remove_duplicate=False)  # a graph may stand at several
    made: dict[StructureGraph, nn.Module] = {}
    for path, graph in reversed([*places]):  # those within a primitive first
        if not isinstance(graph, StructureGraph):
            continue
        if graph not in made:
            names = {prefixes[graph] + edge: edge for edge in graph.primitives}
            own = {edge: choice[name] for name, edge in names.items() if name in choice}
            made[graph] = graph.discretise(own)
        if not path:
            return made[graph]
        net.set_submodule(path, made[graph])
    return net


def filled(
    net: nn.Module, choice: Mapping[str, Sequence[str]], lost: Mapping[str, float]
) -> set[str]:
    """Edges of the graphs in a network that need a primitive: :meth:`StructureGraph.empty`, by the
    names that :func:`structures` gives to edges."""
    names: set[str] = set()
    for prefix, graph in graphs_in(net):
        own = {
            e: choice[prefix + e] or (("",) if prefix + e in names else ())
            for e in graph.primitives
        }
        names |= {prefix + e for e in graph.empty(own, {e: lost[prefix + e] for e in own})}
    return names


@checked
def primitive_sizes(net: nn.Module) -> dict[str, dict[str, int]]:
    """Parameters of every primitive by edge, by the names that :func:`structures` gives to edges;
    those of graphs that share a structure together.

    With them a prior says what a parameter costs: probabilities in proportion to
    ``exp(-price * (size - least))`` take ``price`` nats for each beyond the least size of the edge,
    from which they are counted so that large ones are not zero.
    """
    found: dict[str, dict[str, int]] = {}
    for prefix, graph in graphs_in(net):
        edges: Any = graph.edges
        for edge, primitives in edges.items():
            own = found.setdefault(prefix + edge, dict.fromkeys(primitives, 0))
            for name, primitive in primitives.items():
                own[name] += sum(p.numel() for p in primitive.parameters())
    return found


def structures(net: nn.Module) -> dict[str, Gammas]:
    """The structures in a network, by the name of the first graph that has it."""
    found: dict[str, Gammas] = {}
    for name, module in net.named_modules():
        if isinstance(module, StructureGraph) and module.gamma not in found.values():
            found[name] = module.gamma
    return found


def graphs_in(net: nn.Module) -> Iterator[tuple[str, StructureGraph]]:
    """The graphs in a network, and what stands before the names of their edges."""
    paths = {id(gammas): path for path, gammas in structures(net).items()}
    for graph in (m for m in net.modules() if isinstance(m, StructureGraph)):
        yield f"{paths[id(graph.gamma)]}.".lstrip("."), graph
