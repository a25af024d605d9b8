"""Structure and discrete draws against TraceEnum_ELBO: same seed, same loss, same gradients."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import (
    DRAWN,
    ENUM,
    MASK,
    B,
    K,
    N,
    Pair,
    X,
    assert_same,
    cases,
    double_precision,
    trace_enum,
)  # fmt: skip
from pyro import poutine
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO

float64 = pytest.fixture(autouse=True)(double_precision)
ENUMERATED, enumerated = cases()


def categorical(name, logits, mask=None, **infer):
    fn = dist.Categorical(logits=logits)
    return pyro.sample(name, fn if mask is None else fn.mask(mask), **infer)


def observe(x, mean):
    """In the plate of the data."""
    with pyro.plate("data", N, subsample=x):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=x)


@enumerated
def structure_and_subsampled_data():
    p = Pair(logits=(K,), prior=(K,), effect=(K,))
    return p.of(
        lambda x: observe(x, p.effect[categorical("k", p.prior)]),
        lambda x: categorical("k", p.logits),
    )


@enumerated
def assignments_in_a_subsampled_plate(prior=True, mask=False):
    p = Pair(logits=(N, K), prior=(K,), effect=(K,))

    def model(x):
        with pyro.plate("data", N, subsample=x):
            logits = p.prior if prior else torch.zeros(K)
            k = categorical("k", logits, MASK[: len(x)] if mask else None)
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    def guide(x):
        with pyro.plate("data", N, subsample=x):
            categorical("k", p.logits[: len(x)], MASK[: len(x)] if mask else None)

    return p.of(model, guide)


@enumerated
def structure_nested_in_plates():
    """c -> z in the outer plate -> k in the inner, in model and guide; y depends on k alone."""
    p = Pair(c=(2,), z=(2, 3), k=(3, 2), qc=(2,), qz=(2, 3), qk=(3, 2), effect=(2,))

    def both(c, z, k, x, observe):
        c = categorical("c", c)
        with pyro.plate("outer", 3, dim=-2):
            z = categorical("z", z[c])
            with pyro.plate("data", N, subsample=x, dim=-1):
                k = categorical("k", k[z])
                if observe:
                    pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x.expand(3, -1))

    return p.of(
        lambda x: both(p.c, p.z, p.k, x, observe=True),
        lambda x: both(p.qc, p.qz, p.qk, x, observe=False),
    )


@enumerated
def chain_in_the_guide_alone():
    """The weight of c is a sum over its ancestors, which the likelihood does not know."""
    p = Pair(qa=(2,), qb=(2, 3), qc=(3, 2), effect=(2,))

    def model(x):
        pyro.sample("a", dist.Bernoulli(0.3))
        categorical("b", torch.zeros(3))
        observe(x, p.effect[pyro.sample("c", dist.Categorical(probs=torch.tensor([0.2, 0.8])))])

    def guide(x):
        a = pyro.sample("a", dist.Bernoulli(logits=p.qa[0]))
        categorical("c", p.qc[categorical("b", p.qb[a.long()])])

    return p.of(model, guide)


@enumerated
def weights_under_structure():
    """Draws that vary along the enumeration, from a family without a KL to the prior."""
    p = Pair(logits=(K,), loc=(K,), scale=(K,), prior=(K,))

    def model(x):
        k = categorical("k", p.prior)
        observe(x, pyro.sample("w", dist.Cauchy(p.prior[k], 2.0)) * (k + 1))

    def guide(x):
        k = categorical("k", p.logits)
        pyro.sample("w", dist.Normal(p.loc[k], p.scale[k].exp()))

    return p.of(model, guide)


@enumerated
def structure_after_weights():
    """q(w) q(k | w) against p(k) p(w | k): the KL of w is registered, but not valid."""
    p = Pair(logits=(K,), slope=(K,), loc=(), scale=(), prior=(K,))

    def model(x):
        k = categorical("k", p.prior)
        observe(x, pyro.sample("w", dist.Normal(0.0, p.prior.exp()[k])) * (k + 1))

    def guide(x):
        w = pyro.sample("w", dist.Normal(p.loc, p.scale.exp()))
        categorical("k", p.logits + p.slope * w)

    return p.of(model, guide)


@enumerated
def three_sites_in_another_order():
    """p(u) p(v) p(w | u) against q(v) q(w) q(u | w): w has a registered KL, which is not valid."""
    p = Pair(locs=(3,), scales=(3,), slope=())

    def model(x):
        u = pyro.sample("u", dist.Cauchy(0.0, 4.0))
        v = pyro.sample("v", dist.Cauchy(0.0, 5.0))
        observe(x, u - v + pyro.sample("w", dist.Normal(1.5 * u, 0.8)))

    def guide(x):
        pyro.sample("v", dist.Normal(p.locs[1], p.scales[1].exp()))
        w = pyro.sample("w", dist.Normal(p.locs[2], p.scales[2].exp()))
        pyro.sample("u", dist.Normal(p.locs[0] + p.slope * w, p.scales[0].exp()))

    return p.of(model, guide)


@enumerated
def draws_by_score_function():
    p = Pair(logits=(K,), bits=(2,), rate=(K,), q=(N,), effect=())

    def model(x):
        k = categorical("k", torch.zeros(K))
        bits = pyro.sample("bits", dist.Bernoulli(torch.full((2,), 0.4)).to_event(1))
        n = pyro.sample("n", dist.Poisson(1.0 + k))
        with pyro.plate("data", N, subsample=x):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            mean = p.effect * (k + n + bits.sum(-1) + z)
            pyro.sample("y", dist.Normal(mean, 2.0), obs=x)

    def guide(x):
        k = categorical("k", p.logits)
        pyro.sample("bits", dist.Bernoulli(logits=p.bits).to_event(1))
        pyro.sample("n", dist.Poisson(p.rate[k].exp()))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("z", dist.Bernoulli(logits=p.q[: len(x)]), infer=DRAWN)

    return p.of(model, guide)


@enumerated
def masks_that_differ():
    p = Pair(logits=(N, K), loc=(N,), effect=(K,))

    def model(x):
        mask = MASK[: len(x)]
        with pyro.plate("data", N, subsample=x), poutine.mask(mask=mask):
            k = categorical("k", torch.zeros(K))
            w = pyro.sample("w", dist.Cauchy(0.0, 3.0))
            with poutine.mask(mask=~MASK.roll(1)[: len(x)]):
                pyro.sample("y", dist.Normal(p.effect[k] + w, 1.0), obs=x)

    def guide(x):
        mask = MASK.roll(1)[: len(x)]
        with pyro.plate("data", N, subsample=x):
            with poutine.mask(mask=mask):
                categorical("k", p.logits[: len(x)])
            pyro.sample("w", dist.Normal(p.loc[: len(x)], 1.0).mask(mask))

    return p.of(model, guide)


@enumerated
def masked_distributions_are_still_weights():
    return assignments_in_a_subsampled_plate(prior=False, mask=True)


@enumerated
def scales():
    base = weights_under_structure()
    scale = torch.tensor(0.3)
    return base.of(poutine.scale(base.model, scale), poutine.scale(base.guide, 0.7))


@enumerated
def mixture_summed_out_in_a_subsampled_plate():
    p = Pair(prior=(K,), effect=(K,), loc=(), scale=())

    def model(x):
        w = pyro.sample("w", dist.Cauchy(0.0, 4.0))
        with pyro.plate("data", N, subsample=x):
            k = categorical("k", p.prior, infer=ENUM)
            with poutine.mask(mask=MASK[: len(x)]):
                pyro.sample("y", dist.Normal(p.effect[k] + w, 1.0), obs=x)

    return p.of(model, lambda x: pyro.sample("w", dist.Normal(p.loc, p.scale.exp())))


@enumerated
def masked_mixture_summed_out():
    p = Pair(prior=(K,), effect=(K,))

    def model(x):
        with pyro.plate("data", N, subsample=x), poutine.mask(mask=MASK[: len(x)]):
            k = categorical("k", p.prior, infer=ENUM)
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    return p.of(model, lambda x: None)


@enumerated
def structure_here_and_summed_out_there():
    """k by the guide; j, and m in the plate, by the model; the prior of w depends on j."""
    p = Pair(k=(K,), j=(K, 2), m=(2, 2), loc=(K,), effect=(2,))

    def model(x):
        k = categorical("k", torch.zeros(K))
        j = categorical("j", p.j[k], infer=ENUM)
        w = pyro.sample("w", dist.Normal(p.effect[j], 1.0))
        with pyro.plate("data", len(x)):
            m = categorical("m", p.m[j], infer=ENUM)
            pyro.sample("y", dist.Normal(p.effect[m] * w, 1.0), obs=x)

    def guide(x):
        k = categorical("k", p.k)
        pyro.sample("w", dist.Normal(p.loc[k], 0.6))

    return p.of(model, guide)


@enumerated
def markov_chain_summed_out():
    p = Pair(first=(K,), step=(K, K), effect=(K,), loc=())

    def model(x):
        w = pyro.sample("w", dist.Cauchy(0.0, 3.0))
        z = None
        for t in pyro.markov(range(len(x))):
            logits = p.first if z is None else p.step[z]
            z = categorical(f"z{t}", logits, infer=ENUM)
            pyro.sample(f"y{t}", dist.Normal(p.effect[z] + w, 1.0), obs=x[t])

    return p.of(model, lambda x: pyro.sample("w", dist.Normal(p.loc, 1.0)))


@enumerated
def factors_and_deterministic_sites():
    p = Pair(logits=(K,), effect=(K,))

    def model(x):
        k = categorical("k", torch.zeros(K))
        pyro.deterministic("twice", 2.0 * k)
        observe(x, p.effect[k])
        pyro.factor("penalty", -(p.effect[k] ** 2))

    def guide(x):
        categorical("k", p.logits)
        pyro.factor("entropy", p.logits.sum(), has_rsample=True)

    return p.of(model, guide)


@pytest.mark.parametrize("rows", [N, B])
@pytest.mark.parametrize("name", ENUMERATED)
def test_the_bound_is_that_of_trace_enum_elbo(name, rows):
    pair = ENUMERATED[name]()
    nesting = 2 if name == "structure_nested_in_plates" else 1
    theirs = pair.evaluate(trace_enum(nesting), X[:rows])
    assert_same(pair.evaluate(EnumMeanFieldELBO(max_plate_nesting=nesting), X[:rows]), theirs)
    assert_same(pair.evaluate(EnumMeanFieldELBO(), X[:rows]), theirs)  # finds out the nesting
    with pyro.validation_enabled(False):
        assert_same(pair.evaluate(EnumMeanFieldELBO(), X[:rows]), theirs)


def test_particles_are_averaged():
    pair = weights_under_structure()
    ours = EnumMeanFieldELBO(num_particles=3, max_plate_nesting=1)
    assert_same(pair.evaluate(ours), pair.evaluate(trace_enum(1, num_particles=3)))
