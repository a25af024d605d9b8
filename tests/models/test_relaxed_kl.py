"""Divergences of relaxed structure."""

import itertools
import math

import mpmath
import pytest
import torch
import torch.distributions as td
from pyroccam.data.errors import PyroccamError
from pyroccam.models.distributions.relaxed import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    RelaxedGate,
)
from pyroccam.models.distributions.relaxed_kl import relaxed_bernoulli_kl, relaxed_categorical_kl
from random_weights import limit
from relaxed_laws import F64, OTHER, WEIGHTS, t, z_scores
from scipy.integrate import quad
from torch.distributions import kl_divergence


def exact_kl(log_r, digits=120):
    """By the closed form, in many digits; equal ratios are set 1e-30 apart."""
    with mpmath.workdps(digits):
        log_r = [mpmath.mpf(x) + i * mpmath.mpf(10) ** -30 for i, x in enumerate(log_r)]
        k, r = len(log_r), [mpmath.exp(x) for x in log_r]
        mean = -mpmath.euler
        for i, x in enumerate(log_r):
            others = (r[i] / (r[i] - r[j]) for j in range(k) if j != i)
            mean += mpmath.fprod(others) * x
        return -sum(log_r) - k * mpmath.digamma(k) + k * mean


def exact_slope(log_r, i):
    """Of :func:`exact_kl` in one of the logarithms, by differences."""
    with mpmath.workdps(120):
        step = mpmath.mpf(10) ** -15
        ends = ([x + (i == j) * h for j, x in enumerate(log_r)] for h in (step, -step))
        return float((exact_kl(next(ends)) - exact_kl(next(ends))) / (2 * step))


def test_the_reference_by_a_mean_over_the_sum():
    """K = 2, 3: log S of S = Σ rᵢ Eᵢ against its density, by adaptive quadrature."""
    for r in ([0.7, 2.0], [0.3, 1.0, 6.0]):
        k = len(r)
        shares = [math.prod(a / (a - b) for b in r if b != a) for a in r]

        def integrand(u, r=r, shares=shares):
            s = math.exp(u)
            return u * s * sum(c / a * math.exp(-s / a) for c, a in zip(shares, r, strict=True))

        mean = sum(quad(integrand, a, a + 2.0, epsabs=1e-13)[0] for a in range(-40, 8, 2))
        kl = -sum(map(math.log, r)) - k * float(mpmath.digamma(k)) + k * mean
        assert float(exact_kl([math.log(a) for a in r])) == pytest.approx(kl, abs=1e-9)


def ratios(k, spread, seed=0):
    """Logarithms in (-spread, spread), a fixed law for K alternatives."""
    generator = torch.Generator().manual_seed(1000 * k + seed)
    return spread * (2.0 * torch.rand(k, generator=generator, dtype=F64) - 1.0)


ALL_RATIOS = {
    **{f"{k} within {s}": ratios(k, s) for k in (2, 3, 5, 12) for s in (0.01, 1.0, 10.0, 40.0)},
    "all equal": t([0.3] * 4),
    "nearly equal": t([0.0, 1e-9, -1e-9, 1e-5]),
    "pairs equal": t([1.0, 1.0, -2.0, -2.0, 0.5]),
    "one apart up": t([40.0, -40.0, -40.0]),
    "one apart down": t([40.0, 40.0, -40.0]),
}


@pytest.mark.parametrize(("dtype", "eps"), [(F64, 1e-15), (torch.float32, 3e-7)])
@pytest.mark.parametrize("name", ALL_RATIOS)
def test_kl_at_equal_temperature(name, dtype, eps):
    log_r = ALL_RATIOS[name].to(dtype).requires_grad_()
    kl = relaxed_categorical_kl(torch.zeros_like(log_r), log_r)
    exact = float(exact_kl(log_r.tolist()))
    assert float(kl.detach()) == pytest.approx(exact, rel=eps, abs=eps * len(log_r))
    (gradient,) = torch.autograd.grad(kl, log_r)
    slopes = [exact_slope(log_r.tolist(), i) for i in range(len(log_r))]
    torch.testing.assert_close(gradient.double(), t(slopes), rtol=0.0, atol=4.0 * eps * len(log_r))


def test_kl_where_laws_agree():
    logits = (5.0 * torch.randn(100, 7, generator=torch.manual_seed(0))).requires_grad_()
    kl = relaxed_categorical_kl(logits, logits.detach())
    (gradient,) = torch.autograd.grad(kl.sum(), logits)
    assert torch.equal(kl, torch.zeros(100))
    assert float(gradient.abs().max()) < 2e-5
    logits = logits.detach()
    shifted = relaxed_categorical_kl(logits.double() + 3.0, logits.double())
    assert float(shifted.abs().max()) < 1e-12


def test_kl_of_many_alternatives():
    """K = 1000 against the mean over draws of the sum; extremes are finite."""
    torch.manual_seed(8)
    log_r = torch.randn(1000, dtype=F64)
    exponential = -torch.rand(20_000, 1000, dtype=F64).log()
    ratio = 1000 * ((exponential @ log_r.exp()).log() - exponential.sum(-1).log())
    kl = relaxed_categorical_kl(torch.zeros_like(log_r), log_r)
    assert float(z_scores(ratio - log_r.sum(), kl)) < limit(1)
    for dtype in (F64, torch.float32):
        q = (1e4 * torch.randn(1000, dtype=dtype)).requires_grad_()
        for kl in (relaxed_categorical_kl, relaxed_bernoulli_kl):
            value = kl(q, torch.zeros_like(q))
            assert value.isfinite().all()
            assert torch.autograd.grad(value.sum(), q)[0].isfinite().all()


