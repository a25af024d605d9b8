"""Graphs of alternatives: what they compute, their limits, and errors that name the edge."""

import itertools

import pytest
import torch
from plain import network
from pyroccam.models.networks.discrete import discretised, structures
from pyroccam.models.networks.structure_graph import StructureGraph
from torch import nn


def scale(factor):
    return network(lambda net, x: factor * x)


def diamond(**more):
    """x -> a, x -> b, a -> y, b -> y, a -> b; every primitive multiplies by a number."""
    return StructureGraph(
        {
            ("x", "a"): {"one": scale(1.0), "two": scale(2.0)},
            ("x", "b"): [scale(3.0)],
            ("a", "b"): [scale(5.0), scale(7.0), scale(11.0)],
            ("a", "y"): [scale(13.0)],
            ("b", "y"): [scale(17.0), scale(19.0)],
        },
        **more,
    )


def by_hand(gamma):
    a = gamma["x-a"] @ torch.tensor([1.0, 2.0])
    b = gamma["x-b"][0] * 3.0 + a * (gamma["a-b"] @ torch.tensor([5.0, 7.0, 11.0]))
    return a * gamma["a-y"][0] * 13.0 + b * (gamma["b-y"] @ torch.tensor([17.0, 19.0]))


def test_value_for_any_gamma():
    graph = diamond()
    assert graph.order == ["x", "a", "b", "y"]
    assert (graph.inputs, graph.output) == (("x",), "y")
    torch.manual_seed(0)
    for _ in range(5):
        gamma = {edge: torch.rand(len(names)) for edge, names in graph.primitives.items()}
        with graph.gamma.given(gamma):
            out = graph(torch.ones(2, 3))
        torch.testing.assert_close(out, by_hand(gamma).expand(2, 3))
    centre = {edge: torch.full((len(n),), 1.0 / len(n)) for edge, n in graph.primitives.items()}
    torch.testing.assert_close(graph(torch.ones(2, 3)), by_hand(centre).expand(2, 3))


def test_rows_may_differ_in_their_structure():
    graph = diamond()
    torch.manual_seed(0)
    gamma = {edge: torch.rand(4, len(names)) for edge, names in graph.primitives.items()}
    with graph.gamma.given(gamma):
        out = graph(torch.ones(4, 2, 2))
    for row in range(4):
        one = by_hand({edge: g[row] for edge, g in gamma.items()})
        torch.testing.assert_close(out[row], one.expand(2, 2))


def test_every_vertex_of_the_simplex_is_the_discrete_network():
    graph = diamond()
    x = torch.randn(3, 2)
    names = list(graph.primitives.values())
    for chosen in itertools.product(*names):
        choice = dict(zip(graph.primitives, chosen, strict=True))
        gamma = {
            edge: torch.tensor([float(n == choice[edge]) for n in found])
            for edge, found in graph.primitives.items()
        }
        with graph.gamma.given(gamma):
            expected = graph(x)
        small = graph.discretise(choice)
        torch.testing.assert_close(small(x), expected)
        assert len(list(small.children())) == 5


def test_several_primitives_of_an_edge_and_none():
    graph = diamond()
    choice = {"x-a": ["one", "two"], "x-b": [], "a-b": ["0"], "a-y": [], "b-y": "1"}
    small = graph.discretise(choice)
    assert float(small(torch.ones(1, 1))) == 3.0 * 5.0 * 19.0
    # b hangs on x alone, so a is not computed at all.
    small = graph.discretise({**choice, "x-b": "0", "a-b": []})
    assert float(small(torch.ones(1, 1))) == 3.0 * 19.0
    assert len(list(small.children())) == 2
    with pytest.raises(ValueError, match="Without edge 'x-b' vertex 'b' has nothing"):
        graph.discretise({**choice, "a-b": []})


def test_aggregations():
    edges = {("x", "y"): [scale(1.0)], ("x", "z"): [scale(2.0)], ("y", "z"): [scale(3.0)]}
    x = torch.ones(1, 2)
    assert StructureGraph(edges)(x).tolist() == [[5.0, 5.0]]
    assert StructureGraph(edges, aggregate={"z": "mean"})(x).tolist() == [[2.5, 2.5]]
    graph = StructureGraph(edges, aggregate={"z": "concatenate"})
    assert graph(x).tolist() == [[2.0, 2.0, 3.0, 3.0]]
    assert graph.discretise(dict.fromkeys(graph.primitives, "0"))(x).tolist() == graph(x).tolist()
    product = StructureGraph(edges, aggregate={"z": lambda parts: parts[0] * parts[1]})
    assert product(x).tolist() == [[6.0, 6.0]]
    with pytest.raises(ValueError, match="Without edge 'x-z' vertex 'z' has nothing"):
        graph.discretise({"x-y": "0", "x-z": [], "y-z": "0"})


