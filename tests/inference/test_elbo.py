"""The bound against Pyro's estimators, closed forms and brute force."""

import itertools
import logging
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    SVI,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceMeanField_ELBO,
    autoguide,
    config_enumerate,
)
from pyroccam import guides, models
from pyroccam.inference.elbo import EnumMeanFieldELBO, bound
from pyroccam.models.depth import LocalModule
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

N, B = 6, 4  # rows of the plate, and those of a minibatch
DRAWN = {"enumerate": None}  # a discrete site that is not enumerated
ENUM = {"enumerate": "parallel"}
K = 3


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()
    torch.set_default_dtype(torch.float32)


def numbers(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


X = numbers(N, seed=1)
MASK = torch.tensor([True, False, True, True, False, True])


class Pair:
    """A model and a guide as functions of parameters: ``pair.name`` is a leaf with a gradient."""

    def __init__(self, **shapes):
        self.params = {
            name: numbers(*shape, seed=i + 7, scale=0.7).requires_grad_()
            for i, (name, shape) in enumerate(shapes.items())
        }

    def __getattr__(self, name):
        return self.params[name]

    def of(self, model, guide):
        self.model, self.guide = model, guide
        return self

    def evaluate(self, elbo, x=X, seed=3):
        """Loss and gradients, zero for what has none."""
        enumerates = isinstance(elbo, TraceEnum_ELBO)
        guide = config_enumerate(self.guide) if enumerates else self.guide
        torch.manual_seed(seed)
        loss = elbo.differentiable_loss(self.model, guide, x)
        values = list(self.params.values())
        grads = torch.autograd.grad(loss, values, allow_unused=True)
        return loss.detach(), [
            torch.zeros_like(v) if g is None else g for v, g in zip(values, grads, strict=True)
        ]


class Fixed(dist.Normal):
    """A Normal whose noise is prescribed, so that an average over nodes is an exact integral."""

    noise = None

    def rsample(self, sample_shape=()):
        return self.loc + self.scale * next(type(self).noise)


def nodes(*values):
    """An endless supply of noise."""
    return itertools.cycle([torch.as_tensor(v) for v in values])


def sigma_points(dimension):
    """They integrate quadratics in standard normal noise exactly."""
    points = math.sqrt(dimension) * torch.eye(dimension)
    return [*points, *-points]


def trace_enum(nesting, **options):
    return TraceEnum_ELBO(max_plate_nesting=nesting, strict_enumeration_warning=False, **options)


def assert_same(one, other):
    torch.testing.assert_close(one[0], other[0], rtol=1e-9, atol=1e-10)
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    assert sum(float(g.abs().max()) > 1e-3 for g in one[1]) >= len(one[1]) - 1


def cases():
    """A registry of pairs, by the name of the function that makes them."""
    found = {}

    def register(function):
        found[function.__name__] = function
        return function

    return found, register


# -- against TraceEnum_ELBO: same seed, same loss, same gradients ---------------------------------

ENUMERATED, enumerated = cases()


@enumerated
def structure_and_subsampled_data():
    p = Pair(logits=(K,), prior=(K,), effect=(K,))

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=p.prior))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    def guide(x):
        pyro.sample("k", dist.Categorical(logits=p.logits))

    return p.of(model, guide)


@enumerated
def assignments_in_a_subsampled_plate():
    p = Pair(logits=(N, K), prior=(K,), effect=(K,))

    def model(x):
        with pyro.plate("data", N, subsample=x):
            k = pyro.sample("k", dist.Categorical(logits=p.prior))
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    def guide(x):
        with pyro.plate("data", N, subsample=x):
            pyro.sample("k", dist.Categorical(logits=p.logits[: len(x)]))

    return p.of(model, guide)


