"""Where the estimator is exact and where it draws: site by site, by hand."""

import itertools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import (
    DRAWN,
    ENUM,
    MASK,
    Fixed,
    N,
    Pair,
    X,
    assert_same,
    averaged,
    double_precision,
    nodes,
    sigma_points,
    trace_enum,
)
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO

float64 = pytest.fixture(autouse=True)(double_precision)


# -- where only the log-ratio exists --------------------------------------------------------------


def positive_scale():
    p = Pair(mu=(), sigma=())

    def model(x):
        with pyro.plate("rows", x.shape[0]):
            s = pyro.sample("s", dist.Gamma(2.5, 1.5))
            pyro.sample("y", dist.Normal(0.0, s.sqrt()), obs=x)

    def guide(x):
        with pyro.plate("rows", x.shape[0]):
            pyro.sample("s", dist.LogNormal(p.mu, 0.5 * p.sigma.exp()))

    return p.of(model, guide)


def test_log_ratio_against_quadrature():
    """KL(LogNormal || Gamma) and its gradients by the formula, ours by Gauss-Hermite nodes."""
    pair = positive_scale()
    count = 30
    off = torch.arange(1.0, count).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    weights = vectors[0] ** 2  # Golub and Welsch: nodes of the standard normal

    def at_node(x):
        with pyro.plate("rows", x.shape[0]):
            exp = dist.transforms.ExpTransform()
            q = dist.TransformedDistribution(Fixed(pair.mu, 0.5 * pair.sigma.exp()), [exp])
            pyro.sample("s", q)

    elbo = EnumMeanFieldELBO(max_plate_nesting=1)
    ours = averaged(
        lambda: pair.graded(elbo.terms(pair.model, at_node, X[:1]).kl), values[:, None], weights
    )
    mu, sigma = pair.mu, 0.5 * pair.sigma.exp()
    a, b = torch.tensor(2.5), torch.tensor(1.5)
    entropy = mu + 0.5 * torch.log(2 * math.pi * math.e * sigma**2)
    mean = torch.exp(mu + sigma**2 / 2)
    expected = -entropy - (a * b.log() - torch.lgamma(a) + (a - 1) * mu - b * mean)
    assert_same(ours, pair.graded(expected))


def test_log_ratio_against_trace_elbo_in_expectation():
    """Means over 40 x 200 draws differ by less than 5 standard errors (false alarm < 1e-5)."""
    pair = positive_scale()
    rows = X[0].expand(200)

    def mean_and_error(elbo, seed):
        found = [pair.evaluate(elbo, rows, seed=seed + i) for i in range(40)]
        table = torch.stack([torch.stack([loss, *grads]) for loss, grads in found]) / 200
        return table.mean(0), table.var(0) / 40

    ours, our_var = mean_and_error(EnumMeanFieldELBO(max_plate_nesting=1), 100)
    theirs, their_var = mean_and_error(Trace_ELBO(), 200)
    assert ((ours - theirs).abs() < 5 * (our_var + their_var).sqrt()).all()
    assert (our_var.sqrt() < 0.1).all()


# -- the order of sites ---------------------------------------------------------------------------


def reversed_order(a=1.3, s=0.6):
    """p(w) p(z | w) against q(z) q(w | z)."""
    p = Pair(mz=(), sz=(), slope=(), mw=(), sw=())

    def model(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Normal(a * w, s))
        pyro.sample("y", dist.Normal(z + w, 1.0), obs=x[0])

    def guide(x):
        z = pyro.sample("z", Fixed(p.mz, p.sz.exp()))
        pyro.sample("w", Fixed(p.slope * z + p.mw, p.sw.exp()))

    return p.of(model, guide)


def test_an_order_that_makes_the_analytic_kl_wrong():
    """Ours has the exact expectation; the KL of z given a w that depends on it has another."""
    a, s = 1.3, 0.6
    p = reversed_order(a, s)
    y = X[0]
    sz, sw = p.sz.exp(), p.sw.exp()
    ez, ew = p.mz, p.slope * p.mz + p.mw
    vz, vw, both = sz**2, p.slope**2 * sz**2 + sw**2, p.slope * sz**2
    normal = 0.5 * math.log(2 * math.pi)
    log_q = -2 * normal - sz.log() - sw.log() - 1.0
    log_w = -normal - 0.5 * (vw + ew**2)
    square = vz + a**2 * vw - 2 * a * both + (ez - a * ew) ** 2
    log_z = -normal - math.log(s) - square / (2 * s**2)
    log_y = -normal - 0.5 * (vz + vw + 2 * both + (y - ez - ew) ** 2)
    expected = log_q - log_w - log_z - log_y
    elbo = EnumMeanFieldELBO(max_plate_nesting=0)
    assert_same(averaged(lambda: p.evaluate(elbo), sigma_points(2)), p.graded(expected))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pyro only warns of the order
        naive, _ = averaged(lambda: p.evaluate(TraceMeanField_ELBO()), sigma_points(2))
    assert abs(naive - expected) > 0.1


