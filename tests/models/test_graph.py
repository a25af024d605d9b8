"""Graphs of alternatives: what they compute, and the plain network of a choice."""

import itertools

import pytest
import torch
from plain import network
from pyroccam.data import PyroccamError
from pyroccam.models.networks import (
    StructureGraph,
    cell_graph,
    discretised,
    distinct,
    perceptron_graph,
    structures,
)
from torch import nn


def scale(factor):
    return network(lambda net, x: factor * x)


def diamond():
    """x -> a, x -> b, a -> y, b -> y, a -> b; every primitive multiplies by a number."""
    return StructureGraph(
        {
            ("x", "a"): {"one": scale(1.0), "two": scale(2.0)},
            ("x", "b"): [scale(3.0)],
            ("a", "b"): [scale(5.0), scale(7.0), scale(11.0)],
            ("a", "y"): [scale(13.0)],
            ("b", "y"): [scale(17.0), scale(19.0)],
        }
    )


def by_hand(gamma):
    a = gamma["x-a"] @ torch.tensor([1.0, 2.0])
    b = gamma["x-b"][0] * 3.0 + a * (gamma["a-b"] @ torch.tensor([5.0, 7.0, 11.0]))
    return a * gamma["a-y"][0] * 13.0 + b * (gamma["b-y"] @ torch.tensor([17.0, 19.0]))


def test_value_for_any_gamma():
    graph = diamond()
    assert graph.order == ["x", "a", "b", "y"]
    assert (graph.inputs, graph.output) == (("x",), "y")
    gamma = {edge: torch.rand(len(names)) for edge, names in graph.primitives.items()}
    with graph.gamma.given(gamma):
        out = graph(torch.ones(2, 3))
    torch.testing.assert_close(out, by_hand(gamma).expand(2, 3))
    centre = {edge: torch.full((len(n),), 1.0 / len(n)) for edge, n in graph.primitives.items()}
    torch.testing.assert_close(graph(torch.ones(2, 3)), by_hand(centre).expand(2, 3))


def test_several_primitives_of_an_edge_and_none():
    graph = diamond()
    choice = {"x-a": ["one", "two"], "x-b": [], "a-b": ["0"], "a-y": [], "b-y": "1"}
    assert float(graph.discretise(choice)(torch.ones(1, 1))) == 3.0 * 5.0 * 19.0
    # b hangs on x alone, so a is not computed at all.
    small = graph.discretise({**choice, "x-b": "0", "a-b": []})
    assert float(small(torch.ones(1, 1))) == 3.0 * 19.0
    assert len(list(small.children())) == 2


def test_aggregations():
    edges = {("x", "y"): [scale(1.0)], ("x", "z"): [scale(2.0)], ("y", "z"): [scale(3.0)]}
    x = torch.ones(1, 2)
    assert StructureGraph(edges)(x).tolist() == [[5.0, 5.0]]
    assert StructureGraph(edges, aggregate={"z": "mean"})(x).tolist() == [[2.5, 2.5]]
    graph = StructureGraph(edges, aggregate={"z": "concatenate"})
    assert graph(x).tolist() == [[2.0, 2.0, 3.0, 3.0]]
    product = StructureGraph(edges, aggregate={"z": lambda parts: parts[0] * parts[1]})
    assert product(x).tolist() == [[6.0, 6.0]]
    with pytest.raises(PyroccamError):
        graph.discretise({"x-y": "0", "x-z": [], "y-z": "0"})


def test_several_inputs():
    edges = {("a", "y"): [scale(1.0)], ("b", "y"): [scale(2.0)]}
    graph = StructureGraph(edges, inputs=["b", "a"])
    for net in (graph, graph.discretise({"a-y": "0", "b-y": "0"})):
        assert float(net(torch.tensor([[1.0]]), torch.tensor([[10.0]]))) == 12.0
    with pytest.raises(PyroccamError):
        graph(torch.ones(1, 1))