@enumerated
def structure_nested_in_plates():
    """c -> z in the outer plate -> k in the inner, in model and guide; y depends on k alone."""
    p = Pair(c=(2,), z=(2, 3), k=(3, 2), qc=(2,), qz=(2, 3), qk=(3, 2), effect=(2,))

    def both(c, z, k, x, observe):
        c = pyro.sample("c", dist.Categorical(logits=c))
        with pyro.plate("outer", 3, dim=-2):
            z = pyro.sample("z", dist.Categorical(logits=z[c]))
            with pyro.plate("data", N, subsample=x, dim=-1):
                k = pyro.sample("k", dist.Categorical(logits=k[z]))
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
        pyro.sample("b", dist.Categorical(logits=torch.zeros(3)))
        c = pyro.sample("c", dist.Categorical(probs=torch.tensor([0.2, 0.8])))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(p.effect[c], 1.0), obs=x)

    def guide(x):
        a = pyro.sample("a", dist.Bernoulli(logits=p.qa[0]))
        b = pyro.sample("b", dist.Categorical(logits=p.qb[a.long()]))
        pyro.sample("c", dist.Categorical(logits=p.qc[b]))

    return p.of(model, guide)


@enumerated
def weights_under_structure():
    """Draws that vary along the enumeration, from a family without a KL to the prior."""
    p = Pair(logits=(K,), loc=(K,), scale=(K,), prior=(K,))

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=p.prior))
        w = pyro.sample("w", dist.StudentT(4.0, p.prior[k], 2.0))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(w * (k + 1), 1.0), obs=x)

    def guide(x):
        k = pyro.sample("k", dist.Categorical(logits=p.logits))
        pyro.sample("w", dist.Normal(p.loc[k], p.scale[k].exp()))

    return p.of(model, guide)


@enumerated
def structure_after_weights():
    """q(w) q(k | w) against p(k) p(w | k): the KL of w is registered, but not valid."""
    p = Pair(logits=(K,), slope=(K,), loc=(), scale=(), prior=(K,))

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=p.prior))
        w = pyro.sample("w", dist.Normal(0.0, p.prior.exp()[k]))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(w * (k + 1), 1.0), obs=x)

    def guide(x):
        w = pyro.sample("w", dist.Normal(p.loc, p.scale.exp()))
        pyro.sample("k", dist.Categorical(logits=p.logits + p.slope * w))

    return p.of(model, guide)


@enumerated
def three_sites_in_another_order():
    """p(u) p(v) p(w | u) against q(v) q(w) q(u | w): w has a registered KL, which is not valid."""
    p = Pair(locs=(3,), scales=(3,), slope=())

    def model(x):
        u = pyro.sample("u", dist.StudentT(4.0))
        v = pyro.sample("v", dist.StudentT(5.0))
        w = pyro.sample("w", dist.Normal(1.5 * u, 0.8))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(u - v + w, 1.0), obs=x)

    def guide(x):
        pyro.sample("v", dist.Normal(p.locs[1], p.scales[1].exp()))
        w = pyro.sample("w", dist.Normal(p.locs[2], p.scales[2].exp()))
        pyro.sample("u", dist.Normal(p.locs[0] + p.slope * w, p.scales[0].exp()))

    return p.of(model, guide)


@enumerated
def draws_by_score_function():
    p = Pair(logits=(K,), bits=(2,), rate=(K,), q=(N,), effect=())

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=torch.zeros(K)))
        bits = pyro.sample("bits", dist.Bernoulli(torch.full((2,), 0.4)).to_event(1))
        n = pyro.sample("n", dist.Poisson(1.0 + k))
        with pyro.plate("data", N, subsample=x):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            mean = p.effect * (k + n + bits.sum(-1) + z)
            pyro.sample("y", dist.Normal(mean, 2.0), obs=x)

    def guide(x):
        k = pyro.sample("k", dist.Categorical(logits=p.logits))
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
            k = pyro.sample("k", dist.Categorical(logits=torch.zeros(K)))
            w = pyro.sample("w", dist.StudentT(3.0))
            with poutine.mask(mask=~MASK.roll(1)[: len(x)]):
                pyro.sample("y", dist.Normal(p.effect[k] + w, 1.0), obs=x)

    def guide(x):
        mask = MASK.roll(1)[: len(x)]
        with pyro.plate("data", N, subsample=x):
            with poutine.mask(mask=mask):
                pyro.sample("k", dist.Categorical(logits=p.logits[: len(x)]))
            pyro.sample("w", dist.Normal(p.loc[: len(x)], 1.0).mask(mask))

    return p.of(model, guide)