def test_several_inputs():
    edges = {("a", "y"): [scale(1.0)], ("b", "y"): [scale(2.0)]}
    graph = StructureGraph(edges, inputs=["b", "a"])
    assert float(graph(torch.tensor([[1.0]]), torch.tensor([[10.0]]))) == 12.0
    small = graph.discretise({"a-y": "0", "b-y": "0"})
    assert float(small(torch.tensor([[1.0]]), torch.tensor([[10.0]]))) == 12.0
    with pytest.raises(ValueError, match="inputs b, a, got 1 tensors"):
        graph(torch.ones(1, 1))


def cells():
    first = StructureGraph({("x", "y"): {"id": nn.Identity(), "lin": nn.Linear(2, 2)}})
    more = {("x", "y"): {"id": nn.Identity(), "lin": nn.Linear(2, 2)}}
    second = StructureGraph(more, gamma=first.gamma)
    return nn.Sequential(nn.Linear(3, 2), first, nn.Tanh(), second)


def test_cells_share_their_structure_and_not_their_weights():
    net = cells()
    assert list(structures(net)) == ["1"]
    own = structures(net)["1"]
    x = torch.randn(4, 3)
    with own.given({"x-y": torch.tensor([0.0, 1.0])}):
        expected = net(x)
    small = discretised(net, {"1.x-y": "lin"})
    torch.testing.assert_close(small(x), expected)
    assert sum(p.numel() for p in small.parameters()) == 8 + 6 + 6
    with pytest.raises(ValueError, match="only graphs with the same edges and names"):
        StructureGraph({("x", "z"): [nn.Identity()]}, gamma=own)


EDGE = [nn.Identity()]
ONE = {("x", "y"): EDGE}
ASIDE = {**ONE, ("q", "y"): EDGE}


CYCLE = {("x", "a"): EDGE, ("a", "b"): EDGE, ("b", "a"): EDGE, ("b", "y"): EDGE}


@pytest.mark.parametrize(
    ("edges", "more", "error", "message"),
    [
        ({}, {}, ValueError, "at least one edge"),
        (CYCLE, {}, ValueError, "cycle '(a-b', 'b-a|b-a', 'a-b)'"),
        ({("a", "b"): EDGE, ("b", "a"): EDGE}, {}, ValueError, "cycle"),
        (ASIDE, {}, ValueError, "'q', of edge 'q-y', cannot be reached"),
        (ASIDE, {"inputs": ["x"]}, ValueError, "'q', of edge 'q-y', cannot be reached"),
        (ONE, {"inputs": ["y"]}, ValueError, "inputs= names 'y'"),
        ({**ONE, ("x", "z"): EDGE}, {}, ValueError, "edge 'x-y' leads nowhere"),
        ({("x", "y"): []}, {}, ValueError, "Edge 'x-y' has no primitives"),
        ({("x", "y.z"): EDGE}, {}, ValueError, "Edge 'x-y.z': vertices are named"),
        (ONE, {"aggregate": {"z": "sum"}}, ValueError, "vertex in aggregate= 'z'"),
        (ONE, {"aggregate": {"y": "summ"}}, ValueError, "Did you mean 'sum'"),
        (ONE, {"aggregate": "mean"}, ValueError, r"aggregate='mean': give it by vertex, .*\{'y'"),
        ({("x", "y"): {"f": lambda x: x}}, {}, ValueError, "Primitive 'f' of edge 'x-y' is func"),
    ],
)
def test_errors_of_graphs(edges, more, error, message):
    with pytest.raises(error, match=message):
        StructureGraph(edges, **more)


WIDE = {("x", "y"): [nn.Linear(3, 1)], ("y", "z"): [scale(1.0)], ("x", "z"): [scale(1.0)]}
DEEP = {("x", "y"): [nn.Unflatten(1, (3, 1))], ("y", "z"): EDGE, ("x", "z"): EDGE}


@pytest.mark.parametrize(
    ("edges", "aggregate", "message"),
    [
        (
            {("x", "y"): {"a": nn.Linear(3, 2), "b": nn.Linear(3, 4)}}, {},
            r"edge 'x-y' are mixed, but 'a' .*\(2, 2\) and 'b' \(2, 4",
        ),
        ({("x", "y"): {"a": nn.Linear(5, 2)}}, {}, "Primitive 'a' of edge 'x-y' does not take"),
        (WIDE, {}, r"Vertex 'z' cannot add .*'y-z' \(2, 1\), 'x-z' \(2, 3\)"),
        (DEEP, {"z": "concatenate"}, "Vertex 'z' cannot concatenate"),
    ],
)  # fmt: skip
def test_errors_of_shapes(edges, aggregate, message):
    with pytest.raises(ValueError, match=message):
        StructureGraph(edges, aggregate=aggregate)(torch.ones(2, 3))


def test_errors_of_choices():
    graph = diamond()
    choice = {edge: names[0] for edge, names in graph.primitives.items()}
    with pytest.raises(ValueError, match="edge 'x-c'"):
        graph.discretise({**choice, "x-c": "0"})
    with pytest.raises(ValueError, match="primitive of edge 'x-a' 'ones'.*Did you mean 'one'"):
        graph.discretise({**choice, "x-a": "ones"})
    del choice["x-a"]
    with pytest.raises(ValueError, match=r"says nothing of edge 'x-a' \(one, two\)"):
        graph.discretise(choice)
