"""Divergences of relaxed structure."""

import mpmath
import pytest
import torch
import torch.distributions as td
from pyroccam.models.distributions.relaxed import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    RelaxedGate,
)
from pyroccam.models.distributions.relaxed_kl import relaxed_bernoulli_kl, relaxed_categorical_kl
from relaxed_laws import F64, OTHER, WEIGHTS, t
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
    logits = logits.detach().double()
    assert float(relaxed_categorical_kl(logits + 3.0, logits).abs().max()) < 1e-12


@pytest.mark.parametrize("kl", [relaxed_categorical_kl, relaxed_bernoulli_kl])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_kl_of_many_alternatives_is_finite(kl, dtype):
    torch.manual_seed(8)
    q = (1e4 * torch.randn(1000, dtype=dtype)).requires_grad_()
    value = kl(q, torch.zeros_like(q))
    assert value.isfinite().all()
    assert torch.autograd.grad(value.sum(), q)[0].isfinite().all()


@pytest.mark.parametrize(("dtype", "eps"), [(F64, 1e-15), (torch.float32, 4e-7)])
def test_kl_of_bernoulli_is_exact(dtype, eps):
    d = torch.cat([torch.logspace(-6, 2, 60, dtype=F64), t([2.0, 1.99, 2.01, 1e3])]).to(dtype)
    kl = relaxed_bernoulli_kl(d.requires_grad_(), torch.zeros((), dtype=dtype))
    with mpmath.workdps(40):
        exact = [float(x * mpmath.coth(mpmath.mpf(x) / 2) - 2) for x in d.tolist()]
    torch.testing.assert_close(kl, torch.tensor(exact, dtype=dtype), rtol=eps, atol=0.0)
    (gradient,) = torch.autograd.grad(kl.sum(), d)
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
    for one, other in ((shared, copied), (0.5, 0.6), (0.5, shared)):
        for law in (at, lambda temperature: LogitRelaxedBernoulli(temperature, logits=WEIGHTS)):
            with pytest.raises(NotImplementedError, match="equal temperatures only"):
                kl_divergence(law(one), law(other))
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
