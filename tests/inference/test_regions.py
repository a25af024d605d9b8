"""Equal parts of a graph are compiled once, and the graph computes what it did."""

import itertools

import numpy as np
import pytest
import torch
from pyroccam.inference.compilation import inductor
from pyroccam.inference.compilation.graphs import graph_of
from pyroccam.inference.compilation.region_calls import in_regions
from pyroccam.inference.compilation.regions import LEAST, SHORTEST, repeats
from stepping import WIDTH, Residual, assert_close, batches, build, linear, norm, stacked, walk
from torch import nn
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


def tensors(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


# -- where a sequence repeats itself ----------------------------------------------------------


def brute_force(codes):
    """The most codes that one stretch of periods says again."""
    best = 0
    for start, period in itertools.product(range(len(codes)), range(SHORTEST, len(codes))):
        count = 1
        while list(codes[start : start + period]) == list(
            codes[start + count * period : start + (count + 1) * period]
        ):
            count += 1
        if count >= LEAST:
            best = max(best, (count - 1) * period)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_stretch_of_which_most_is_said_again_is_found(seed):
    random = np.random.default_rng(seed)
    part = list(random.integers(0, 3, SHORTEST + seed % 3))
    codes = [*random.integers(0, 3, seed), *(part * (LEAST + seed % 2)), *random.integers(0, 3, 7)]
    found = repeats(np.array(codes))
    for start, stop, period in found:
        assert codes[start : stop - period] == codes[start + period : stop]
        assert (stop - start) // period >= LEAST
    saved = [((stop - start) // period - 1) * period for start, stop, period in found]
    assert max(saved) == brute_force(codes) >= (LEAST - 1) * SHORTEST


def test_two_stretches_are_found_from_left_to_right():
    forward, backward = list(range(10)), list(range(20, 32))
    codes = [99, *forward * 5, 98, 97, *backward * 6, 96]
    assert repeats(np.array(codes)) == [(1, 51, 10), (53, 125, 12)]
    assert repeats(np.array(codes[:35])) == []
    assert repeats(np.array([], dtype=int)) == []


# -- what is computed -------------------------------------------------------------------------


def chain(x, *weights):
    """Equal blocks whose exits are joined, with the gradient of all weights in one row."""

    def loss(weights):
        exits = [x]
        for weight in weights:
            exits.append(block(exits[-1], weight))
        return torch.cat(exits).square().mean()

    grads, value = torch.func.grad_and_value(loss)(list(weights))
    return value, torch.cat([g.reshape(-1) for g in grads])


@pytest.mark.parametrize("depth", [LEAST, 9])
def test_equal_blocks_are_compiled_once(depth, graphs):
    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * depth)
    row = torch.zeros(depth * WIDTH * WIDTH, dtype=torch.float64)
    f = parted(chain, *inputs, lying={1: row})
    # The blocks forwards and backwards, what comes before, between and after.
    assert len(graphs) <= 5
    assert len(f.graph.nodes) > 2 * depth
    for scale in (1.0, 0.5, 2.0):
        now = [scale * t for t in inputs]
        value, there = f(*now)
        expected = chain(*now)
        assert there is None
        assert_near((value, row), expected)


def test_graphs_do_not_grow_with_the_number_of_blocks(graphs):
    sizes = []
    for depth in (5, 10):
        graphs.clear()
        parted(chain, *tensors((7, WIDTH), *[(WIDTH, WIDTH)] * depth))
        parts = [g for g in graphs if not any("cat" in str(n.target) for n in g.graph.nodes)]
        sizes.append(sorted(len(g.graph.nodes) for g in parts)[-2:])
    assert sizes[0] == sizes[1]


def test_what_is_returned_is_not_overwritten_by_the_next_call(graphs):
    def f(x, *weights):
        exits = [x]
        for weight in weights:
            exits.append(block(exits[-1], weight))
        joined = torch.cat(exits[1:])
        return joined.sum(), joined.view(-1), exits[2]

    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D)
    g = parted(f, *inputs)
    first = g(*inputs)
    kept = [t.clone() for t in first]
    g(*(2 * t for t in inputs))
    assert_near(list(first), kept, rtol=0, atol=0)
    assert_near(kept, list(f(*inputs)))


@pytest.mark.parametrize("late", [False, True])
def test_an_input_is_replaced_only_after_it_was_read(late, graphs):
    def f(x, state, *weights):
        new = 0.9 * state + x.mean(0)
        for weight in weights:
            x = block(x, weight)
        return (x + state.view(-1) if late else x).sum(), new

    x, state, *weights = tensors((7, WIDTH), (WIDTH,), *[(WIDTH, WIDTH)] * D)
    expected = f(x, state, *weights)
    held = state.clone()
    value, new = parted(f, x, state, *weights, lying={1: 1})(x, held, *weights)
    assert len(graphs) > 1
    assert_near(value, expected[0])
    assert (new is None) is not late
    assert_near(held if new is None else new, expected[1])
    if late:
        assert_near(held, state, rtol=0, atol=0)


def test_what_is_returned_beside_what_replaces_it_stays(graphs):
    """The old value of an input, and a new one that is an output of its own, too."""

    def f(x, one, two, *weights):
        new = 0.9 * one + x.mean(0), 0.5 * two
        for weight in weights:
            x = block(x, weight)
        return x.sum(), one, *new, new[1]

    inputs = tensors((7, WIDTH), (WIDTH,), (WIDTH,), *[(WIDTH, WIDTH)] * D)
    held = [t.clone() for t in inputs]
    found = parted(f, *inputs, lying={2: 1, 3: 2})(*held)
    assert_near(list(found), list(f(*inputs)))
    assert_near(held, inputs, rtol=0, atol=0)


def assert_states_are_replaced(f):
    """By a graph of parts: of an input, D weights and D states, whose new values follow."""
    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D, *[(7, WIDTH)] * D)
    expected, held = f(*inputs), [t.clone() for t in inputs]
    x, *new = parted(f, *inputs, lying={1 + k: 1 + D + k for k in range(D)})(*held)
    given = held[1 + D :]
    found = [a if b is None else b for a, b in zip(given, new, strict=True)]
    assert_near([x, *found], list(expected))


