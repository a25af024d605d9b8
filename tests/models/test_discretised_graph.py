"""The plain network of a choice computes what the graph computes with zeros and ones for γ."""

import itertools

import pytest
import torch
from pyroccam.data.errors import PyroccamError
from pyroccam.models.networks.discrete import discretised, structures
from pyroccam.models.networks.identifiers import RESERVED, distinct, identifiers
from pyroccam.models.networks.structure_graph import StructureGraph
from torch import nn


def largest(parts):
    return torch.stack(parts).amax(0)


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


@pytest.mark.parametrize("how", ["sum", "mean", "concatenate", largest])
def test_every_choice_of_the_cube(how):
    graph, x = three_into_one(how), torch.randn(5, 4)
    tried = 0
    for chosen in itertools.product(*(subsets(names) for names in graph.primitives.values())):
        choice = dict(zip(graph.primitives, chosen, strict=True))
        try:
            small = graph.discretise(choice)
        except ValueError:  # a vertex without edges, or one that joins all of them
            continue
        torch.testing.assert_close(small(x), with_gamma(graph, choice, x))
        tried += 1
        if tried == 150:
            break
    assert tried == 150


def test_a_mean_counts_the_edges_that_are_left_out():
    graph, x = three_into_one("mean"), torch.randn(5, 4)
    choice = {"x-h": "a", "x-g": [], "h-g": [], "x-y": "b", "h-y": [], "g-y": []}
    small = graph.discretise(choice)
    torch.testing.assert_close(small(x), graph.edges["x-y"]["b"](x) / 3)


def test_nested_means():
    edges = {("x", "m"): lines("ab", seed=7), ("x", "y"): lines("ab", seed=8)}
    inner = StructureGraph({**edges, ("m", "y"): lines("a")}, aggregate={"y": "mean"})
    edges = {("x", "h"): {"cell": inner, "line": nn.Linear(4, 4)}, ("x", "y"): lines("ab", seed=9)}
    outer = StructureGraph({**edges, ("h", "y"): lines("ab", seed=10)}, aggregate={"y": "mean"})
    net, x = nn.Sequential(outer), torch.randn(3, 4)
    inside = {"x-m": "a", "x-y": [], "m-y": "a"}
    outside = {"x-h": ["cell", "line"], "x-y": [], "h-y": "b"}
    own, around = gamma_of(inner, inside), gamma_of(outer, outside)
    with inner.gamma.given(own), outer.gamma.given(around):
        expected = net(x)
    (first, second) = structures(net)
    choice = {f"{first}.{k}": v for k, v in outside.items()}
    choice |= {f"{second}.{k}": v for k, v in inside.items()}
    torch.testing.assert_close(discretised(net, choice)(x), expected)


def test_a_graph_that_stands_at_two_places():
    graph, x = StructureGraph({("x", "y"): lines("ab")}), torch.randn(3, 4)
    net = nn.Sequential(graph, nn.Tanh(), graph)
    with graph.gamma.given({"x-y": torch.tensor([0.0, 1.0])}):
        expected = net(x)
    small = discretised(net, {"0.x-y": "b"})
    torch.testing.assert_close(small(x), expected)
    assert small[0] is small[2]


NAMES = [
    {("x", "h"): ["a_b"], ("x", "h_a"): ["b"], ("h", "y"): ["0"], ("h_a", "y"): ["0"]},
    {("x", "y"): ["conv 3", "conv-3", "conv_3", "conv_3_2", "Conv 3"]},
    {("x", "y"): ["ä", "²", "a", "é", "", "."][:4]},
    {("class", "y"): ["def", "none"], ("class", "z"): ["0"], ("y", "z"): ["1"]},
    {("load", "state"): ["dict"], ("state", "y"): ["0"]},
    {("self", "1"): ["0", "1"], ("1", "y"): ["²", "2"]},
]


@pytest.mark.parametrize("edges", NAMES)
def test_names_that_look_alike_keep_their_own_primitives(edges):
    graph = StructureGraph({e: lines(names, seed=k) for k, (e, names) in enumerate(edges.items())})
    x = torch.randn(3, 4)
    every = {edge: list(names) for edge, names in graph.primitives.items()}
    small = graph.discretise(every)
    torch.testing.assert_close(small(x), with_gamma(graph, every, x))
    assert len(list(small.children())) == sum(len(names) for names in every.values())
    names = {id(module): name for name, module in small.named_children()}
    # The name of a primitive does not hang on what else was chosen.
    for last in itertools.product(*every.values()):
        one = dict(zip(every, last, strict=True))
        fewer = graph.discretise(one)
        torch.testing.assert_close(fewer(x), with_gamma(graph, {e: [n] for e, n in one.items()}, x))
        assert all(names[id(module)] == name for name, module in fewer.named_children())


def test_inputs_whose_names_look_alike():
    inputs = ["a b", "a_b", "1", "class", "self", "²"]
    edges = {(name, "y"): lines(["l"], seed=k) for k, name in enumerate(inputs)}
    graph = StructureGraph(edges, inputs=inputs)
    x = [torch.randn(2, 4) for _ in inputs]
    choice = {edge: ["l"] for edge in graph.primitives}
    torch.testing.assert_close(graph.discretise(choice)(*x), graph(*x))


def test_identifiers_are_distinct_words_of_python():
    texts = ["a b", "a_b", "a-b", "a_b_2", "", "_", "1", "class", "forward", "self", "A_b", "ä"]
    found = identifiers({text: text for text in texts})
    assert list(found) == texts
    assert len({*found.values()}) == len(texts)
    assert all(word.isidentifier() and word not in RESERVED for word in found.values())
    assert found["a_b_2"] == "a_b_2"
    assert found["a b"] == "a_b"
    assert distinct({"p.q": "p/q", "p/q": "p/q"}) == {"p.q": "p/q", "p/q": "p/q_2"}


@pytest.mark.parametrize("name", ["keys", "training", "", "a.b", 3])
def test_names_that_no_primitive_can_have(name):
    with pytest.raises(PyroccamError):
        StructureGraph({("x", "y"): {name: nn.Linear(1, 1)}})


def test_an_aggregation_is_a_function():
    with pytest.raises(PyroccamError):
        StructureGraph({("x", "y"): lines("a")}, aggregate={"y": nn.Linear(1, 1)})


def test_what_is_empty_is_found_in_a_long_graph():
    """Paths through it are many: 2^40, and every one of its edges is empty."""
    ends = [(f"v{k}", f"v{j}") for k in range(40) for j in (k + 1, k + 2) if j <= 40]
    graph = StructureGraph({pair: [nn.Linear(1, 1)] for pair in ends})
    lost = {edge: 1.0 + (k % 3) for k, edge in enumerate(graph.primitives)}
    named = graph.empty(dict.fromkeys(graph.primitives, ()), lost)
    fewest = [0.0, lost["v0-v1"]]
    for k in range(2, 41):
        each = (fewest[k - d] + lost[f"v{k - d}-v{k}"] for d in (1, 2))
        fewest.append(min(each))
    assert sum(lost[edge] for edge in named) == fewest[-1]
