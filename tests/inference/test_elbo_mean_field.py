"""Continuous latents against Pyro's own estimators: same seed, same loss, same gradients."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import MASK, B, N, Pair, X, assert_same, cases, double_precision, graded
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO, autoguide
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO, bound
from pyroccam.models.parameters import LocalModule

float64 = pytest.fixture(autouse=True)(double_precision)
MEAN_FIELD, mean_field = cases()


@mean_field
def hierarchical_normals():
    p = Pair(loc=(), scale=(), local=(N,), slope=(), prior=())

    def model(x):
        z = pyro.sample("z", dist.Normal(p.prior, 1.5))
        with pyro.plate("data", N, subsample=x):
            w = pyro.sample("w", dist.Normal(z, p.prior.exp()))
            pyro.sample("y", dist.Normal(w, 1.0), obs=x)

    def guide(x):
        z = pyro.sample("z", dist.Normal(p.loc, p.scale.exp()))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("w", dist.Normal(p.local[: len(x)] + p.slope * z, 0.4))

    return p.of(model, guide)


@mean_field
def other_families():
    """Analytic (Gamma, Dirichlet, multivariate normal) and log-ratio (LogNormal on Weibull)."""
    p = Pair(a=(), b=(), c=(3,), m=(2,), tril=(2, 2), s=())

    def model(x):
        g = pyro.sample("g", dist.Gamma(2.0, 3.0))
        h = pyro.sample("h", dist.Weibull(2.0, 3.0))
        d = pyro.sample("d", dist.Dirichlet(torch.ones(3)))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), g).to_event(1))
        v = pyro.sample("v", dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(w.sum() * h + v.sum() + d[0], 1.0), obs=x)

    def guide(x):
        pyro.sample("g", dist.Gamma(p.a.exp(), p.b.exp()))
        pyro.sample("h", dist.LogNormal(p.a, p.s.exp()))
        pyro.sample("d", dist.Dirichlet(p.c.exp()))
        pyro.sample("w", dist.Normal(p.m, p.s.exp()).to_event(1))
        tril = p.tril.tril(-1) + p.tril.diagonal().exp().diag()
        pyro.sample("v", dist.MultivariateNormal(p.m, scale_tril=tril))

    return p.of(model, guide)


@mean_field
def masked_and_scaled():
    p = Pair(loc=(N,), scale=())

    @poutine.scale(scale=0.3)
    def model(x):
        with pyro.plate("data", N, subsample=x), poutine.mask(mask=MASK[: len(x)]):
            w = pyro.sample("w", dist.Normal(0.0, 2.0))
            pyro.sample("y", dist.Normal(w, 1.0), obs=x)

    @poutine.scale(scale=0.3)
    def guide(x):
        with pyro.plate("data", N, subsample=x), poutine.mask(mask=MASK[: len(x)]):
            pyro.sample("w", dist.Normal(p.loc[: len(x)], p.scale.exp()))

    return p.of(model, guide)


@pytest.mark.parametrize("rows", [N, B])
@pytest.mark.parametrize("name", MEAN_FIELD)
def test_the_bound_is_that_of_trace_mean_field_elbo(name, rows):
    pair = MEAN_FIELD[name]()
    theirs = pair.evaluate(TraceMeanField_ELBO(), X[:rows])
    assert_same(pair.evaluate(EnumMeanFieldELBO(), X[:rows]), theirs)


# -- Pyro's autoguides ----------------------------------------------------------------------------


class Hierarchy(LocalModule):
    def forward(self, x):
        g = pyro.sample("g", dist.Gamma(2.0, 3.0))
        d = pyro.sample("d", dist.Dirichlet(torch.ones(3)))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), g).to_event(1))
        with pyro.plate("data", N, subsample=x):
            b = pyro.sample("b", dist.Beta(2.0, 2.0))
            pyro.sample("y", dist.Normal(w.sum() * d[0] + b, g), obs=x)


@pytest.mark.parametrize(
    "name", ["AutoNormal", "AutoDiagonalNormal", "AutoMultivariateNormal", "AutoDelta"]
)
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
    value = seeded(Trace_ELBO().loss, *pair)
    assert float(expected[0]) == pytest.approx(value, rel=1e-12)
    dropped = seeded(TraceMeanField_ELBO().loss, *pair)
    assert (abs(dropped - value) > 1e-3) == (name != "AutoDelta")