def test_views_from_elsewhere_are_read_before_their_input_is_replaced():
    """Compiled in earnest: only a compiler changes the order."""

    def f(x, *rest):
        weights, states = rest[:D], rest[D:]
        views = [state.view(1, 7, WIDTH) for state in states]
        x = x + sum(view.sum() for view in views) * 0.01
        new = []
        for weight, state, view in zip(weights, states, views, strict=True):
            x = torch.tanh(x @ weight.t())
            new.append(0.9 * state + 0.1 * x)
            x = torch.sin((x.square() + 0.5) @ weight) * 0.7
            x = ((x @ weight.t()) * view).cos()[0] @ weight
        return x, *new

    assert_states_are_replaced(f)


def test_an_input_that_comes_twice_is_not_replaced():
    """Compiled in earnest, as above: each block reads the state of the next, the last its own."""

    def f(x, *rest):
        weights, states = rest[:D], rest[D:]
        new = []
        for k, (weight, state) in enumerate(zip(weights, states, strict=True)):
            x = torch.tanh(x @ weight.t())
            new.append(0.9 * state + 0.1 * x)
            x = torch.sin((x.square() + 0.5) @ weight) * 0.7
            x = ((x @ weight.t()) * states[min(k + 1, D - 1)]).cos() @ weight
        return x, *new

    assert_states_are_replaced(f)


def test_a_view_of_what_lies_elsewhere_is_not_overwritten(graphs):
    def f(x, *weights):
        exits = [x]
        for weight in weights:
            exits.append(block(exits[-1], weight))
        joined = torch.cat(exits[1:])
        return joined, joined.view(-1)

    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D)
    row = torch.zeros(D * 7, WIDTH, dtype=torch.float64)
    g = parted(f, *inputs, lying={0: row})
    _, first = g(*inputs)
    kept = first.clone()
    g(*(2 * t for t in inputs))
    assert_near(first, kept, rtol=0, atol=0)


