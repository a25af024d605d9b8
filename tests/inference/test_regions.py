"""Equal parts of a graph are compiled once, and the graph computes what it did."""

import itertools

import pytest
import torch
from pyroccam.inference.compilation import graph_of, in_regions, inductor
from stepping import WIDTH
from torch.testing import assert_close as assert_near
from uncompiled import leave_uncompiled

D = 6


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that the compiler is given."""
    return leave_uncompiled(monkeypatch)


def parted(f, *inputs, lying=None):
    """A function of tensors as calls of compiled parts; uncompiled where the fixture is used."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        graph = graph_of(f, *(t.clone() for t in inputs))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return in_regions(graph, inductor.compiled, lying)


def block(x, weight):
    """Enough operations to be a part."""
    y = torch.tanh(x @ weight.t()).square() + 0.5
    mean = y.mean(0)
    return x + (y - mean) * torch.rsqrt(y.var(0) + 1e-3)


def exits(x, weights):
    """What each of a chain of blocks gives."""
    return list(itertools.accumulate([x, *weights], block))[1:]


def tensors(*shapes, count=D):
    """Of the first shapes, rows and others, and ``count`` square ones."""
    torch.manual_seed(0)
    shapes = (7, WIDTH), *shapes, *[(WIDTH, WIDTH)] * count
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


# -- what is computed -------------------------------------------------------------------------


def joined(x, *weights):
    every = exits(x, weights)
    whole = torch.cat(every)
    return whole.sum(), whole.view(-1), every[1]


def joined_thrice(x, *weights):
    every = exits(x, weights)
    return torch.cat(every).sum(), (torch.cat(every) ** 2).sum(), torch.cat(every[::-1], 1).sin()


def of_two_dtypes(x, *weights):
    return [torch.cat([*exits(x.float(), [w.float() for w in weights]), x]).sum()]


def halves_of_an_input(x, both, *weights):
    first, second = both.chunk(2)
    return [exits(x @ first, weights)[-1] @ second]


def changed_in_place(x, *weights):
    total = torch.zeros_like(x)
    for weight in weights:
        x = block(x, weight)
        total.add_(x)
    return [total]


def views_of_inputs(x, *weights):
    first, second = torch.zeros_like(x).add(x).unbind(0)[:2]
    return [exits(x, weights)[-1] + first + second.view(-1)]


def noisy(x, *weights):
    for weight in weights:
        x = block(x, weight) * torch.rand_like(x)
    return [x + torch.randn_like(x)]


@pytest.mark.parametrize("f", [
    joined, joined_thrice, of_two_dtypes, halves_of_an_input, changed_in_place, views_of_inputs,
    noisy,
])  # fmt: skip
def test_parts_compute_what_the_whole_does(f, graphs):
    """What is returned is not overwritten by the next call; noise is drawn in the same order."""
    inputs = tensors(*([(2 * WIDTH, WIDTH)] if f is halves_of_an_input else []))
    g = parted(f, *inputs)
    torch.manual_seed(1)
    first = list(g(*inputs))
    torch.manual_seed(1)
    assert_near(first, list(f(*inputs)))
    kept = [t.clone() for t in first]
    g(*(2 * t for t in inputs))
    assert_near(first, kept, rtol=0, atol=0)
    assert (len(graphs) > 1) is (f is not changed_in_place)


def chain(x, *weights):
    """Equal blocks whose exits are joined, with the gradient of all weights in one row."""

    def loss(weights):
        return torch.cat([x, *exits(x, weights)]).square().mean()

    grads, value = torch.func.grad_and_value(loss)(list(weights))
    return value, torch.cat([g.reshape(-1) for g in grads])


def test_equal_blocks_are_compiled_once(graphs):
    sizes = []
    for depth in (5, 10):
        graphs.clear()
        inputs = tensors(count=depth)
        row = torch.zeros(depth * WIDTH * WIDTH, dtype=torch.float64)
        f = parted(chain, *inputs, lying={1: row})
        # The blocks forwards and backwards, what comes before, between and after.
        assert len(graphs) <= 5
        parts = [g for g in graphs if not any("cat" in str(n.target) for n in g.graph.nodes)]
        sizes.append(sorted(len(g.graph.nodes) for g in parts)[-2:])
        for scale in (1.0, 0.5, 2.0):
            now = [scale * t for t in inputs]
            value, there = f(*now)
            assert there is None
            assert_near((value, row), chain(*now))
    assert sizes[0] == sizes[1]