@enumerated
def masked_distributions_are_still_weights():
    p = Pair(logits=(N, K), effect=(K,))

    def model(x):
        with pyro.plate("data", N, subsample=x):
            k = pyro.sample("k", dist.Categorical(logits=torch.zeros(K)).mask(MASK[: len(x)]))
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    def guide(x):
        with pyro.plate("data", N, subsample=x):
            q = dist.Categorical(logits=p.logits[: len(x)])
            pyro.sample("k", q.mask(MASK[: len(x)]))

    return p.of(model, guide)


@enumerated
def scales():
    base = weights_under_structure()
    scale = torch.tensor(0.3)
    return base.of(poutine.scale(base.model, scale), poutine.scale(base.guide, 0.7))


@enumerated
def mixture_summed_out_in_a_subsampled_plate():
    p = Pair(prior=(K,), effect=(K,), loc=(), scale=())

    def model(x):
        w = pyro.sample("w", dist.StudentT(4.0))
        with pyro.plate("data", N, subsample=x):
            k = pyro.sample("k", dist.Categorical(logits=p.prior), infer=ENUM)
            with poutine.mask(mask=MASK[: len(x)]):
                pyro.sample("y", dist.Normal(p.effect[k] + w, 1.0), obs=x)

    return p.of(model, lambda x: pyro.sample("w", dist.Normal(p.loc, p.scale.exp())))


@enumerated
def masked_mixture_summed_out():
    p = Pair(prior=(K,), effect=(K,))

    def model(x):
        with pyro.plate("data", N, subsample=x), poutine.mask(mask=MASK[: len(x)]):
            k = pyro.sample("k", dist.Categorical(logits=p.prior), infer=ENUM)
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    return p.of(model, lambda x: None)


@enumerated
def structure_here_and_summed_out_there():
    """k by the guide; j, and m in the plate, by the model; the prior of w depends on j."""
    p = Pair(k=(K,), j=(K, 2), m=(2, 2), loc=(K,), effect=(2,))

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=torch.zeros(K)))
        j = pyro.sample("j", dist.Categorical(logits=p.j[k]), infer=ENUM)
        w = pyro.sample("w", dist.Normal(p.effect[j], 1.0))
        with pyro.plate("data", len(x)):
            m = pyro.sample("m", dist.Categorical(logits=p.m[j]), infer=ENUM)
            pyro.sample("y", dist.Normal(p.effect[m] * w, 1.0), obs=x)

    def guide(x):
        k = pyro.sample("k", dist.Categorical(logits=p.k))
        pyro.sample("w", dist.Normal(p.loc[k], 0.6))

    return p.of(model, guide)


@enumerated
def markov_chain_summed_out():
    p = Pair(first=(K,), step=(K, K), effect=(K,), loc=())

    def model(x):
        w = pyro.sample("w", dist.StudentT(3.0))
        z = None
        for t in pyro.markov(range(len(x))):
            logits = p.first if z is None else p.step[z]
            z = pyro.sample(f"z{t}", dist.Categorical(logits=logits), infer=ENUM)
            pyro.sample(f"y{t}", dist.Normal(p.effect[z] + w, 1.0), obs=x[t])

    return p.of(model, lambda x: pyro.sample("w", dist.Normal(p.loc, 1.0)))


@enumerated
def factors_and_deterministic_sites():
    p = Pair(logits=(K,), effect=(K,))

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=torch.zeros(K)))
        pyro.deterministic("twice", 2.0 * k)
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)
        pyro.factor("penalty", -(p.effect[k] ** 2))

    def guide(x):
        pyro.sample("k", dist.Categorical(logits=p.logits))
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