def test_pieces_of_two_joined_tensors(graphs):
    def f(x, *weights):
        exits = [x]
        for weight in weights:
            exits.append(block(exits[-1], weight))
        exits = exits[1:]
        return (
            torch.cat(exits).sum(),
            (torch.cat(exits) ** 2).sum(),
            torch.cat(exits[::-1], 1).sin(),
        )

    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D)
    assert_near(list(parted(f, *inputs)(*inputs)), list(f(*inputs)))


def test_pieces_of_another_dtype(graphs):
    def f(x, *weights):
        exits = [x]
        for weight in weights:
            exits.append(block(exits[-1], weight))
        return torch.cat([*exits[1:], exits[0].double()]).sum()

    inputs = [t.float() for t in tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D)]
    assert_near(parted(f, *inputs)(*inputs), f(*inputs))


def test_parts_of_an_input_that_are_used_far_from_each_other(graphs):
    def f(x, both, *weights):
        first, second = both.chunk(2)
        x = x @ first
        for weight in weights:
            x = block(x, weight)
        return x @ second

    inputs = tensors((7, WIDTH), (2 * WIDTH, WIDTH), *[(WIDTH, WIDTH)] * D)
    assert_near(parted(f, *inputs)(*inputs), f(*inputs))
    assert len(graphs) > 1


def test_statistics_of_all_blocks_are_written_in_place(graphs):
    def f(x, *rest):
        weights, states = rest[:D], rest[D:]
        new = []
        for weight, state in zip(weights, states, strict=True):
            x = block(x, weight)
            new.append(state.clone().mul_(0.9).add_(x.mean(0), alpha=0.1))
        return x.sum(), *new

    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D, *[(WIDTH,)] * D)
    expected = f(*inputs)
    g = parted(f, *inputs, lying={1 + i: 1 + D + i for i in range(D)})
    value, *new = g(*inputs)
    assert new == [None] * D
    assert_near((value, *inputs[1 + D :]), expected)


def test_what_is_changed_in_place_and_seen_elsewhere_is_one_graph(graphs):
    def f(x, *weights):
        total = torch.zeros_like(x)
        for weight in weights:
            x = block(x, weight)
            total.add_(x)
        return total

    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D)
    assert_near(parted(f, *inputs)(*inputs), f(*inputs))
    assert len(graphs) == 1


def test_views_of_what_depends_on_inputs_alone(graphs):
    def f(x, *weights):
        first, second = torch.zeros_like(x).add(x).unbind(0)[:2]
        for weight in weights:
            x = block(x, weight)
        return x + first + second.view(-1)

    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D)
    assert_near(parted(f, *inputs)(*inputs), f(*inputs))


def test_noise_is_drawn_in_the_same_order(graphs):
    def f(x, *weights):
        for weight in weights:
            x = block(x, weight) * torch.rand_like(x)
        return x + torch.randn_like(x)

    inputs = tensors((7, WIDTH), *[(WIDTH, WIDTH)] * D)
    g = parted(f, *inputs)
    torch.manual_seed(1)
    found = g(*inputs)
    torch.manual_seed(1)
    assert_near(found, f(*inputs))
    assert len(graphs) > 1


# -- whole steps ------------------------------------------------------------------------------

BLOCKS = {
    "norms": lambda: [Residual(linear(), nn.Tanh(), norm()) for _ in range(D)],
    "two kinds": lambda: [
        Residual(linear(), nn.Tanh(), norm()) if i % 2 else Residual(nn.LayerNorm(WIDTH), linear())
        for i in range(2 * D)
    ],
}


@pytest.mark.parametrize("blocks", list(BLOCKS))
@pytest.mark.parametrize("count", [1, 2])
def test_steps_of_equal_blocks(blocks, count, graphs):
    """Losses, weights and running statistics after some steps, against Pyro's own."""

    def pairs():
        return [build(BLOCKS[blocks], seed) for seed in range(count)]

    sequences = [batches(seed) for seed in range(count)]
    expected = [walk([one], seq)[0] for one, seq in zip(pairs(), sequences, strict=True)]
    found = walk(pairs(), sequences[0] if count == 1 else stacked(*sequences), True)
    assert len(graphs) >= 3
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


# -- compiled in earnest ----------------------------------------------------------------------


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
        for a, b in zip([*found, ours], [*expected, theirs], strict=True):
            assert_near(a, b)