# -- what lies where it is wanted -------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_an_input_is_replaced_only_after_it_was_read(late, graphs):
    def f(x, state, *weights):
        new = 0.9 * state + x.mean(0)
        x = exits(x, weights)[-1]
        return (x + state.view(-1) if late else x).sum(), new

    x, state, *weights = tensors((WIDTH,))
    expected = f(x, state, *weights)
    held = state.clone()
    value, new = parted(f, x, state, *weights, lying={1: 1})(x, held, *weights)
    assert len(graphs) > 1
    assert_near(value, expected[0])
    assert (new is None) is not late
    assert_near(held if new is None else new, expected[1])
    if late:
        assert_near(held, state, rtol=0, atol=0)


def test_a_view_of_what_lies_elsewhere_is_not_overwritten(graphs):
    def f(x, *weights):
        whole = torch.cat(exits(x, weights))
        return whole, whole.view(-1)

    inputs = tensors()
    g = parted(f, *inputs, lying={0: torch.zeros(D * 7, WIDTH, dtype=torch.float64)})
    _, first = g(*inputs)
    kept = first.clone()
    g(*(2 * t for t in inputs))
    assert_near(first, kept, rtol=0, atol=0)


def views_from_elsewhere(x, states, *weights):
    views = [state.view(1, 7, WIDTH) for state in states]
    x, new = x + sum(view.sum() for view in views) * 0.01, []
    for weight, state, view in zip(weights, states, views, strict=True):
        x = torch.tanh(x @ weight.t())
        new.append(0.9 * state + 0.1 * x)
        x = torch.sin((x.square() + 0.5) @ weight) * 0.7
        x = ((x @ weight.t()) * view).cos()[0] @ weight
    return x, *new


def test_states_are_replaced_as_they_would_be():
    """Compiled in earnest: only a compiler changes the order."""
    inputs = tensors(*[(7, WIDTH)] * D)

    def flat(x, *rest):
        return views_from_elsewhere(x, rest[:D], *rest[D:])

    expected, held = flat(*inputs), [t.clone() for t in inputs]
    x, *new = parted(flat, *inputs, lying={1 + k: 1 + k for k in range(D)})(*held)
    found = [a if b is None else b for a, b in zip(held[1 : 1 + D], new, strict=True)]
    assert_near([x, *found], list(expected))


def test_a_part_that_is_compiled_does_what_it_did():
    """Views, changes of its own, a slot, noise, and entries that are picked one for each row."""

    def f(x, index, slot):
        own = torch.zeros_like(x).add_(x)
        own[:, 0] *= 2.0
        logits = own.log_softmax(-1)
        picked = logits.gather(-1, index[:, None]).squeeze(-1)
        spread = torch.zeros_like(x).scatter_add(-1, index[:, None], picked[:, None])
        several = torch.zeros_like(x).scatter_add(-1, index[:, None].expand(-1, 2), x[:, :2])
        noise = torch.randn_like(x)
        slot.copy_(picked.exp())
        return own.t(), picked, spread, several, noise, logits.argmax(-1)

    x, index, slot = torch.randn(6, 3), torch.tensor([0, 2, 1, 1, 0, 2]), torch.zeros(6)
    with torch.random.fork_rng(devices=[]):
        graph = graph_of(f, x, index, slot.clone())
    layouts = [(t.shape, t.stride(), t.dtype, t.device) for t in (x, index, slot)]
    before = torch.get_rng_state()
    call, strides = inductor.compiled(graph, layouts)
    assert torch.equal(torch.get_rng_state(), before)
    for scale in (1.0, 3.0):
        ours, theirs = torch.zeros(6), torch.zeros(6)
        torch.manual_seed(2)
        expected = f(scale * x, index, theirs)
        torch.manual_seed(2)
        found = call([scale * x, index, ours])
        assert [t.stride() for t in found] == strides == [t.stride() for t in expected]
        assert_near([*found, ours], [*expected, theirs])
