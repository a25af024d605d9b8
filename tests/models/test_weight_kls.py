"""The KLs registered for weight priors, against quadrature and exact formulas."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyroccam.models.distributions import ImproperLogUniform
from pyroccam.models.distributions.log_uniform import (
    log_uniform_kl,
    log_uniform_kl_once,
    molchanov_kl,
)
from pyroccam.models.priors.ard import EmpiricalNormal
from pyroccam.models.priors.student_t import student_t_kl
from scipy.integrate import quad
from torch.distributions import kl_divergence
from torch.fx.experimental.proxy_tensor import make_fx

F64 = torch.float64


def expect(f, points=()):
    """``E f(ε)`` of a standard normal, by adaptive quadrature; ``points`` are where f bends."""
    cuts = sorted({-12.0, 12.0, *(float(p) for p in points if abs(p) < 12)})
    total = 0.0
    for low, high in pairwise(cuts):
        precise = {"limit": 400, "epsabs": 1e-10, "epsrel": 1e-10}
        total += quad(lambda e: f(e) * math.exp(-0.5 * e * e), low, high, **precise)[0]
    return total / math.sqrt(2 * math.pi)


def around(centre, width):
    """Cuts that close in on a bend of the given width."""
    steps = [width * 10.0**k for k in range(9)]
    return [centre, *(centre + s for s in steps), *(centre - s for s in steps)]


def t(value):
    return torch.tensor(value, dtype=F64)


# Log-uniform


def exact_log_uniform(u):
    """By the hypergeometric series, or for great u by the moments of 1 + ε / m."""
    if u > 60:
        powers = (mpmath.fac2(2 * k - 1) / (2 * k * mpmath.mpf(2 * u) ** k) for k in range(1, 25))
        return float((mpmath.log(4 * u) + mpmath.euler) / 2 - sum(powers))
    return float(u * mpmath.hyp2f2(1, 1, 1.5, 2, -u))


U = np.exp(np.linspace(-30, 30, 241))
EXACT = t([exact_log_uniform(u) for u in U])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 6e-7), (torch.float32, 1.2e-6)])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("form", [log_uniform_kl, log_uniform_kl_once])
def test_log_uniform_everywhere(form, dtype, bound, scale):
    loc = (torch.tensor(U).mul(2).sqrt() * scale).to(dtype)
    found = form(loc, torch.tensor(scale, dtype=dtype)).double()
    rounding = EXACT * torch.finfo(dtype).eps  # of the value itself, 16 at most
    assert ((found - EXACT).abs() - rounding).max() < bound
    # Relative too where the KL is small: pruned weights still feel it.
    small = EXACT < 1e-2
    torch.testing.assert_close(found[small], EXACT[small], rtol=2e-5, atol=1e-30)


def test_log_uniform_gradients_twice():
    loc, scale = t([0.0, 0.3, -2.0, 9.0]).requires_grad_(), t([1.0, 0.2, 3.0, 0.5]).requires_grad_()
    assert torch.autograd.gradcheck(log_uniform_kl, (loc, scale))
    assert torch.autograd.gradgradcheck(log_uniform_kl, (loc, scale))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_form_for_training_has_the_same_value_and_slope(dtype):
    both = []
    for form in (log_uniform_kl, log_uniform_kl_once):
        loc = torch.cat([torch.zeros(1), torch.logspace(-12, 12, 97)]).to(dtype).requires_grad_()
        scale = torch.linspace(0.1, 2, 98).to(dtype).requires_grad_()
        value = form(loc, scale)
        both.append((value.detach(), *torch.autograd.grad(value.sum(), (loc, scale))))
    close = {"rtol": 1e-12, "atol": 1e-13} if dtype is F64 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(both[1], both[0], **close)


def test_published_approximations():
    log_alpha = torch.linspace(-8, 8, 1601, dtype=F64)
    loc, scale = (-log_alpha / 2).exp(), t(1.0)
    exact = log_uniform_kl(loc, scale)
    # As the authors wrote it, -KL with softplus in place of its log.
    a = log_alpha
    published = 0.63576 * torch.sigmoid(1.87320 + 1.48695 * a) - 0.5 * torch.log1p((-a).exp())
    published = 0.63576 - published
    torch.testing.assert_close(molchanov_kl(loc, scale), published, rtol=0, atol=1e-7)
    error = (molchanov_kl(loc, scale) - exact).abs()
    assert error.max() == pytest.approx(0.0094, abs=1e-4)
    assert log_alpha[error.argmax()] == pytest.approx(-3.5, abs=0.1)
    assert molchanov_kl(t(0.0), t(1.0)) < 1e-9


def test_log_density_agrees_with_the_kl():
    q = dist.Normal(t(0.4), t(0.7))
    p = ImproperLogUniform()
    f = expect(
        lambda e: float(q.log_prob(t(0.4 + 0.7 * e)) - p.log_prob(t(0.4 + 0.7 * e))), [-4 / 7]
    )
    assert f == pytest.approx(float(kl_divergence(q, p)), abs=1e-6)


# Student's t


@pytest.mark.parametrize("df", [1e-3, 0.5, 4.0, 100.0])
@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1e-4), (0.3, 1e-2), (-1.0, 1.0), (5.0, 20.0)])
def test_student_t_by_quadrature(df, loc, scale):
    q, p = dist.Normal(t(loc), t(scale)), dist.StudentT(t(df), t(0.1), t(0.5))
    norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi * 0.5**2)
    tail = expect(
        lambda e: math.log1p(((loc + scale * e - 0.1) / 0.5) ** 2 / df),
        around((0.1 - loc) / scale, 0.5 * math.sqrt(df) / scale),
    )
    exact = -0.5 * math.log(2 * math.pi * math.e * scale**2) - norm + (df + 1) / 2 * tail
    assert float(kl_divergence(q, p)) == pytest.approx(exact, abs=5.6e-7 * (df + 1))
    rough = dist.Normal(torch.tensor(loc), torch.tensor(scale))
    single = kl_divergence(rough, dist.StudentT(df, 0.1, 0.5))
    assert float(single) == pytest.approx(exact, abs=2e-6 * (df + 1))


def kls():
    """The priors of five numbers, and the family of their posterior, by name."""
    half, one = torch.tensor(0.5), torch.tensor(1.0)
    student = dist.StudentT(half, torch.tensor(0.0), one)
    single = {
        "exact": (dist.Normal, ImproperLogUniform()),
        "molchanov": (dist.Normal, ImproperLogUniform(kl="molchanov")),
        "student": (dist.Normal, student),
        "gamma": (dist.LogNormal, dist.Gamma(half, torch.tensor(1e10))),
        "gamma 1e-8": (dist.LogNormal, dist.Gamma(half, torch.tensor(1e16))),
        "inverse gamma": (dist.LogNormal, dist.InverseGamma(half, one)),
        "half-cauchy": (dist.LogNormal, dist.HalfCauchy(torch.tensor(1e-5))),
    }
    found = {name: (q, prior.expand((5,)).to_event(1)) for name, (q, prior) in single.items()}
    return found | {
        "empirical": (dist.Normal, EmpiricalNormal((5,))),
        "empirical shared": (dist.Normal, EmpiricalNormal((5,), (0,))),
        "empirical, moving": (dist.Normal, EmpiricalNormal((5,), (0,), moves=True)),
    }


def test_student_t_gradients():
    args = [t([0.0, 0.5]), t([0.3, 1e-2]), t([0.5, 5.0]), t([1.0, 0.2]), t([0.0, 0.1])]
    assert torch.autograd.gradcheck(student_t_kl, [a.requires_grad_() for a in args])


# Log-normal posteriors of positive scales


def log_normal_kl(loc, scale, log_p):
    """By quadrature over y = log z; ``log_p(y)`` is the log density of z at e^y."""

    def integrand(e):
        y = loc + scale * e
        return -0.5 * e * e - math.log(scale) - 0.5 * math.log(2 * math.pi) - y - log_p(y)

    return expect(integrand)


@pytest.mark.parametrize("a", [0.5, 2.5])
@pytest.mark.parametrize("log_theta", [0.0, 2 * math.log(0.3), 2 * math.log(1e-5), -37.0])
@pytest.mark.parametrize(("shift", "scale"), [(-1.7, 0.1), (0.5, 1.4), (-6.0, 0.8)])
def test_gamma_and_inverse_gamma_by_quadrature(a, log_theta, shift, scale):
    def log_gamma(y):
        return (a - 1) * y - math.exp(y - log_theta) - math.lgamma(a) - a * log_theta

    rate, loc = math.exp(-log_theta), log_theta + shift
    exact = log_normal_kl(loc, scale, log_gamma)
    q = dist.LogNormal(t(loc), t(scale))
    assert float(kl_divergence(q, dist.Gamma(t(a), t(rate)))) == pytest.approx(exact, abs=1e-8)
    # A reciprocal has the same KL: log z and log 1/z carry the same information.
    q = dist.LogNormal(t(-loc), t(scale))
    inverse = dist.InverseGamma(t(a), t(rate))
    assert float(kl_divergence(q, inverse)) == pytest.approx(exact, abs=1e-8)
    single = kl_divergence(dist.LogNormal(torch.tensor(loc), scale), dist.Gamma(a, rate))
    assert float(single) == pytest.approx(exact, rel=1e-5, abs=1e-5)


def log_half_cauchy(tau):
    def log_p(y):
        x = 2 * (y - math.log(tau))
        return math.log(2 / (math.pi * tau)) - (max(x, 0) + math.log1p(math.exp(-abs(x))))

    return log_p


@pytest.mark.parametrize("tau", [1.0, 1e-5])
@pytest.mark.parametrize(
    ("scale", "bound"),
    [(0.05, 3e-9), (0.7, 3e-9), (1.5, 3e-9), (2.0, 3e-7), (3.0, 3e-5), (5.0, 1e-3)],
)
def test_half_cauchy_by_quadrature(tau, scale, bound):
    p = dist.HalfCauchy(t(tau))
    for shift in (-20.0, -2.0, 0.1, 1.0, 12.0):
        loc = math.log(tau) + shift
        exact = log_normal_kl(loc, scale, log_half_cauchy(tau))
        found = kl_divergence(dist.LogNormal(t(loc), t(scale)), p)
        assert float(found) == pytest.approx(exact, abs=bound)
        single = kl_divergence(dist.LogNormal(torch.tensor(loc), scale), dist.HalfCauchy(tau))
        assert float(single) == pytest.approx(exact, abs=bound + 1e-5)


@pytest.mark.parametrize(
    "prior", [dist.Gamma(0.5, 1e10), dist.InverseGamma(0.5, 1.0), dist.HalfCauchy(1e-5)]
)
def test_gradients_of_log_normal_kls(prior):
    prior = type(prior)(*(t(float(getattr(prior, n))) for n in prior.arg_constraints))
    centre = -24.7 if isinstance(prior, dist.Gamma) else 1.0
    loc, scale = (t([centre, centre + 1]).requires_grad_(), t([0.1, 1.3]).requires_grad_())
    assert torch.autograd.gradcheck(
        lambda m, s: kl_divergence(dist.LogNormal(m, s), prior.expand((2,))), (loc, scale)
    )


# Empirical normal


@pytest.mark.parametrize(
    ("shared", "moves"),
    [((), False), *((s, m) for s in ((0,), (1,), (0, 1)) for m in (False, True))],
)
def test_empirical_normal_is_the_best_normal(shared, moves):
    """Its KL and gradient are those of the best normal held: a prior at its minimum does not
    count."""
    torch.manual_seed(0)
    at = [torch.randn(3, 4, dtype=F64) + 1, torch.rand(3, 4, dtype=F64) + 0.1]
    values = [one.clone().requires_grad_() for one in at]
    p, (loc, scale) = EmpiricalNormal((3, 4), shared, moves=moves), at

    def kl(loc, scale):
        return kl_divergence(dist.Normal(loc, scale).to_event(2), p)

    mean = loc.mean(shared, keepdim=True) if moves else torch.zeros_like(loc)
    variance = scale.square() + (loc - mean).square()
    variance = variance.mean(shared, keepdim=True) if shared else variance
    of_held = kl_divergence(dist.Normal(*values), dist.Normal(mean, variance.sqrt())).sum()
    torch.testing.assert_close(kl(*values), of_held)
    of_held = torch.autograd.grad(of_held, values)
    if shared:
        torch.testing.assert_close(torch.autograd.grad(kl(*values), values), of_held)
    assert torch.autograd.gradcheck(kl, values)


def test_the_best_normal_of_a_large_layer_in_single_precision():
    """By its sums alone, of a few million, the KL of so many weights would be off by nats."""
    torch.manual_seed(0)
    loc, scale = 1e-3 * torch.randn(400, 800), 1e-3 * (0.9 + 0.2 * torch.rand(400, 800))
    p = EmpiricalNormal((400, 800), (0, 1), moves=True)
    found = float(kl_divergence(dist.Normal(loc, scale).to_event(2), p))
    known = dist.Normal(loc.double(), scale.double()).to_event(2)
    assert found == pytest.approx(float(kl_divergence(known, p)), rel=1e-6)


# All of them


def kl_of(name):
    family, prior = kls()[name]

    def kl(loc, scale):
        return kl_divergence(family(loc, scale, validate_args=False).to_event(1), prior)

    return kl


@pytest.fixture
def unchecked():
    """LogNormal validates the arguments of its base whatever it is told, which no tracer can."""
    torch.distributions.Distribution.set_default_validate_args(False)
    yield
    torch.distributions.Distribution.set_default_validate_args(__debug__)


@pytest.mark.parametrize("name", kls())
def test_extremes_are_finite_in_single_precision(name):
    low = -60.0 if kls()[name][0] is dist.LogNormal else -1e8
    for size in (1e-8, 1e-3, 1.0, 6.0):
        m = torch.tensor([low, -3.0, 0.0, 1e-20, 3.0], requires_grad=True)
        s = torch.full((5,), size, requires_grad=True)
        kl = kl_of(name)(m, s)
        kl.backward()
        for value in (kl, m.grad, s.grad):
            assert torch.isfinite(value).all(), (name, size)


@pytest.mark.parametrize("name", kls())
def test_kls_vectorise_and_trace(name, unchecked):
    kl = kl_of(name)
    torch.manual_seed(1)
    loc, scale = torch.randn(3, 5) - 1, torch.rand(3, 5) + 0.1

    def draw_and_kl(m, s):
        return kl(m + 0.0 * torch.randn(5), s)

    looped = torch.stack([kl(m, s) for m, s in zip(loc, scale, strict=True)])
    vectorised = torch.vmap(draw_and_kl, randomness="different")(loc, scale)
    torch.testing.assert_close(vectorised, looped)

    def value_and_gradient(m, s):
        value = kl(m.requires_grad_(), s.requires_grad_())
        return value, *torch.autograd.grad(value, (m, s))

    graph = make_fx(value_and_gradient)(loc[0], scale[0])
    found, expected = graph(loc[1], scale[1]), value_and_gradient(loc[1], scale[1])
    torch.testing.assert_close(found, expected)
    graph = make_fx(kl, pre_dispatch=True)(loc[0], scale[0])
    torch.testing.assert_close(graph(loc[1], scale[1]), expected[0])
