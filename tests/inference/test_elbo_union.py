"""Structure and weights together: closed forms, the evidence, minibatches, the KL's weight."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import (
    B,
    Fixed,
    K,
    Linear,
    LinearGuide,
    N,
    assert_same,
    averaged,
    double_precision,
    graded,
    linear_data,
    nodes,
    numbers,
    sigma_points,
)
from pyro.infer import SVI
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO, bound
from pyroccam.models.parameters import LocalModule

float64 = pytest.fixture(autouse=True)(double_precision)


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


def conjugate(model, x, y):
    """In one dimension: mean and scale of p(w | k, y), and log p(k, y), each of shape (K,)."""
    precision = 1 / model.spread**2 + model.gain**2 * (x**2).sum() / model.noise**2
    mean = model.gain * (x[:, 0] @ y) / model.noise**2 / precision
    cov = model.noise**2 * torch.eye(N) + (model.gain * model.spread)[:, None, None] ** 2 * x @ x.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(N), cov).log_prob(y)
    return mean, precision**-0.5, model.log_prior + evidence


@pytest.mark.parametrize("rows", [N, B])
def test_union_against_brute_force(rows):
    model, guide = Linear(), LinearGuide()
    x, y = (t[:rows] for t in linear_data())
    b = bound(model, guide, max_plate_nesting=1)
    found = {}
    names = ("log_likelihood", "kl")
    for name, expected in zip(names, closed_form(model, guide, x, y), strict=True):
        found[name] = averaged(
            lambda name=name: graded(getattr(b.terms(x, y), name), guide.parameters()),
            sigma_points(2).unsqueeze(1),
        )
        assert_same(found[name], graded(expected, guide.parameters()))
    Fixed.noise = nodes(*sigma_points(2))
    terms = b.terms(x, y)
    torch.testing.assert_close(terms.kl, found["kl"][0], rtol=1e-12, atol=0.0)  # analytic: no noise
    assert abs(terms.log_likelihood - found["log_likelihood"][0]) > 1e-3


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
    mean, scale, joint = conjugate(model, x, y)
    evidence = float(joint.logsumexp(0))
    b = bound(model, guide, max_plate_nesting=1)

    def elbo():
        return -float(averaged(lambda: (b(x, y), ()), sigma_points(1))[0])

    with torch.no_grad():
        guide.loc.copy_(mean.unsqueeze(-1))
        guide.log_scale.copy_(scale.log().unsqueeze(-1))
        assert elbo() < evidence - 0.02
        guide.logits.copy_(joint)
        assert elbo() == pytest.approx(evidence, rel=1e-12)
        guide.loc[1] += 0.2
        assert elbo() < evidence - 1e-4


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
    expected = graded(weight * terms.kl - terms.log_likelihood, guide.parameters())
    b.kl_weight.fill_(weight)
    elbo = EnumMeanFieldELBO(kl_weight=weight)
    for loss in (b(x, y), elbo.differentiable_loss(model, guide, x, y), elbo(model, guide)(x, y)):
        assert_same(graded(loss, guide.parameters()), expected)
    assert elbo.loss(model, guide, x, y) == pytest.approx(float(expected[0]))
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
    losses = [svi.step(x, y) for _ in range(40)]
    assert {"logits", "loc", "log_scale"} <= set(pyro.get_param_store().keys())
    mean, scale, joint = conjugate(model, x, y)
    ours = (guide.loc[:, 0], guide.log_scale[:, 0].exp(), guide.logits.softmax(0))
    for found, expected in zip(ours, (mean, scale, joint.softmax(0)), strict=True):
        torch.testing.assert_close(found.detach(), expected, rtol=1e-3, atol=1e-3)
    assert losses[0] > losses[-1] + 0.1
    assert svi.evaluate_loss(x, y) == pytest.approx(-float(joint.logsumexp(0)), abs=1e-5)
