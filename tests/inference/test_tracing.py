import copy
import random

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from pyroccam.inference.compilation.trace import TracedBound, Untraceable
from pyroccam.inference.elbo.estimator import bound
from pyroccam.inference.training.step import CompileFallback
from scipy.stats import norm as normal
from stepping import (
    WIDTH,
    batches,
    build,
    build_fixed,
    linear,
    norm,
    stacked,
    step_of,
    tensors,
    walk,
)
from torch import nn
from uncompiled import leave_uncompiled

FALSE_ALARM = 1e-6  # of every statistical test here, were it run with another seed


class Block(nn.Module):
    """A linear layer and something that a test adds."""

    def __init__(self):
        super().__init__()
        self.f = linear()

    def forward(self, a):
        return a + self.extra(self.f(a))


class WithBranch(Block):
    def extra(self, a):
        if a.sum() > 0:
            return a.tanh()
        return a.relu()


class WithItem(Block):
    def extra(self, a):
        return a * a.detach().abs().max().item()


class WithFloat(Block):
    def extra(self, a):
        return a / float(a.detach().norm())


class WithArray(Block):
    def extra(self, a):
        return a * torch.from_numpy(np.tanh(a.detach().numpy()))


class WithList(Block):
    def extra(self, a):
        return a * torch.tensor(a.detach().tolist(), dtype=a.dtype).abs().mean()


class WithCounter(Block):
    calls = 0

    def extra(self, a):
        self.calls += 1
        return a / self.calls


class WithPythonNoise(Block):
    def extra(self, a):
        return a * random.random()


class WithHiddenState(Block):
    """A running mean that is no buffer."""

    mean = torch.zeros(WIDTH, dtype=torch.float64)

    def extra(self, a):
        self.mean = 0.9 * self.mean + 0.1 * a.detach().mean(0)
        return a - self.mean