def test_cells_share_their_structure_and_not_their_weights():
    first, second = ({("x", "y"): {"id": nn.Identity(), "lin": nn.Linear(2, 2)}} for _ in range(2))
    cell = StructureGraph(first)
    net = nn.Sequential(nn.Linear(3, 2), cell, nn.Tanh(), StructureGraph(second, gamma=cell.gamma))
    assert structures(net) == {"1": cell.gamma}
    x = torch.randn(4, 3)
    with cell.gamma.given({"x-y": torch.tensor([0.0, 1.0])}):
        expected = net(x)
    small = discretised(net, {"1.x-y": "lin"})
    torch.testing.assert_close(small(x), expected)
    assert sum(p.numel() for p in small.parameters()) == 8 + 6 + 6
    with pytest.raises(PyroccamError):
        StructureGraph({("x", "z"): [nn.Identity()]}, gamma=cell.gamma)


def lines(names, width=4, seed=0):
    torch.manual_seed(seed)
    return {name: nn.Linear(width, width) for name in names}


def three_into_one(how):
    each = {"xh": "ab", "xg": "ab", "hg": "c", "xy": "ab", "hy": "ab", "gy": "abc"}
    edges = {tuple(edge): lines(names, seed=k) for k, (edge, names) in enumerate(each.items(), 1)}
    return StructureGraph(edges, aggregate={"y": how, "g": "mean"})


def gamma_of(graph, choice):
    return {
        edge: torch.tensor([float(name in choice[edge]) for name in names])
        for edge, names in graph.primitives.items()
    }


def with_gamma(graph, choice, *x):
    """The graph itself with the γ that a choice stands for."""
    with graph.gamma.given(gamma_of(graph, choice)):
        return graph(*x)


def subsets(names):
    return [list(s) for k in range(len(names) + 1) for s in itertools.combinations(names, k)]


def largest(parts):
    return torch.stack(parts).amax(0)


@pytest.mark.parametrize("how", ["sum", "mean", "concatenate", largest])
def test_every_choice_of_the_cube(how):
    graph, x = three_into_one(how), torch.randn(5, 4)
    tried = 0
    for chosen in itertools.product(*(subsets(names) for names in graph.primitives.values())):
        choice = dict(zip(graph.primitives, chosen, strict=True))
        try:
            small = graph.discretise(choice)
        except PyroccamError:  # a vertex without edges, or one that joins all of them
            continue
        torch.testing.assert_close(small(x), with_gamma(graph, choice, x))
        tried += 1
        if tried == 40:
            return
    raise AssertionError(tried)


NAMES = [
    {("x", "h"): ["a_b"], ("x", "h_a"): ["b"], ("h", "y"): ["0"], ("h_a", "y"): ["0"]},
    {("x", "y"): ["conv 3", "conv-3", "conv_3", "conv_3_2", "Conv 3"]},
    {("x", "y"): ["ä", "²", "a", "é"]},
    {("class", "y"): ["def", "none"], ("class", "z"): ["0"], ("y", "z"): ["1"]},
    {("load", "state"): ["dict"], ("state", "y"): ["0"]},
    {("self", "1"): ["0", "1"], ("1", "y"): ["²", "2"]},
]


@pytest.mark.parametrize("edges", NAMES)
def test_names_that_look_alike_keep_their_own_primitives(edges):
    """The name of a primitive does not hang on what else was chosen."""
    graph = StructureGraph({e: lines(names, seed=k) for k, (e, names) in enumerate(edges.items())})
    x = torch.randn(3, 4)
    every = {edge: list(names) for edge, names in graph.primitives.items()}
    small = graph.discretise(every)
    torch.testing.assert_close(small(x), with_gamma(graph, every, x))
    names = {id(module): name for name, module in small.named_children()}
    assert len(names) == sum(len(own) for own in every.values())
    assert all(name.isidentifier() for name in names.values())
    for last in itertools.product(*every.values()):
        fewer = graph.discretise(dict(zip(every, last, strict=True)))
        assert all(names[id(module)] == name for name, module in fewer.named_children())
    assert distinct({"p.q": "p/q", "p/q": "p/q"}) == {"p.q": "p/q", "p/q": "p/q_2"}


