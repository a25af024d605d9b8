"""The bound by hand: closed forms, quadrature, enumeration, the evidence, minibatches."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import (
    DRAWN,
    ENUM,
    MASK,
    B,
    Fixed,
    K,
    Linear,
    LinearGuide,
    N,
    Pair,
    X,
    assert_same,
    averaged,
    double_precision,
    graded,
    linear_data,
    nodes,
    numbers,
    sigma_points,
    trace_enum,
)
from pyro import poutine
from pyro.infer import SVI, TraceEnum_ELBO
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO, bound

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


# -- the weight of the KL -------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.0, 0.25])
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


# -- where only the log-ratio exists --------------------------------------------------------------


# -- score functions, averaged over all draws -----------------------------------------------------


class Told(dist.Bernoulli):
    """It gives what it is told: a number for the plate, or two numbers in it."""

    values = None

    def sample(self, sample_shape=()):
        return self.values[self.batch_shape]


def masks_in_a_plate_of_their_own():
    """y is in another plate than the masks, and depends on all of them."""
    p = Pair(q=(2,), qr=(2,))

    def model(x):
        with pyro.plate("edges", 2):
            m = pyro.sample("m", dist.Bernoulli(0.4))
        r = pyro.sample("r", dist.Bernoulli(0.2 + 0.5 * m[0]))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(m[0] - 2 * m[1] * r, 1.0), obs=x)

    def guide(x):
        with pyro.plate("edges", 2):
            m = pyro.sample("m", Told(logits=p.q), infer=DRAWN)
        pyro.sample("r", Told(logits=p.qr[0] + p.qr[1] * m[1]), infer=DRAWN)

    return p.of(model, guide)


def draws_under_a_sum():
    """The model sums j out over a plate in which the guide draws m."""
    p = Pair(q=(2,), qr=(2,))

    def model(x):
        r = pyro.sample("r", dist.Bernoulli(0.3))
        j = pyro.sample("j", dist.Bernoulli(0.2), infer=ENUM)
        with pyro.plate("data", 2):
            m = pyro.sample("m", dist.Bernoulli(0.4))
            pyro.sample("y", dist.Normal(m * (2 * j - 1) + r, 1.0), obs=x[:2])

    def guide(x):
        r = pyro.sample("r", Told(logits=p.qr[0]), infer=DRAWN)
        with pyro.plate("data", 2):
            pyro.sample("m", Told(logits=p.q + p.qr[1] * r), infer=DRAWN)

    return p.of(model, guide)


@pytest.mark.parametrize("make", [masks_in_a_plate_of_their_own, draws_under_a_sum])
def test_score_functions_reach_over_plates(make):
    """Over all draws the estimates have the gradient of the bound, where those of Pyro have not."""
    pair = make()

    def evaluate(elbo):
        total, grads, exact = 0.0, [0.0] * len(pair.params), 0.0
        for m0, m1, r in itertools.product([0.0, 1.0], repeat=3):
            draws = {"m": torch.tensor([m0, m1]), "r": torch.tensor(r)}
            Told.values = {t.shape: t for t in draws.values()}
            loss, found = pair.evaluate(elbo)
            log_q = poutine.trace(pair.guide).get_trace(X).log_prob_sum()
            weight = log_q.exp().detach()
            total = total + weight * loss
            grads = [g + weight * f for g, f in zip(grads, found, strict=True)]
            # By hand: q times (log q - log p(z, y)), j summed out in probabilities.
            joint = 0.0
            for j in [0.0, 1.0] if make is draws_under_a_sum else [None]:
                summed = {} if j is None else {"j": torch.tensor(j)}
                conditioned = poutine.condition(pair.model, draws | summed)
                joint = joint + poutine.trace(conditioned).get_trace(X).log_prob_sum().exp()
            exact = exact + log_q.exp() * (log_q - torch.log(joint))
        return (total, grads), pair.graded(exact)

    ours, exact = evaluate(EnumMeanFieldELBO(max_plate_nesting=1))
    assert_same(ours, exact)
    theirs, _ = evaluate(trace_enum(1))
    assert max(float((a - b).abs().max()) for a, b in zip(theirs[1], exact[1], strict=True)) > 1e-2


# -- masks and scales -----------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["both", "equal"])
def test_a_site_that_is_masked_or_scaled_otherwise_in_the_model(which):
    """``m_q s_q E log q - m_p s_p E log p``, with the KL for the part that they share."""
    p = Pair(loc=(N,), scale=(N,))
    ours, theirs = MASK if which == "both" else ~MASK.roll(1), ~MASK.roll(1)
    s_q, s_p = torch.tensor(0.4 if which == "both" else 1.5), torch.tensor(1.5)

    def model(x):
        with pyro.plate("data", N), poutine.mask(mask=theirs), poutine.scale(scale=s_p):
            pyro.sample("w", dist.Normal(0.5, 2.0))

    def guide(x):
        with pyro.plate("data", N), poutine.mask(mask=ours), poutine.scale(scale=s_q):
            pyro.sample("w", Fixed(p.loc, p.scale.exp()))

    p.of(model, guide)
    elbo = EnumMeanFieldELBO(max_plate_nesting=1)
    mean, grads = averaged(lambda: p.evaluate(elbo), sigma_points(1))
    scale = p.scale.exp()
    log_q = -0.5 * torch.log(2 * math.pi * math.e * scale**2)
    log_p = -0.5 * math.log(2 * math.pi * 4) - (scale**2 + (p.loc - 0.5) ** 2) / 8
    expected = (ours * s_q * log_q - theirs * s_p * log_p).sum()
    assert_same((mean, grads), p.graded(expected))
    Fixed.noise = nodes(torch.tensor(0.3))
    off = abs(p.evaluate(elbo)[0] - mean)
    assert (off < 1e-12) == (which == "equal")  # equal in value is as good as the same object


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
            plain = p.of(model, lambda x: None).evaluate(EnumMeanFieldELBO())
            assert float(found[-1][0]) == pytest.approx(2.5 * float(plain[0]))
    assert_same(*found)