# -- against TraceMeanField_ELBO: same seed, same loss, same gradients ----------------------------

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
    """Analytic (Gamma, Dirichlet, multivariate normal) and log-ratio (LogNormal on Gamma)."""
    p = Pair(a=(), b=(), c=(3,), m=(2,), tril=(2, 2), s=())

    def model(x):
        g = pyro.sample("g", dist.Gamma(2.0, 3.0))
        h = pyro.sample("h", dist.Gamma(2.0, 3.0))
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
    values = list(guide.parameters())

    def evaluate(loss):
        torch.manual_seed(1)
        found = loss()
        return found.detach(), torch.autograd.grad(found, values)

    elbo = EnumMeanFieldELBO()
    expected = evaluate(lambda: Trace_ELBO().differentiable_loss(model, guide, X))
    assert_same(evaluate(lambda: elbo.differentiable_loss(model, guide, X)), expected)
    assert_same(evaluate(lambda: bound(model, guide)(X)), expected)
    torch.manual_seed(1)
    value = Trace_ELBO().loss(model, guide, X)
    assert float(expected[0]) == pytest.approx(value, rel=1e-12)
    torch.manual_seed(1)
    dropped = TraceMeanField_ELBO().loss(model, guide, X)
    assert (abs(dropped - value) > 1e-3) == (name != "AutoDelta")


# -- the union: structure and weights against brute force -----------------------------------------


class Linear(LocalModule):
    """k ~ p(k); w ~ N(0, t_k^2); y_n ~ N(c_k x_n w, noise^2) in a subsampled plate of N rows."""

    def __init__(self, dimension=2):
        super().__init__()
        self.register_buffer("log_prior", numbers(K, seed=21).log_softmax(0))
        self.register_buffer("spread", torch.tensor([0.5, 1.0, 2.0]))
        self.register_buffer("gain", torch.tensor([1.0, -0.5, 0.8]))
        self.noise, self.dimension, self.size = 0.7, dimension, N

    def forward(self, x, y):
        k = pyro.sample("k", dist.Categorical(logits=self.log_prior))
        spread = self.spread[k].unsqueeze(-1)
        w = pyro.sample("w", dist.Normal(torch.zeros(self.dimension), spread).to_event(1))
        with pyro.plate("data", N, subsample=x):
            mean = self.gain[k] * (x * w).sum(-1)
            pyro.sample("y", dist.Normal(mean, self.noise), obs=y)


class LinearGuide(LocalModule):
    def __init__(self, dimension=2, family=Fixed):
        super().__init__()
        self.logits = nn.Parameter(numbers(K, seed=31))
        self.loc = nn.Parameter(numbers(K, dimension, seed=32))
        self.log_scale = nn.Parameter(numbers(K, dimension, seed=33, scale=0.5))
        self.family = family

    def forward(self, x, y):
        k = pyro.sample("k", dist.Categorical(logits=self.logits))
        q = self.family(self.loc[k], self.log_scale.exp()[k])
        pyro.sample("w", q.to_event(1))


def linear_data(dimension=2):
    x = numbers(N, dimension, seed=41)
    return x, x.sum(-1) + 0.5 * numbers(N, seed=42)


def closed_form(model, guide, x, y):
    """E_q[log p(y | k, w)] and KL, value of k by value of k, by Gaussian integrals."""
    likelihood, kl = 0.0, 0.0
    q = torch.exp(guide.logits) / torch.exp(guide.logits).sum()
    for k in range(K):
        m, s, c, t = guide.loc[k], guide.log_scale[k].exp(), model.gain[k], model.spread[k]
        squares = (y - c * x @ m) ** 2 + c**2 * (x**2 @ s**2)
        normaliser = 0.5 * math.log(2 * math.pi * model.noise**2)
        rows = -normaliser - squares / (2 * model.noise**2)
        likelihood = likelihood + q[k] * rows.sum() * N / len(x)
        kl_w = ((s**2 + m**2) / (2 * t**2) - 0.5 + torch.log(t / s)).sum()
        kl = kl + q[k] * (q[k].log() - model.log_prior[k] + kl_w)
    return likelihood, kl


def expected_terms(loss_of, points):
    """Mean over nodes of the noise."""
    found = []
    for point in points:
        Fixed.noise = nodes(point)
        found.append(loss_of())
    return [sum(values) / len(points) for values in zip(*found, strict=True)]


