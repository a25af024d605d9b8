"""Against Pyro's own estimators: same seed, same loss, same gradients."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import (
    ENUM,
    MASK,
    B,
    K,
    N,
    Pair,
    X,
    assert_same,
    double_precision,
    graded,
    trace_enum,
)  # fmt: skip
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO, autoguide
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO, bound
from pyroccam.models.parameters import LocalModule

float64 = pytest.fixture(autouse=True)(double_precision)


def categorical(name, logits, mask=None, **infer):
    fn = dist.Categorical(logits=logits)
    return pyro.sample(name, fn if mask is None else fn.mask(mask), **infer)


def observe(x, mean):
    """In the plate of the data."""
    with pyro.plate("data", N, subsample=x):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=x)


def masked_distributions_are_still_weights():
    p = Pair(logits=(N, K), effect=(K,))

    def model(x):
        with pyro.plate("data", N, subsample=x):
            k = categorical("k", torch.zeros(K), MASK[: len(x)])
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    def guide(x):
        with pyro.plate("data", N, subsample=x):
            categorical("k", p.logits[: len(x)], MASK[: len(x)])

    return p.of(model, guide)


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


def scales():
    base = weights_under_structure()
    scale = torch.tensor(0.3)
    return base.of(poutine.scale(base.model, scale), poutine.scale(base.guide, 0.7))


def masked_mixture_summed_out():
    p = Pair(prior=(K,), effect=(K,))

    def model(x):
        with pyro.plate("data", N, subsample=x), poutine.mask(mask=MASK[: len(x)]):
            k = categorical("k", p.prior, infer=ENUM)
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    return p.of(model, lambda x: None)


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


PAIRS = [
    masked_distributions_are_still_weights,
    structure_nested_in_plates,
    weights_under_structure,
    three_sites_in_another_order,
    scales,
    masked_mixture_summed_out,
    structure_here_and_summed_out_there,
    factors_and_deterministic_sites,
]


@pytest.mark.parametrize("rows", [N, B])
@pytest.mark.parametrize("make", PAIRS)
def test_the_bound_is_that_of_pyro(make, rows):
    pair = make()
    nesting = 2 if make is structure_nested_in_plates else 1
    expected = pair.evaluate(trace_enum(nesting), X[:rows])
    assert_same(pair.evaluate(EnumMeanFieldELBO(max_plate_nesting=nesting), X[:rows]), expected)
    for validate in (True, False):
        with pyro.validation_enabled(validate):  # finds out the nesting
            assert_same(pair.evaluate(EnumMeanFieldELBO(), X[:rows]), expected)


def test_particles_are_averaged():
    pair = weights_under_structure()
    ours = EnumMeanFieldELBO(num_particles=3, max_plate_nesting=1)
    assert_same(pair.evaluate(ours), pair.evaluate(trace_enum(1, num_particles=3)))


class Hierarchy(LocalModule):
    def forward(self, x):
        g = pyro.sample("g", dist.Gamma(2.0, 3.0))
        d = pyro.sample("d", dist.Dirichlet(torch.ones(3)))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), g).to_event(1))
        with pyro.plate("data", N, subsample=x):
            b = pyro.sample("b", dist.Beta(2.0, 2.0))
            pyro.sample("y", dist.Normal(w.sum() * d[0] + b, g), obs=x)


@pytest.mark.parametrize("name", ["AutoMultivariateNormal", "AutoDelta"])
def test_autoguides_give_what_trace_elbo_gives(name):
    """With the Jacobian of the support's transform, which Pyro's KL of a Delta leaves out."""
    model = Hierarchy()
    guide = getattr(autoguide, name)(model)  # made in Pyro's default mode of parameters
    torch.manual_seed(0)
    guide(X)

    def seeded(loss, *args):
        torch.manual_seed(1)
        return loss(*args)

    def evaluate(loss, *args):
        return graded(seeded(loss, *args), guide.parameters())

    pair = (model, guide, X)
    expected = evaluate(Trace_ELBO().differentiable_loss, *pair)
    assert_same(evaluate(EnumMeanFieldELBO().differentiable_loss, *pair), expected)
    assert_same(evaluate(bound(model, guide), X), expected)
    dropped = seeded(TraceMeanField_ELBO().loss, *pair)
    assert (abs(dropped - float(expected[0])) > 1e-3) == (name != "AutoDelta")
