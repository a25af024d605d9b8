"""Operations that a graph is rid of before it is run, and those that it needs."""

import pytest
import torch
from pyroccam.inference.compilation.graphs import graph_of
from pyroccam.inference.compilation.passes import lean

aten = torch.ops.aten


def targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_the_slope_of_a_square_has_no_powers_and_no_views_of_the_same_shape():
    def slope(x):
        square = torch.func.grad(lambda x: (x.expand(4, 3).view(4, 3) ** 2).sum())
        return square(x), x.view(12), x.expand(2, 4, 3)

    x = torch.randn(4, 3)
    graph = graph_of(slope, x)
    expected, before = graph(x), targets(graph)
    found = lean(graph, [])
    assert aten.pow.Tensor_Scalar in before
    assert not {aten.pow.Tensor_Scalar, torch.pow} & {*targets(found)}
    assert targets(found).count(torch.Tensor.view) == 1
    assert targets(found).count(torch.Tensor.expand) == 2  # the other is the slope of a sum
    for ours, theirs in zip(found(x), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(found(x)[0], 2 * x)


@pytest.mark.parametrize("copy", [lambda x: x**1.0, lambda x: x.clone()])
def test_a_copy_that_is_written_to_stays_a_copy(copy):
    def f(x):
        own = copy(x)
        own.add_(1.0)
        return own * x

    x = torch.arange(3.0)
    found = lean(graph_of(f, x), [])
    assert torch.equal(found(x), torch.tensor([0.0, 2.0, 6.0]))
    assert torch.equal(x, torch.arange(3.0))


def test_a_power_of_one_of_what_is_written_to_later_stays():
    def f(x):
        own = x * 2
        before = own**1
        own.add_(1.0)
        return before, own

    def of_state(state, x):
        new = state.clone()
        before = new**1
        new.add_(x)
        return before * x

    x = torch.arange(3.0)
    before, own = lean(graph_of(f, x), [])(x)
    assert torch.equal(before, torch.tensor([0.0, 2.0, 4.0]))
    assert torch.equal(own, torch.tensor([1.0, 3.0, 5.0]))
    state = torch.ones(3)
    assert torch.equal(lean(graph_of(of_state, state, x), [0])(state, x), x)
    assert torch.equal(state, 1 + x)  # changed in place


@pytest.mark.parametrize("power", [1.0, 2.0, 2])
@pytest.mark.parametrize("x", [torch.arange(3), torch.tensor([True, False]), torch.arange(3.0)])
def test_powers_keep_their_kind(x, power):
    found = lean(graph_of(lambda x: x**power, x), [])(x)
    assert found.dtype == (x**power).dtype
    assert torch.equal(found, x**power)