def test_what_is_empty_is_found_in_a_long_graph():
    """Paths through it are many: 2^40, and every one of its edges is empty."""
    ends = [(f"v{k}", f"v{j}") for k in range(40) for j in (k + 1, k + 2) if j <= 40]
    graph = StructureGraph({pair: [nn.Linear(1, 1)] for pair in ends})
    lost = {edge: 1.0 + (k % 3) for k, edge in enumerate(graph.primitives)}
    named = graph.empty(dict.fromkeys(graph.primitives, ()), lost)
    fewest = [0.0, lost["v0-v1"]]
    for k in range(2, 41):
        fewest.append(min(fewest[k - d] + lost[f"v{k - d}-v{k}"] for d in (1, 2)))
    assert sum(lost[edge] for edge in named) == fewest[-1]


# -- what is refused --------------------------------------------------------------------------

EDGE = [nn.Identity()]
ONE = {("x", "y"): EDGE}
CYCLE = {("x", "a"): EDGE, ("a", "b"): EDGE, ("b", "a"): EDGE, ("b", "y"): EDGE}
WIDE = {("x", "y"): [nn.Linear(3, 1)], ("y", "z"): [scale(1.0)], ("x", "z"): [scale(1.0)]}
DEEP = {("x", "y"): [nn.Unflatten(1, (3, 1))], ("y", "z"): EDGE, ("x", "z"): EDGE}


@pytest.mark.parametrize(
    ("edges", "more"),
    [
        ({}, {}),
        (CYCLE, {}),
        (ONE, {"inputs": ["y"]}),
        ({**ONE, ("x", "z"): EDGE}, {}),
        ({("x", "y"): []}, {}),
        ({("x", "y.z"): EDGE}, {}),
        (ONE, {"aggregate": {"z": "sum"}}),
        (ONE, {"aggregate": {"y": "summ"}}),
        (ONE, {"aggregate": {"y": nn.Linear(1, 1)}}),
        *(({("x", "y"): {name: EDGE[0]}}, {}) for name in ("keys", "training", "", "a.b", 3)),
        # Shapes, which are known when it is called.
        ({("x", "y"): {"a": nn.Linear(3, 2), "b": nn.Linear(3, 4)}}, {}),
        ({("x", "y"): {"a": nn.Linear(5, 2)}}, {}),
        (WIDE, {}),
        (DEEP, {"aggregate": {"z": "concatenate"}}),
    ],
)
def test_errors_of_graphs(edges, more):
    with pytest.raises(PyroccamError):
        StructureGraph(edges, **more)(torch.ones(2, 3))


def test_errors_of_choices():
    graph = diamond()
    choice = {edge: names[0] for edge, names in graph.primitives.items()}
    few = {edge: name for edge, name in choice.items() if edge != "x-a"}
    empty = {"x-b": [], "a-b": []}
    for wrong in ({**choice, "x-c": "0"}, {**choice, "x-a": "ones"}, few, {**choice, **empty}):
        with pytest.raises(PyroccamError):
            graph.discretise(wrong)


# -- ready networks ---------------------------------------------------------------------------


def test_perceptron_graph():
    net = perceptron_graph((1, 4, 4), 5, width=8, vertices=4)
    assert net(torch.randn(3, 1, 4, 4)).shape == (3, 5)
    (own,) = structures(net).values()
    assert list(own.primitives) == ["v0-v1", "v0-v2", "v1-v2", "v0-v3", "v1-v3", "v2-v3"]
    small = discretised(net, {f"2.{edge}": "zero" for edge in own.primitives})
    out = small(torch.randn(3, 1, 4, 4))
    assert torch.equal(out, out[:1].expand(3, 5))  # nothing of the input is left


def test_cell_graph():
    net = cell_graph((1, 28, 28), 10, channels=8, cells=3)
    assert net(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    assert list(structures(net)) == ["2"]  # one structure of three cells
    own = structures(net)["2"]
    small = discretised(net, {f"2.{edge}": "conv3" for edge in own.primitives})
    assert small(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    convolutions = [m for m in small.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 1 + 3 * len(own.primitives)
    for shape, channels in (((4,), 16), ((1, 28, 28), 6)):
        with pytest.raises(PyroccamError):
            cell_graph(shape, 10, channels=channels)
