"""A pair as a graph: what is refused and why, what is not, and what it leaves as it was."""

import copy

import pyro
import pytest
import torch
from fitting import blobs
from plain import network
from pyroccam import guides, models
from pyroccam.inference.compilation import TracedBound, Untraceable
from pyroccam.inference.elbo import bound
from pyroccam.inference.training import CompileFallback
from stepping import (
    WIDTH,
    batches,
    build,
    build_fixed,
    linear,
    step_of,
    tensors,
    walk,
)
from torch import nn


def pair_of(forward, seed=0, buffer=False):
    """Around a block of a linear layer and what a test adds to it."""

    def block():
        made = network(lambda net, a: a + forward(net, net.f(a)), f=linear(), calls=0)
        made.mean = torch.zeros(WIDTH, dtype=torch.float64)
        if buffer:
            del made.mean
            made.register_buffer("mean", torch.zeros(WIDTH))
        return made

    return build_fixed(block, seed)


def branch(net, a):
    return a.tanh() if a.sum() > 0 else a.relu()


def item(net, a):
    return a * a.detach().abs().max().item()


def counter(net, a):
    net.calls += 1
    return a / net.calls


def hidden_state(net, a):
    net.mean = 0.9 * net.mean + 0.1 * a.detach().mean(0)
    return a - net.mean


def changed_parameter(net, a):
    with torch.no_grad():
        net.f.bias.clamp_(-0.1, 0.1)
    return a


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def own_gradient(net, a):
    return Sign.apply(a)


def same(net, a):
    return a


REFUSED = {  # message, and whether the model does the same at every call
    branch: (r"a Python value in test_tracing.py:\d+, `return a.tanh\(\) if", True),
    item: (r"a Python value in test_tracing.py:\d+, `return a \* a.detach\(\).abs\(\)", True),
    counter: ("called again .* it gives another loss", False),
    hidden_state: (r"a new tensor in place of the buffer '.*\.mean'", True),
    changed_parameter: (r"it changes '.*f.bias' in place", True),
    own_gradient: ("its graph gives another gradient", True),
    same: (r"'.*f\.weight' has a hook", True),
}


@pytest.mark.parametrize("forward", REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_traced_runs_eagerly_and_says_why(forward):
    message, same_again = REFUSED[forward]
    pair = pair_of(forward, buffer=forward is hidden_state)
    eager = copy.deepcopy(pair)
    if forward is same:
        for model, _ in (pair, eager):
            model.net[1].f.weight.register_hook(lambda g: 0 * g)
    step = step_of(pair, compile=True)
    with pytest.warns(CompileFallback, match=message) as warned:
        losses = [step(x, y) for x, y in batches(count=3)]
    assert len(warned) == 1
    assert step.describe()["kind"] == "eager"
    step.release()
    if same_again:
        (expected,) = walk([eager], batches(count=3))
        torch.testing.assert_close(torch.stack(losses), expected.pop("losses"), rtol=0, atol=0)
        for name, t in tensors(*pair).items():
            assert torch.equal(t, expected[name]), name


def test_a_model_that_changes_its_batch_sees_it_as_it_was():
    pair = build_fixed(linear)
    pair[0].net[0] = network(lambda net, x: net.f(x.mul_(0.5)), f=nn.Linear(2, WIDTH)).double()
    eager = copy.deepcopy(pair)
    with pytest.raises(Untraceable, match="it changes x in place"):
        TracedBound(bound(*copy.deepcopy(pair)), 54, *batches()[0], [])
    (found,) = walk([pair], given := batches(count=2), "graph")
    (expected,) = walk([eager], batches(count=2))
    torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-9, atol=0)
    for (x, _), (before, _) in zip(given, batches(count=2), strict=True):
        assert torch.equal(x, before)


def test_an_error_that_has_nothing_to_do_with_values_names_its_line():
    def wrong(net, a):
        raise KeyError("lost")

    with pytest.raises(Untraceable, match=r"KeyError in test_tracing.py:\d+, `raise KeyError"):
        traced_of(*pair_of(wrong), *batches(count=1)[0])


# -- what must not be refused -----------------------------------------------------------------


def constants(net, a):
    net.calls += 1  # which changes nothing
    return (a - net.mean - 1.0) * [0.5, 2.0][net.calls % 1]


def choice(net, a):
    return torch.where(a.sum() > 0, a.tanh(), a.relu()) + a.new_zeros(a.shape[0], 1)


def traced_of(model, guide, x, y):
    b = bound(model, guide)
    names = [name for name, p in b.named_parameters() if p.requires_grad]
    found = TracedBound(b, 54, x, y, names)
    found.check(b, x, y)
    return found


def random_weights():
    net = nn.Linear(2, 3).double()
    model = models.BayesianNetwork(net, blobs(), prior=models.priors.GroupNormalJeffreys())
    return model, guides.MeanField(model)


def summed_out():
    model, _ = build()
    return model, guides.Marginal(model)


@pytest.mark.parametrize("make", [random_weights, summed_out, build])
def test_pairs_that_are_traced(make):
    """The check compares losses and gradients, on another batch, too."""
    size = 54 if make is summed_out else 18
    x, y = batches(count=1, size=size)[0]
    assert traced_of(*make(), x, y).sites == ["y"]


@pytest.mark.parametrize("forward", [constants, choice])
def test_whole_batches_and_batches_of_one(forward):
    for size in (1, 18):
        x, y = batches(count=1, size=size)[0]
        assert traced_of(*pair_of(forward), x, y).sites == ["y"]


@pytest.mark.parametrize("scale", [1e-9, 1e6, float("nan"), float("inf")])
def test_values_of_any_size(scale):
    """Losses that are huge, tiny beside their terms, or not finite, in single precision."""
    x, y = batches(count=1)[0]
    model, guide = pair_of(choice)
    model.float()
    with torch.no_grad():
        model.net[2].weight.mul_(scale)
    traced_of(model, guide, x.float(), y)


def test_tracing_leaves_everything_as_it_was():
    model, guide = build("norm")
    before = tensors(model, guide)
    numbers = torch.get_rng_state()
    pyro.enable_validation(True)
    flags = torch.is_grad_enabled(), pyro.infer.util.is_validation_enabled()
    x, y = batches(count=1)[0]
    traced_of(model, guide, x, y)
    step = step_of((model, guide), compile="graph")
    step.prepare(x, y)
    step._graph(x, y)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert flags == (torch.is_grad_enabled(), pyro.infer.util.is_validation_enabled())
    for name, t in tensors(model, guide).items():
        assert torch.equal(t, before[name]), name


def test_a_replicate_that_is_another_function_is_found():
    """Plain attributes are not stacked: those of the first are in the graph."""

    def make(seed):
        pair = pair_of(constants, seed)
        pair[0].net[1].mean += seed
        return pair

    step = step_of(make(0), make(1))
    x, y = batches(count=1)[0]
    with pytest.warns(CompileFallback, match="replicate 1 is not like the first"):
        losses = step(torch.stack([x, x]), torch.stack([y, y]))
    assert torch.equal(losses, torch.stack([step_of(make(seed))(x, y) for seed in range(2)]))