def test_only_the_site_that_needs_it_gives_up_the_analytic_kl():
    """w follows nothing in the model: KL(q(w | z) || p(w)) stays analytic."""
    p = reversed_order()
    e, f = torch.tensor(0.4), torch.tensor(-1.1)
    Fixed.noise = nodes(e, f)
    kl = EnumMeanFieldELBO(max_plate_nesting=0).terms(p.model, p.guide, X).kl
    normal = torch.distributions.Normal
    z = p.mz + p.sz.exp() * e
    q = normal(p.slope * z + p.mw, p.sw.exp())
    w = q.loc + q.scale * f
    of_w = torch.log(1 / q.scale) + (q.scale**2 + q.loc**2) / 2 - 0.5
    of_z = normal(p.mz, p.sz.exp()).log_prob(z) - normal(1.3 * w, 0.6).log_prob(z)
    torch.testing.assert_close(kl, of_w + of_z)


# -- score functions, averaged over all draws -----------------------------------------------------


def drawn():
    """A Bernoulli that gives what it is told, and is not enumerated."""

    class Told(dist.Bernoulli):
        value = None

        def sample(self, sample_shape=()):
            return type(self).value.expand(self.batch_shape)

    return Told


def masks_in_a_plate_of_their_own(first, second):
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
            m = pyro.sample("m", first(logits=p.q), infer=DRAWN)
        pyro.sample("r", second(logits=p.qr[0] + p.qr[1] * m[1]), infer=DRAWN)

    return p.of(model, guide)


def draws_under_a_sum(first, second):
    """The model sums j out over a plate in which the guide draws m."""
    p = Pair(q=(2,), qr=(2,))

    def model(x):
        r = pyro.sample("r", dist.Bernoulli(0.3))
        j = pyro.sample("j", dist.Bernoulli(0.2), infer=ENUM)
        with pyro.plate("data", 2):
            m = pyro.sample("m", dist.Bernoulli(0.4))
            pyro.sample("y", dist.Normal(m * (2 * j - 1) + r, 1.0), obs=x[:2])

    def guide(x):
        r = pyro.sample("r", second(logits=p.qr[0]), infer=DRAWN)
        with pyro.plate("data", 2):
            pyro.sample("m", first(logits=p.q + p.qr[1] * r), infer=DRAWN)

    return p.of(model, guide)


@pytest.mark.parametrize("make", [masks_in_a_plate_of_their_own, draws_under_a_sum])
def test_score_functions_reach_over_plates(make):
    """Over all draws the estimates have the gradient of the bound, where those of Pyro have not."""
    first, second = drawn(), drawn()
    pair = make(first, second)

    def evaluate(elbo):
        total, grads, exact = 0.0, [0.0] * len(pair.params), 0.0
        for m0, m1, r in itertools.product([0.0, 1.0], repeat=3):
            first.value, second.value = torch.tensor([m0, m1]), torch.tensor(r)
            loss, found = pair.evaluate(elbo)
            log_q = poutine.trace(pair.guide).get_trace(X).log_prob_sum()
            weight = log_q.exp().detach()
            total = total + weight * loss
            grads = [g + weight * f for g, f in zip(grads, found, strict=True)]
            # By hand: q times (log q - log p(z, y)), j summed out in probabilities.
            joint = 0.0
            for j in [0.0, 1.0] if make is draws_under_a_sum else [None]:
                draws = {"m": first.value, "r": second.value}
                draws |= {} if j is None else {"j": torch.tensor(j)}
                conditioned = poutine.condition(pair.model, draws)
                joint = joint + poutine.trace(conditioned).get_trace(X).log_prob_sum().exp()
            exact = exact + log_q.exp() * (log_q - torch.log(joint))
        return (total, grads), pair.graded(exact)

    ours, exact = evaluate(EnumMeanFieldELBO(max_plate_nesting=1))
    assert_same(ours, exact)
    theirs, _ = evaluate(trace_enum(1))
    assert max(float((a - b).abs().max()) for a, b in zip(theirs[1], exact[1], strict=True)) > 1e-2


# -- masks and scales -----------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["masks", "scales", "both", "equal"])
def test_a_site_that_is_masked_or_scaled_otherwise_in_the_model(which):
    """``m_q s_q E log q - m_p s_p E log p``, with the KL for the part that they share."""
    p = Pair(loc=(N,), scale=(N,))
    ours = MASK if which in ("masks", "both") else ~MASK.roll(1)
    theirs = ~MASK.roll(1)
    s_q = torch.tensor(0.4) if which in ("scales", "both") else torch.tensor(1.5)
    s_p = torch.tensor(1.5)

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
