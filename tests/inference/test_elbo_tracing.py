"""The bound of two modules: as a graph of tensor operations, without side effects, by site."""

import logging
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import (
    DRAWN,
    MASK,
    B,
    K,
    Linear,
    LinearGuide,
    N,
    assert_same,
    double_precision,
    graded,
    linear_data,
    numbers,
)
from pyro import poutine
from pyroccam import guides, models
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO, bound
from pyroccam.models.parameters import LocalModule
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

float64 = pytest.fixture(autouse=True)(double_precision)


# -- as a graph of tensor operations --------------------------------------------------------------


class Data:
    N, task, outputs, input_shape = N, "classification", 3, (2,)


def depth_model():
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    model = models.LearntDepth(nn.Linear(2, 4), blocks, nn.Linear(4, 3), data=Data)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=i))
    return model


class Positive(LocalModule):
    def forward(self, x, y):
        s = pyro.sample("s", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(x[:, 0], s), obs=y)


class PositiveGuide(LocalModule):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, y):
        pyro.sample("s", dist.LogNormal(self.mu, 0.3))


class Counts(LocalModule):
    def forward(self, x, y):
        n = pyro.sample("n", dist.Bernoulli(0.4))
        with pyro.plate("data", N, subsample=x):
            m = pyro.sample("m", dist.Bernoulli(torch.tensor([0.1, 0.2])).to_event(1))
            pyro.sample("y", dist.Normal(x[:, 0] * n + m.sum(-1), 1.0), obs=y)


class CountsGuide(LocalModule):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.3))
        self.b = nn.Parameter(torch.tensor([0.1, -0.4]))

    def forward(self, x, y):
        pyro.sample("n", dist.Bernoulli(logits=self.a), infer=DRAWN)
        with pyro.plate("data", N, subsample=x):
            q = dist.Bernoulli(logits=self.b + x)
            pyro.sample("m", q.to_event(1))


def depth_pair(guide):
    model = depth_model()
    return model, guide(model)


TRACEABLE = {
    "depth": lambda: depth_pair(guides.CategoricalDepth),
    "depth summed out": lambda: depth_pair(guides.Marginal),
    "union": lambda: (Linear(), LinearGuide(family=dist.Normal)),
    "log-ratio": lambda: (Positive(), PositiveGuide()),
    "score function": lambda: (Counts(), CountsGuide()),
}


@pytest.mark.parametrize("name", TRACEABLE)
def test_the_bound_traces_to_a_graph(name):
    """The graph agrees on other parameters, other data and another weight, gradients included."""
    b = bound(*TRACEABLE[name]())
    names = [n for n, _ in b.named_parameters()]
    x, y = linear_data()
    y = torch.arange(N) % 3 if "depth" in name else y

    def call(values, weight, x, y):
        named = {**dict(zip(names, values, strict=True)), "kl_weight": weight}
        return functional_call(b, named, (x, y))

    values = [p.detach().requires_grad_() for p in b.parameters()]
    one = torch.ones(())
    with pyro.validation_enabled(False):
        graph = make_fx(call, pre_dispatch=True)(values, one, x, y)  # max_plate_nesting unknown
        others = [(v.detach() + 0.1).requires_grad_() for v in values]
        weight = one if name == "depth summed out" else one / 4
        x, y = x.roll(1, 0) + 0.2, y.roll(2, 0)
        found = []
        for f in (call, graph):
            torch.manual_seed(8)
            found.append((graded(f(others, weight, x, y), others), torch.randn(())))
    (eager, next_of_eager), (traced, next_of_traced) = found
    assert_same(traced, eager)
    assert next_of_traced == next_of_eager  # and the same random numbers were used up
    assert all(s.op != "get_attr" or s.target.startswith("_tensor_") for s in graph.graph.nodes)
    torch.manual_seed(8)
    with_checks = call(others, weight, x, y)
    torch.testing.assert_close(with_checks.detach(), eager[0], rtol=1e-12, atol=1e-12)


# -- side effects ---------------------------------------------------------------------------------


class Counter(LocalModule):
    """With a buffer that every call moves, and noise."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5))

    def forward(self, x, y):
        k = pyro.sample("k", dist.Categorical(logits=torch.zeros(K)))
        out = self.part("net")(x).sum(-1)
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(out * k, 1.0), obs=y)


class CounterGuide(LocalModule):
    def forward(self, x, y):
        pyro.sample("k", dist.Categorical(logits=torch.zeros(K)))


def test_finding_the_nesting_leaves_nothing_behind():
    """The first call costs no random number, moves no buffer twice and logs nothing."""
    x, y = linear_data()
    records = []

    class Listener(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    logger = logging.getLogger("pyro")
    before = (logger.level, list(logger.handlers), logger.propagate)
    listener = Listener()
    logger.addHandler(listener)
    try:
        found = []
        for nesting in (float("inf"), 1):
            model = Counter()
            torch.manual_seed(0)
            b = bound(model, CounterGuide(), max_plate_nesting=nesting)
            loss = b(x, y)
            mean = model._modules["net"][0].running_mean
            found.append((loss, mean.clone(), torch.randn(())))
            torch.testing.assert_close(mean, 0.1 * x.mean(0))
            assert b.elbo.max_plate_nesting == 1
    finally:
        logger.removeHandler(listener)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert records == []
    assert before == (logger.level, list(logger.handlers), logger.propagate)


def test_a_pair_without_latents_and_terms_by_site():
    class Plain(LocalModule):
        def forward(self, x, y):
            with pyro.plate("data", N, subsample=x), poutine.mask(mask=MASK[: len(x)]):
                pyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)
            pyro.deterministic("note", x.sum())

    class Empty(LocalModule):
        def forward(self, x, y):
            pyro.deterministic("remark", x.sum())

    x, y = linear_data()
    terms = bound(Plain(), Empty()).terms(x[:B], y[:B])
    rows = torch.distributions.Normal(x[:B, 0], 1.0).log_prob(y[:B]) * MASK[:B]
    assert float(terms.kl) == 0.0
    assert list(terms.by_site) == ["y"]
    torch.testing.assert_close(terms.by_site["y"], rows)
    torch.testing.assert_close(terms.log_likelihood, rows.sum() * N / B)
    assert math.isfinite(EnumMeanFieldELBO().loss_and_grads(Plain(), Empty(), x, y))