@pytest.mark.parametrize("rows", [N, B])
def test_union_against_brute_force(rows):
    model, guide = Linear(), LinearGuide()
    x, y = (t[:rows] for t in linear_data())
    b = bound(model, guide, max_plate_nesting=1)

    def terms():
        found = b.terms(x, y)
        return found.log_likelihood, found.kl

    found = expected_terms(terms, sigma_points(2))
    values = list(guide.parameters())
    for ours, expected in zip(found, closed_form(model, guide, x, y), strict=True):
        grads = [
            torch.autograd.grad(t, values, retain_graph=True, allow_unused=True)
            for t in (ours, expected)
        ]
        grads = [[torch.zeros(()) if g is None else g for g in one] for one in grads]
        assert_same((ours.detach(), grads[0]), (expected.detach(), grads[1]))
    Fixed.noise = nodes(*sigma_points(2))
    likelihood, kl = terms()
    torch.testing.assert_close(kl, found[1], rtol=1e-12, atol=0.0)  # analytic: no noise
    assert abs(likelihood - found[0]) > 1e-3


def test_gradients_of_the_union_by_finite_differences():
    model, guide = Linear(), LinearGuide()
    x, y = linear_data()
    Fixed.noise = nodes(numbers(2, seed=5))
    b = bound(model, guide, max_plate_nesting=1)
    loss = b(x[:B], y[:B])
    for parameter in guide.parameters():
        (grad,) = torch.autograd.grad(loss, parameter, retain_graph=True)
        for index in itertools.product(*map(range, parameter.shape)):
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    parameter[index] += step
                    ends.append(float(b(x[:B], y[:B])))
                    parameter[index] -= step
            assert float(grad[index]) == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


def test_the_bound_at_the_exact_posterior_is_the_evidence():
    """w has a conjugate posterior for each k, and q(k) is proportional to p(k) p(y | k)."""
    model, guide = Linear(1), LinearGuide(1)
    x, y = linear_data(1)
    log_evidence = torch.zeros(K)
    with torch.no_grad():
        for k in range(K):
            c, t, noise = model.gain[k], model.spread[k], model.noise
            cov = noise**2 * torch.eye(N) + (c * t) ** 2 * x @ x.T
            log_evidence[k] = torch.distributions.MultivariateNormal(torch.zeros(N), cov).log_prob(
                y
            )
            precision = 1 / t**2 + c**2 * (x**2).sum() / noise**2
            guide.loc[k] = c * (x[:, 0] @ y) / noise**2 / precision
            guide.log_scale[k] = -0.5 * precision.log()
        joint = model.log_prior + log_evidence
        b = bound(model, guide, max_plate_nesting=1)

        def elbo():
            (loss,) = expected_terms(lambda: [b(x, y)], sigma_points(1))
            return -float(loss)

        assert elbo() < float(joint.logsumexp(0)) - 0.02
        guide.logits.copy_(joint)
        assert elbo() == pytest.approx(float(joint.logsumexp(0)), rel=1e-12)
        guide.loc[1] += 0.2
        assert elbo() < float(joint.logsumexp(0)) - 1e-4


class Local(LocalModule):
    """A mixture with an assignment and an offset for each row, under a global structure."""

    def forward(self, x, y):
        k = pyro.sample("k", dist.Bernoulli(0.3))
        with pyro.plate("data", N, subsample=x):
            z = pyro.sample("z", dist.Categorical(logits=torch.tensor([0.1, 0.2, -0.3])))
            w = pyro.sample("w", dist.Normal(k, 1.0))
            pyro.sample("y", dist.Normal(w + z, 1.0), obs=y)


class LocalGuide(LocalModule):
    def forward(self, x, y):
        pyro.sample("k", dist.Bernoulli(0.6))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("z", dist.Categorical(logits=torch.stack([x, -x, y], -1)))
            pyro.sample("w", Fixed(x * y, (0.3 * x).exp()))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_minibatches_of_a_partition_average_to_the_full_batch(size):
    """Likelihood and KL apart, for latents outside and inside the plate."""
    x, y = linear_data()
    noise = numbers(N, seed=51)
    union = bound(Linear(), LinearGuide())
    local = bound(Local(), LocalGuide())
    for b, inputs, one in ((union, x, numbers(2, seed=5)), (local, x[:, 0], None)):
        parts = []
        for rows in [slice(None), *torch.tensor([3, 0, 5, 1, 4, 2]).split(size)]:
            Fixed.noise = nodes(noise[rows] if one is None else one)
            terms = b.terms(inputs[rows], y[rows])
            parts.append(torch.stack([terms.log_likelihood, terms.kl]))
        full, found = parts[0], torch.stack(parts[1:])
        torch.testing.assert_close(found.mean(0), full, rtol=1e-12, atol=1e-12)
        assert found[:, 0].std() > 1e-2  # they do differ from one another
        assert (found[:, 1].std() > 1e-2) == (one is None)