class WithNewBuffer(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def extra(self, a):
        self.mean = 0.9 * self.mean + 0.1 * a.detach().mean(0)
        return a - self.mean


class WithChangedParameter(Block):
    def forward(self, a):
        with torch.no_grad():
            self.f.weight.clamp_(-0.1, 0.1)
        return a + self.f(a)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class WithOwnGradient(Block):
    def extra(self, a):
        return Sign.apply(a)


class WithHook(Block):
    """A test adds it: a copy would not have it."""

    def extra(self, a):
        return a


class WithChangedBatch(nn.Module):
    """The first layer: it changes its input, the batch, in place."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(2, WIDTH)

    def forward(self, x):
        return self.f(x.mul_(0.5))


def with_stem(stem, seed=0):
    model, guide = build_fixed(linear, seed)
    model.net[0] = stem.double()
    return model, guide


REFUSED = {  # message, and whether the model does the same at every call
    WithBranch: (
        r"a Python value in test_tracing.py:\d+, `if a.sum\(\) > 0:`",
        True,
    ),
    WithItem: (r"a Python value in test_tracing.py:\d+, `return a \* a.detach\(\).abs\(\)", True),
    WithFloat: (r"a Python value in test_tracing.py:\d+, `return a / float", True),
    WithArray: ("its graph gives another loss on another batch", True),
    WithList: ("its graph gives another loss on another batch", True),
    WithCounter: ("called again .* it gives another loss", False),
    WithPythonNoise: ("called again", False),
    WithHiddenState: ("called again .* it gives another loss", False),
    WithNewBuffer: (r"a new tensor in place of the buffer '.*\.mean'", True),
    WithChangedParameter: (r"it changes '.*f.weight' in place", True),
    WithOwnGradient: ("its graph gives another gradient", True),
    WithHook: (r"'.*f\.weight' has a hook", True),
}


@pytest.mark.parametrize("block", REFUSED, ids=lambda b: b.__name__)
def test_what_cannot_be_traced_runs_eagerly_and_says_why(block):
    message, same = REFUSED[block]
    pair = build_fixed(block)
    eager = copy.deepcopy(pair)
    if block is WithHook:
        for model, _ in (pair, eager):
            model.net[1].f.weight.register_hook(lambda g: 0 * g)
    step = step_of(pair, compile=True)
    with pytest.warns(CompileFallback, match=message) as warned:
        losses = [step(x, y) for x, y in batches(count=3)]
    assert len(warned) == 1
    assert "PlainNetwork cannot be traced: " in str(warned[0].message)
    assert step.describe()["kind"] == "eager"
    step.release()
    if same:
        (expected,) = walk([eager], batches(count=3))
        torch.testing.assert_close(torch.stack(losses), expected.pop("losses"), rtol=0, atol=0)
        for name, t in tensors(*pair).items():
            assert torch.equal(t, expected[name]), name


def test_a_model_that_changes_its_batch_sees_it_as_it_was():
    pair = with_stem(WithChangedBatch())
    eager = copy.deepcopy(pair)
    traced = bound(*copy.deepcopy(pair)), 54, *batches()[0], []
    with pytest.raises(Untraceable, match="it changes x in place"):
        TracedBound(*traced)
    step = step_of(pair, compile=True)
    found = batches(count=2)
    losses = [float(step(x, y)) for x, y in found]
    assert step.fallback is None
    plain = step_of(eager)
    again = batches(count=2)
    assert losses == pytest.approx([float(plain(x, y)) for x, y in again], rel=1e-9)
    for (x, _), (same, _), (before, _) in zip(found, again, batches(count=2), strict=True):
        assert torch.equal(x, before)
        assert torch.equal(same, before)


@pytest.mark.parametrize("count", [1, 2])
def test_a_cumulative_average_is_refused_at_its_line_and_runs_right(count):
    """Its number of batches is right, too: nobody has run the model without need."""

    def make(seed):
        return build_fixed(lambda: nn.Sequential(linear(), norm(momentum=None)), seed)

    pairs = [make(seed) for seed in range(count)]
    each = [batches(seed, 3) for seed in range(count)]
    step = step_of(*pairs, compile=True)
    with pytest.warns(CompileFallback, match=r"batchnorm.py:\d+, `.*num_batches_tracked"):
        losses = [step(x, y) for x, y in (each[0] if count == 1 else stacked(*each))]
    step.release()
    losses = torch.stack(losses).reshape(3, count)
    for k, one in enumerate(pairs):
        (expected,) = walk([make(k)], each[k])
        assert torch.equal(losses[:, k], expected["losses"])
        for name, t in tensors(*one).items():
            assert torch.equal(t, expected[name]), name


# -- what must not be refused -----------------------------------------------------------------


class WithConstants(Block):
    """Plain tensors, numbers and a list of them."""

    def __init__(self):
        super().__init__()
        self.shift, self.factors = torch.ones(WIDTH, dtype=torch.float64), [0.5, 2.0]
        self.calls = 0

    def extra(self, a):
        self.calls += 1  # which changes nothing
        return (a - self.shift) * self.factors[self.calls % 1]


class WithChoice(Block):
    """A choice by value, made by tensors."""

    def extra(self, a):
        return torch.where(a.sum() > 0, a.tanh(), a.relu()) + a.new_zeros(a.shape[0], 1)


def traced_of(model, guide, x, y):
    b = bound(model, guide)
    names = [name for name, p in b.named_parameters() if p.requires_grad]
    found = TracedBound(b, 54, x, y, names)
    found.check(b, x, y)
    return found


@pytest.mark.parametrize("size", [1, 2, 18])
@pytest.mark.parametrize("block", [WithConstants, WithChoice])
def test_whole_batches_and_batches_of_one(block, size):
    x, y = batches(count=1, size=size)[0]
    assert traced_of(*build_fixed(block), x, y).sites == ["y"]


@pytest.mark.parametrize("scale", [1e-9, 1e6, float("nan"), float("inf")])
def test_values_of_any_size(scale):
    """Losses that are huge, tiny beside their terms, or not finite, in single precision."""
    x, y = batches(count=1)[0]
    model, guide = build_fixed(WithChoice)
    model.float()
    with torch.no_grad():
        model.net[2].weight.mul_(scale)
    traced_of(model, guide, x.float(), y)


def test_inputs_that_are_whole_numbers():
    model, guide = with_stem(nn.EmbeddingBag(3, WIDTH))
    x = torch.arange(36).reshape(18, 2) % 3
    traced_of(model, guide, x, torch.arange(18) % 3)


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
    pairs = [build_fixed(WithConstants, seed) for seed in range(2)]
    pairs[1][0].net[1].shift = 2 * torch.ones(WIDTH, dtype=torch.float64)
    step = step_of(*pairs)
    x, y = batches(count=1)[0]
    with pytest.warns(CompileFallback, match="replicate 1 is not like the first"):
        losses = step(torch.stack([x, x]), torch.stack([y, y]))
    expected = [step_of(build_fixed(WithConstants, 0))(x, y)]
    other = build_fixed(WithConstants, 1)
    other[0].net[1].shift = 2 * torch.ones(WIDTH, dtype=torch.float64)
    expected.append(step_of(other)(x, y))
    assert torch.equal(losses, torch.stack(expected))


# -- a pair with a continuous latent ----------------------------------------------------------


class Regression(PyroModule):
    """y ~ Normal(w x, 1), w ~ Normal(0, 1)."""

    size = 54

    def forward(self, x, y=None):
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        with pyro.plate("data", self.size, subsample=x):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


class Gaussian(PyroModule):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.loc = nn.Parameter(torch.randn(2, dtype=torch.float64))
        self.log_scale = nn.Parameter(torch.randn(2, dtype=torch.float64) - 2)

    def forward(self, x, y=None):
        pyro.sample("w", dist.Normal(self.loc, self.log_scale.exp()).to_event(1))


def test_a_guide_that_draws(monkeypatch):
    """The mean of the loss and of the gradient over many draws, against their closed form."""
    leave_uncompiled(monkeypatch)
    with pyro.settings.context(module_local_params=True):
        pairs = [(Regression(), Gaussian(seed)) for seed in range(2)]
    (x, y), draws = batches(count=1)[0], 1000
    y = y.double()
    torch.manual_seed(0)
    step = step_of(*pairs, compile=True)
    wide = torch.stack([x, x]), torch.stack([y, y])
    step.prepare(x, y)
    found = [(step.evaluate(*wide), step.flats["guide"].grad.clone()) for _ in range(draws)]
    losses, gradients = (torch.stack(values) for values in zip(*found, strict=True))
    threshold = float(normal.isf(FALSE_ALARM / 20))  # 10 two-sided tests
    assert not torch.equal(losses[0], losses[1])
    for k, (_, guide) in enumerate(pairs):
        loc, scale = (t.detach().requires_grad_() for t in (guide.loc, guide.log_scale.exp()))
        fit = (y - x @ loc).square() + x.square() @ scale.square() + np.log(2 * np.pi)
        kl = 0.5 * (loc.square() + scale.square() - 1).sum() - scale.log().sum()
        exact = (54 / 18 * 0.5 * fit.sum() + kl) / 54
        error = losses[:, k].std() / draws**0.5
        assert abs(losses[:, k].mean() - exact) < threshold * error
        by_loc, by_scale = torch.autograd.grad(exact, [loc, scale])
        expected = torch.cat([by_loc, by_scale * scale]).detach()
        errors = gradients[:, k].std(0) / draws**0.5
        assert bool(((gradients[:, k].mean(0) - expected).abs() < threshold * errors).all())
    a, b = (losses[:, k] - losses[:, k].mean() for k in range(2))
    assert abs(float((a * b).mean() / (a.std() * b.std()))) < threshold / draws**0.5


def test_an_error_that_has_nothing_to_do_with_values_names_its_line():
    class Wrong(Block):
        def extra(self, a):
            raise KeyError("lost")

    x, y = batches(count=1)[0]
    with pytest.raises(Untraceable, match=r"KeyError in test_tracing.py:\d+, `raise KeyError"):
        traced_of(*build_fixed(Wrong), x, y)


def test_the_terms_by_themselves():
    """``in_terms``: likelihood and KL, whatever the weight of the KL is in the loss."""
    with pyro.settings.context(module_local_params=True):
        b = bound(Regression(), Gaussian(0))
    (x, y) = batches(count=1)[0]
    y, names = y.double(), [name for name, _ in b.named_parameters()]
    tensors = {f"bound.{n}": t.detach() for n, t in [*b.named_parameters(), *b.named_buffers()]}
    b.kl_weight.fill_(0.25)
    found = {}
    for in_terms in (False, True):
        traced = TracedBound(b, 54, x, y, names, in_terms=in_terms)
        traced.check(b, x, y)
        state = [tensors[name] for name in traced.state_names]
        params = [tensors[f"bound.{name}"] for name in names]
        torch.manual_seed(0)
        found[in_terms], (seen,) = traced.graph(params, state, x, y)
    log_likelihood, kl = found[True]
    assert torch.allclose(found[False], 0.25 * kl - log_likelihood, rtol=1e-12, atol=0)
    assert float(log_likelihood) == pytest.approx(float(seen.sum()) / 18, rel=1e-12)
    scale = b.guide.log_scale.exp()
    exact = 0.5 * (b.guide.loc.square() + scale.square() - 1).sum() - scale.log().sum()
    assert float(kl) == pytest.approx(exact.item() / 54, rel=1e-12)
