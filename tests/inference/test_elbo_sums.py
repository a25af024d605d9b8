"""Sums over values, by the guide and in the model, by hand."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import ENUM, N, Pair, X, assert_same, double_precision
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO

float64 = pytest.fixture(autouse=True)(double_precision)


# -- enumeration ----------------------------------------------------------------------------------


def test_an_impossible_value_may_cost_infinitely_much():
    """A structure that q rules out adds nothing, and no NaN to the gradient."""
    p = Pair(logits=(2,))
    closed = torch.tensor([0.0, 0.0, -math.inf])

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=torch.tensor([0.0, 0.5, -math.inf])))
        pyro.sample("y", dist.Normal(torch.tensor([0.3, 0.6, math.inf])[k], 1.0), obs=x[0])

    def guide(x):
        logits = torch.cat([p.logits, p.logits.new_zeros(1)]) + closed
        pyro.sample("k", dist.Categorical(logits=logits))

    found = p.of(model, guide).evaluate(EnumMeanFieldELBO(max_plate_nesting=0))
    q = p.logits.softmax(0)
    log_p = torch.tensor([0.0, 0.5]).log_softmax(0)
    normal = torch.distributions.Normal(torch.tensor([0.3, 0.6]), 1.0)
    expected = (q * (q.log() - log_p - normal.log_prob(X[0]))).sum()
    assert_same(found, p.graded(expected))


def test_a_straight_through_site_is_enumerated_with_its_probabilities():
    """It calls itself reparameterised, and has no score function."""
    found = []
    for family in (dist.OneHotCategoricalStraightThrough, dist.OneHotCategorical):
        p = Pair(logits=(3,), effect=(3,))

        def model(x, p=p):
            k = pyro.sample("k", dist.OneHotCategorical(logits=torch.zeros(3)))
            pyro.sample("y", dist.Normal((p.effect * k).sum(-1), 1.0), obs=x[0])

        def guide(x, p=p, family=family):
            pyro.sample("k", family(logits=p.logits))

        found.append(p.of(model, guide).evaluate(EnumMeanFieldELBO(max_plate_nesting=0)))
    assert_same(*found)


# -- summed out in the model ----------------------------------------------------------------------


def test_a_prior_and_a_likelihood_that_disagree_by_thousands_of_nats():
    """Pyro multiplies exponentials, and gives the logarithm of zero."""
    p = Pair(prior=(3,), effect=(3,))
    steep = torch.tensor([0.0, -1500.0, -3000.0])

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=p.prior + steep), infer=ENUM)
        with pyro.plate("data", N):
            mean = (p.effect + torch.tensor([300.0, 30.0, 0.0]))[k]
            pyro.sample("y", dist.Normal(mean, 1.0), obs=x)
        pyro.sample("z", dist.Normal(p.effect[k], 1.0), obs=x[0])

    p.of(model, lambda x: None)
    normal = torch.distributions.Normal
    rows = normal(p.effect + torch.tensor([300.0, 30.0, 0.0]), 1.0).log_prob(X[:, None]).sum(0)
    joint = (p.prior + steep).log_softmax(0) + rows + normal(p.effect, 1.0).log_prob(X[0])
    expected = p.graded(-torch.logsumexp(joint, 0))
    for nesting in (1, 2):
        assert_same(p.evaluate(EnumMeanFieldELBO(max_plate_nesting=nesting)), expected)
    theirs = p.evaluate(TraceEnum_ELBO(max_plate_nesting=1))[0]
    assert not torch.isfinite(theirs) or abs(theirs - expected[0]) > 1.0


def test_a_markov_chain_with_impossible_steps():
    """Against the sum over all paths, in probabilities; no NaN in the gradient."""
    p = Pair(first=(3,), effect=(3,))
    step = torch.tensor([[0.5, 0.5, 0.0], [0.3, 0.7, 0.0], [0.2, 0.8, 0.0]])  # never to 2
    start = torch.tensor([0.0, 0.0, -math.inf])

    def model(x):
        z = None
        for t in pyro.markov(range(4)):
            logits = p.first + start if z is None else step.log()[z]
            z = pyro.sample(f"z{t}", dist.Categorical(logits=logits), infer=ENUM)
            pyro.sample(f"y{t}", dist.Normal(p.effect[z], 1.0), obs=x[t])

    p.of(model, lambda x: None)
    first = (p.first + start).softmax(0)
    density = torch.distributions.Normal(p.effect, 1.0).log_prob(X[:4, None]).exp()
    total = 0.0
    for path in itertools.product(range(2), repeat=4):
        weight = first[path[0]]
        for a, b in itertools.pairwise(path):
            weight = weight * step[a, b]
        for t, state in enumerate(path):
            weight = weight * density[t, state]
        total = total + weight
    assert_same(p.evaluate(EnumMeanFieldELBO()), p.graded(-torch.log(total)))


@pytest.mark.parametrize("validate", [True, False])
def test_scales_of_a_sum_may_be_tensors(validate):
    found = []
    for scale in (2.5, torch.tensor(2.5)):
        p = Pair(prior=(3,), effect=(3,))

        def model(x, p=p):
            with pyro.plate("data", N):
                k = pyro.sample("k", dist.Categorical(logits=p.prior), infer=ENUM)
                pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

        p.of(poutine.scale(model, scale), lambda x: None)
        with pyro.validation_enabled(validate):
            found.append(p.evaluate(EnumMeanFieldELBO()))
            assert float(found[-1][0]) == pytest.approx(
                2.5 * float(p.of(model, lambda x: None).evaluate(EnumMeanFieldELBO())[0])
            )
    assert_same(*found)