@pytest.mark.parametrize("temperature", [5.0, 1.0, 0.1, 0.01])
def test_kl_by_draws_does_not_depend_on_the_temperature(temperature):
    torch.manual_seed(9)
    shared = t(temperature)
    weights = torch.stack([WEIGHTS, t([1.0, 1.0, 1.0])])
    q, p = ExpRelaxedCategorical(shared, weights), ExpRelaxedCategorical(shared, OTHER)
    value = q.sample((40_000,))
    kl = kl_divergence(q, p)
    assert kl.shape == (2,)
    assert float(z_scores(q.log_prob(value) - p.log_prob(value), kl).max()) < limit(2)


def test_order_of_divergences():
    """Of the choices, of the relaxed choices, of the utilities log s + G less their best shift:
    each is a function of the next."""
    generator = torch.manual_seed(10)
    for k, size in itertools.product((2, 3, 8, 50), (0.1, 1.0, 5.0)):
        q, p = size * torch.randn(2, 200, k, generator=generator, dtype=F64)
        discrete = kl_divergence(td.Categorical(logits=q), td.Categorical(logits=p))
        relaxed = relaxed_categorical_kl(q, p)
        utilities = k * ((p - q).logsumexp(-1) - math.log(k)) - (p - q).sum(-1)
        assert (discrete < relaxed).all()
        assert (relaxed < utilities).all()


@pytest.mark.parametrize(("dtype", "eps"), [(F64, 1e-15), (torch.float32, 4e-7)])
def test_kl_of_bernoulli_is_that_of_two_alternatives(dtype, eps):
    d = torch.cat([torch.logspace(-6, 2, 60, dtype=F64), t([2.0, 1.99, 2.01, 1e3])]).to(dtype)
    kl = relaxed_bernoulli_kl(d.requires_grad_(), torch.zeros((), dtype=dtype))
    pair = torch.stack([d, torch.zeros_like(d)], -1)
    two = relaxed_categorical_kl(pair, torch.zeros_like(pair))
    torch.testing.assert_close(kl, two, rtol=2 * eps, atol=2 * eps)
    gradient, of_two = (torch.autograd.grad(f.sum(), d)[0] for f in (kl, two))
    torch.testing.assert_close(gradient, of_two, rtol=4 * eps, atol=4 * eps)
    with mpmath.workdps(40):
        exact = [float(x * mpmath.coth(mpmath.mpf(x) / 2) - 2) for x in d.tolist()]
    torch.testing.assert_close(kl, torch.tensor(exact, dtype=dtype), rtol=eps, atol=0.0)
    small = d < 1e-3
    torch.testing.assert_close(gradient[small], d[small] / 3.0, rtol=1e-6, atol=0.0)


def test_derivatives_of_divergences():
    generator = torch.manual_seed(11)
    q, p = torch.randn(2, 2, 4, generator=generator, dtype=F64).requires_grad_().unbind()
    for kl in (relaxed_categorical_kl, relaxed_bernoulli_kl):
        args = q.detach().requires_grad_(), p.detach()[:1].requires_grad_()
        assert torch.autograd.gradcheck(kl, args)
        assert torch.autograd.gradgradcheck(kl, args)


def test_which_temperatures_are_equal():
    shared, copied = t(0.5), t(0.5)

    def at(temperature):
        return ExpRelaxedCategorical(temperature, probs=torch.stack([WEIGHTS, OTHER]))

    expected = relaxed_categorical_kl(at(1).logits, at(1).logits[:1])
    for one, other in ((shared, shared), (0.5, 0.5), (2, 2.0)):
        q, p = at(one), ExpRelaxedCategorical(other, probs=WEIGHTS).expand((2,))
        torch.testing.assert_close(kl_divergence(q, p), expected)
        whole = kl_divergence(q.to_event(1), p.to_event(1))
        torch.testing.assert_close(whole, expected.sum())
        masked = kl_divergence(*(fn.mask(torch.tensor([True, False])) for fn in (q, p)))
        torch.testing.assert_close(masked, expected * t([1.0, 0.0]))
    assert at(shared).expand((3, 2)).temperature is shared
    message = "ExpRelaxedCategorical .* equal temperatures only: .* the same tensor"
    for one, other in ((shared, copied), (0.5, 0.6), (0.5, shared)):
        with pytest.raises(NotImplementedError, match=message):
            kl_divergence(at(one), at(other))
        with pytest.raises(NotImplementedError, match="LogitRelaxedBernoulli"):
            kl_divergence(
                LogitRelaxedBernoulli(one, logits=WEIGHTS), LogitRelaxedBernoulli(other, OTHER / 5)
            )
    with pytest.raises(NotImplementedError):
        kl_divergence(at(shared), ExpDirichlet(WEIGHTS))


def test_kl_of_gates_is_that_of_their_logits():
    logits, other = WEIGHTS.log(), OTHER.log()
    q, p = RelaxedGate(0.3, logits=logits), RelaxedGate(0.3, logits=other)
    torch.testing.assert_close(kl_divergence(q, p), relaxed_bernoulli_kl(logits, other))
    of_torch = td.RelaxedBernoulli(t(0.3), logits=other)
    for unlike in (RelaxedGate(0.4, logits=other), of_torch):
        with pytest.raises(NotImplementedError):
            kl_divergence(q, unlike)


def test_kl_of_different_choices():
    with pytest.raises(PyroccamError):
        relaxed_categorical_kl(torch.zeros(3), torch.zeros(2, 4))
