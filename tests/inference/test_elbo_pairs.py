"""The bound of a pair: what it refuses, what it leaves as it was, and its terms by site."""

import logging
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import (
    MASK,
    B,
    K,
    N,
    X,
    double_precision,
    linear_data,
)
from pyro import poutine
from pyro.infer import autoguide
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO, bound
from pyroccam.models.parameters import LocalModule
from torch import nn

float64 = pytest.fixture(autouse=True)(double_precision)

# -- what is refused ------------------------------------------------------------------------------

NORMAL, COIN = dist.Normal(0.0, 1.0), dist.Bernoulli(0.5)


def sampled(name, fn, **infer):
    return lambda x=None: pyro.sample(name, fn, infer=infer)


def observe(x, mean=0.0, **more):
    with pyro.plate("data", N, subsample=x):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=x, **more)


def both(*calls):
    return lambda x: [call(x) for call in calls]


def nothing(x):
    return None


k, w = sampled("k", COIN), sampled("w", NORMAL)
summed = sampled("k", COIN, enumerate="parallel")


def in_a_plate(inner, name="data", size=N):
    def call(x):
        with pyro.plate(name, size):
            return inner(x)

    return call


def markov(x):
    for t in pyro.markov(range(3)):
        sampled(f"k{t}", COIN)()


def outside_of_its_plate(x):
    drawn = in_a_plate(k, "edges", 2)(x)
    observe(x, drawn.sum(-1, keepdim=True) if drawn.dim() == 1 else drawn[..., :1])


def with_many_scales(x):
    with pyro.plate("data", N), poutine.scale(scale=torch.ones(N)):
        pyro.sample("y", dist.Normal(summed(), 1.0), obs=x)


def over_a_plate(x):
    j = sampled("j", COIN, enumerate="parallel")()
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(j * k(), 1.0), obs=x)


REFUSED = {  # models and guides
    "another site": (both(w, observe), sampled("v", NORMAL)),
    "what is observed": (observe, sampled("y", dist.Normal(torch.zeros(N), 1.0).to_event(1))),
    "no guide of a weight": (both(k, w), k),
    "no guide of a structure": (both(k, observe), nothing),
    "sequential": (k, sampled("k", COIN, enumerate="sequential")),
    "samples in the guide": (k, sampled("k", COIN, enumerate="parallel", num_samples=5)),
    "samples in the model": (sampled("k", COIN, enumerate="parallel", num_samples=5), nothing),
    "a markov guide": (markov, markov),
    "the inside, outside": (outside_of_its_plate, in_a_plate(k, "edges", 2)),
    "a sum over a minibatch": (lambda x: observe(x[:4], summed()), nothing),
    "a sum with many scales": (with_many_scales, nothing),
    "a sum over a plate": (over_a_plate, in_a_plate(k)),
    "a messenger": (w, autoguide.AutoNormalMessenger(w)),
    "a draw outside the support": (
        sampled("w", dist.HalfNormal(1.0)), sampled("w", dist.Normal(-5.0, 0.1))
    ),
    "missing observations": (lambda x: observe(x, obs_mask=MASK), nothing),
    "no plate": (sampled("w", dist.Normal(torch.zeros(3, 1), 1.0)),) * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    nesting = 1 if name == "no plate" else math.inf
    with pytest.raises(PyroccamError):
        EnumMeanFieldELBO(max_plate_nesting=nesting).loss(*REFUSED[name], X)


@pytest.mark.parametrize("event", [0, 1])
def test_an_infinite_kl_is_refused_whatever_the_draw_is(event):
    q = dist.Normal(0.5, 1e-3).expand([2] * event).to_event(event)
    p = dist.Gamma(2.0, 1.0).expand([2] * event).to_event(event)
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(PyroccamError, match="'w'"):
            EnumMeanFieldELBO().loss(sampled("w", p), sampled("w", q))
    with pyro.validation_enabled(False):  # nothing is looked at
        assert EnumMeanFieldELBO().loss(sampled("w", p), sampled("w", q)) == math.inf


def test_a_weight_of_a_kl_that_the_model_sums_out():
    def model(x):
        observe(x, summed())

    terms = EnumMeanFieldELBO().terms(model, nothing, X)
    for weight in (0.5, 0, torch.tensor(0.5)):
        with pytest.raises(PyroccamError):
            terms.loss(weight)
    with pytest.raises(PyroccamError):
        EnumMeanFieldELBO(kl_weight=0.5).loss(model, nothing, X)
    with pyro.validation_enabled(False):  # a tensor is not looked at while a graph is traced
        terms.loss(torch.tensor(0.5))
    for one in (1, torch.ones(())):
        assert torch.equal(terms.loss(one), -terms.log_likelihood)


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


def test_finding_the_nesting_leaves_nothing_behind(caplog):
    """The first call costs no random number, moves no buffer twice and logs nothing."""
    x, y = linear_data()
    found = []
    with caplog.at_level(logging.DEBUG, "pyro"):
        for nesting in (float("inf"), 1):
            model = Counter()
            torch.manual_seed(0)
            b = bound(model, CounterGuide(), max_plate_nesting=nesting)
            loss = b(x, y)
            mean = model._modules["net"][0].running_mean
            found.append((loss, mean.clone(), torch.randn(())))
            torch.testing.assert_close(mean, 0.1 * x.mean(0))
            assert b.elbo.max_plate_nesting == 1
    assert all(map(torch.equal, *found))
    assert not caplog.records


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


def test_costs_in_plates_of_different_sizes_under_one_enumerated_latent():
    """What each value costs is summed over the plates; the bound is that of the sites."""

    def pair(probs, mean):
        z = pyro.sample("z", dist.Categorical(torch.tensor(probs)))
        for name, size in (("a", 3), ("b", 5)):
            with pyro.plate(name, size):
                pyro.sample(f"w_{name}", dist.Normal(mean(z, size), 1.0))

    def model():
        pair([0.25, 0.75], lambda z, _: z.to(torch.get_default_dtype()))

    def guide():
        pair([0.5, 0.5], lambda _, size: torch.zeros(size))

    terms = EnumMeanFieldELBO(max_plate_nesting=1).terms(model, guide)
    torch.testing.assert_close(terms.by_site["z"].flatten(), torch.tensor([0.0, 4.0]))
    prior = 0.5 * torch.tensor([0.5 / 0.25, 0.5 / 0.75]).log().sum()
    torch.testing.assert_close(terms.kl, prior + 2.0)