# -- the weight of the KL -------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_kl_weight_scales_the_kl_and_nothing_else(weight):
    model, guide = Linear(), LinearGuide()
    x, y = linear_data()
    Fixed.noise = nodes(numbers(2, seed=5))
    b = bound(model, guide)
    terms = b.terms(x, y)
    expected = weight * terms.kl - terms.log_likelihood
    b.kl_weight.fill_(weight)
    elbo = EnumMeanFieldELBO(kl_weight=weight)
    values = list(guide.parameters())
    want = torch.autograd.grad(expected, values)
    for loss in (b(x, y), elbo.differentiable_loss(model, guide, x, y), elbo(model, guide)(x, y)):
        got = torch.autograd.grad(loss, values)
        assert_same((loss.detach(), got), (expected.detach(), want))
    assert elbo.loss(model, guide, x, y) == pytest.approx(float(expected.detach()))
    assert float(type(b)(model, guide, elbo).kl_weight) == weight


# -- under SVI ------------------------------------------------------------------------------------


def test_plain_svi_reaches_the_conjugate_posterior():
    """In Pyro's default mode of parameters; the noise is such that every gradient is exact."""
    assert pyro.settings.get("module_local_params") is False
    model, guide = Linear(1), LinearGuide(1)
    x, y = linear_data(1)
    Fixed.noise = nodes(*sigma_points(1))
    optimizer = pyro.optim.PyroOptim(torch.optim.Rprop, {"lr": 0.1})
    svi = SVI(model, guide, optimizer, EnumMeanFieldELBO(num_particles=2, max_plate_nesting=1))
    losses = [svi.step(x, y) for _ in range(60)]
    assert {"logits", "loc", "log_scale"} <= set(pyro.get_param_store().keys())
    precision = 1 / model.spread**2 + model.gain**2 * (x**2).sum() / model.noise**2
    mean = model.gain * (x[:, 0] @ y) / model.noise**2 / precision
    torch.testing.assert_close(guide.loc[:, 0].detach(), mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(guide.log_scale[:, 0].exp(), precision**-0.5, rtol=1e-3, atol=1e-3)
    cov = model.noise**2 * torch.eye(N) + (model.gain * model.spread)[:, None, None] ** 2 * x @ x.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(N), cov).log_prob(y)
    joint = model.log_prior + evidence
    torch.testing.assert_close(guide.logits.softmax(0), joint.softmax(0), rtol=1e-3, atol=1e-3)
    assert losses[0] > losses[-1] + 0.1
    assert svi.evaluate_loss(x, y) == pytest.approx(-float(joint.logsumexp(0)), abs=1e-5)


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


def traceable(name):
    model = depth_model() if "depth" in name else None
    return {
        "depth": lambda: (model, guides.CategoricalDepth(model)),
        "depth summed out": lambda: (model, guides.Marginal(model)),
        "union": lambda: (Linear(), LinearGuide(family=dist.Normal)),
        "log-ratio": lambda: (Positive(), PositiveGuide()),
        "score function": lambda: (Counts(), CountsGuide()),
    }[name]()


@pytest.mark.parametrize(
    "name", ["depth", "depth summed out", "union", "log-ratio", "score function"]
)
def test_the_bound_traces_to_a_graph(name):
    """The graph agrees on other parameters, other data and another weight, gradients included."""
    b = bound(*traceable(name))
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
            loss = f(others, weight, x, y)
            found.append((loss.detach(), torch.autograd.grad(loss, others), torch.randn(())))
    assert_same(found[1], found[0])
    assert found[0][2] == found[1][2]  # and the same random numbers were used up
    assert all(s.op != "get_attr" or s.target.startswith("_tensor_") for s in graph.graph.nodes)
    torch.manual_seed(8)
    with_checks = call(others, weight, x, y)
    torch.testing.assert_close(with_checks.detach(), found[0][0], rtol=1e-12, atol=1e-12)


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
