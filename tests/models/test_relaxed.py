"""Relaxed structure in log space: densities, draws, divergences, and what is refused."""

import itertools
import math

import mpmath
import pytest
import torch
import torch.distributions as td
from pyroccam.data import PyroccamError
from pyroccam.models.distributions import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    RelaxedGate,
    straight_through,
)
from pyroccam.models.distributions.relaxed_kl import relaxed_bernoulli_kl, relaxed_categorical_kl
from random_weights import limit
from scipy import stats
from torch.distributions import kl_divergence

F64 = torch.float64
WEIGHTS = torch.tensor([3.0, 1.0, 0.5], dtype=F64)
OTHER = torch.tensor([0.2, 1.0, 4.0], dtype=F64)


def t(value):
    return torch.tensor(value, dtype=F64)


def laws(dtype=F64, **options):
    """One of each, of batch shape (2,)."""
    weights = torch.stack([WEIGHTS, OTHER]).to(dtype)
    return {
        "categorical": ExpRelaxedCategorical(0.5, probs=weights, **options),
        "bernoulli": LogitRelaxedBernoulli(0.5, logits=weights[:, 0].log(), **options),
        "gate": RelaxedGate(0.5, logits=weights[:, 0].log(), **options),
        "dirichlet": ExpDirichlet(weights, **options),
    }


def z_scores(draws, mean):
    """Of the means over the first dimension."""
    return ((draws.mean(0) - mean) / (draws.std(0) / math.sqrt(len(draws)))).abs()


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gate", "dirichlet"])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_shapes_and_wrappers(kind, dtype):
    torch.manual_seed(12)
    law = laws(dtype)[kind]
    event = () if kind in ("bernoulli", "gate") else (3,)
    assert (law.batch_shape, law.event_shape) == ((2,), event)
    wide = law.expand((5, 2))
    value = wide((4,))
    assert value.shape == (4, 5, 2, *event)
    assert value.dtype is dtype
    assert type(wide) is type(law)
    torch.testing.assert_close(wide.log_prob(value), law.log_prob(value))
    assert wide.to_event(1).log_prob(value).shape == (4, 5)
    masked = law.mask(torch.tensor([True, False])).log_prob(value)
    assert torch.equal(masked[..., 0], law.log_prob(value)[..., 0])
    assert not masked[..., 1].any()
    with pytest.raises(ValueError, match="support"):
        wide.log_prob(torch.full_like(value, math.nan))
    assert laws(dtype, validate_args=False)[kind].expand((5, 2))._validate_args is False


@pytest.mark.parametrize("law", [ExpRelaxedCategorical, LogitRelaxedBernoulli])
def test_what_is_refused(law):
    """What would be computed with, or be broadcast."""
    for wrong in (0.0, -1.0, math.inf, math.nan):
        for temperature in (wrong, torch.tensor(wrong)):
            with pytest.raises(PyroccamError):
                law(temperature, logits=torch.zeros(3))
    with pytest.raises(PyroccamError):
        law(torch.ones(3), logits=torch.zeros(3))
    for alone in (ExpDirichlet, lambda weights: ExpRelaxedCategorical(1.0, weights)):
        with pytest.raises(PyroccamError):
            alone(torch.ones(4, 1))
    with pytest.raises(PyroccamError):
        relaxed_categorical_kl(torch.zeros(3), torch.zeros(1))


# Densities


def plane(width, step):
    """log γ on a grid of (log γ₁/γ₃, log γ₂/γ₃), and the area of a cell: ``log_prob`` is the
    density in just these coordinates, for dγ₁ dγ₂ = γ₁ γ₂ γ₃ du dv."""
    axis = torch.arange(-width, width + step, step, dtype=F64)
    u, v = torch.meshgrid(axis, axis, indexing="ij")
    return torch.log_softmax(torch.stack([u, v, torch.zeros_like(u)], -1), -1), step**2


def test_density_and_kl_of_dirichlet_by_quadrature():
    value, area = plane(60.0, 0.5)
    q, p = ExpDirichlet(WEIGHTS), ExpDirichlet(OTHER)
    log_q = q.log_prob(value)
    density = log_q.exp() * area
    assert float(density.sum()) == pytest.approx(1.0, abs=1e-10)
    kl = float((density * (log_q - p.log_prob(value))).sum())
    assert float(kl_divergence(q, p)) == pytest.approx(kl, abs=1e-9)
    torch.testing.assert_close((density[..., None] * value).sum((0, 1)), q.mean)
    gamma = (density[..., None] * value.exp()).sum((0, 1))
    torch.testing.assert_close(gamma, WEIGHTS / WEIGHTS.sum())


def test_gates_are_those_of_torch():
    gate = RelaxedGate(0.4, logits=WEIGHTS.log())
    of_torch = td.RelaxedBernoulli(t(0.4), logits=WEIGHTS.log())
    value = torch.rand(1000, 3, dtype=F64, generator=torch.manual_seed(3))
    torch.testing.assert_close(gate.log_prob(value), of_torch.log_prob(value))
    torch.testing.assert_close(gate.probs, of_torch.probs)
    # The probability below γ is 1 / (1 + exp(logit - T logit γ)).
    for draws in gate.sample((2000,)).T, gate.rsample((2000,)).T:
        for one, logit in zip(draws, WEIGHTS.log(), strict=True):
            below = (0.4 * one.logit() - logit).sigmoid()
            assert stats.kstest(below.numpy(), "uniform").pvalue > 1e-5


def test_densities_are_those_of_torch_on_the_simplex():
    value = torch.log_softmax(torch.randn(50, 3, generator=torch.manual_seed(0), dtype=F64), -1)
    jacobian = value.sum(-1)
    for temperature in (0.3, 1.0, 4.0):
        theirs = td.RelaxedOneHotCategorical(t(temperature), probs=WEIGHTS)
        ours = ExpRelaxedCategorical(temperature, probs=WEIGHTS)
        torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value.exp()) + jacobian)
        torch.testing.assert_close(ours.probs, theirs.probs)
        logit = value[:, 0]
        jacobian_b = logit.sigmoid().log() + (-logit).sigmoid().log()
        theirs = td.RelaxedBernoulli(t(temperature), logits=t(0.7)).log_prob(logit.sigmoid())
        ours = LogitRelaxedBernoulli(t(temperature), logits=t(0.7)).log_prob(logit)
        torch.testing.assert_close(ours, theirs + jacobian_b)
    theirs = td.Dirichlet(WEIGHTS).log_prob(value.exp())
    torch.testing.assert_close(ExpDirichlet(WEIGHTS).log_prob(value), theirs + jacobian)


# Draws


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_draws_have_the_density(temperature):
    """T log γᵢ/γ₃ is logistic about log sᵢ/s₃, and so is the logit of a gate."""
    torch.manual_seed(1)
    draws = ExpRelaxedCategorical(temperature, probs=WEIGHTS).sample((20_000,))
    gates = LogitRelaxedBernoulli(temperature, probs=WEIGHTS[:2] / 4.0).sample((20_000,))
    for value, odds in (
        (draws[:, :2] - draws[:, 2:], WEIGHTS[:2] / WEIGHTS[2]),
        (gates, WEIGHTS[:2] / (4.0 - WEIGHTS[:2])),
    ):
        rank = (temperature * value - odds.log()).sigmoid()  # uniform
        powers = torch.cat([rank, rank**2, rank**8], -1)
        exact = t([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 9, 1 / 9])
        assert float(z_scores(powers, exact).max()) < limit(6)


def test_draws_of_dirichlet():
    torch.manual_seed(2)
    a = t([0.1, 1.0, 5.0])
    total = a.sum()
    q = ExpDirichlet(a)
    value = q.sample((40_000,))
    torch.testing.assert_close(value.logsumexp(-1), torch.zeros(40_000, dtype=F64))
    gamma = value.exp()
    exact = a * (total - a) / (total**2 * (total + 1)) + (a / total) ** 2
    moments = torch.cat([value, gamma, gamma**2], -1)
    exact = torch.cat([a.digamma() - total.digamma(), a / total, exact])
    assert float(z_scores(moments, exact).max()) < limit(9)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_draws_of_dirichlet_at_small_concentration(dtype):
    torch.manual_seed(3)
    share = WEIGHTS / WEIGHTS.sum()
    gamma = ExpDirichlet(1e-4 * share.to(dtype)).sample((20_000,)).exp()
    assert float(gamma.amax(-1).mean()) > 0.999
    assert float(z_scores(straight_through(gamma.log()).to(F64), share).max()) < limit(3)


@pytest.mark.parametrize("k", [3, 1000])
@pytest.mark.parametrize("temperature", [0.01, 20.0])
def test_single_precision_is_finite(k, temperature):
    torch.manual_seed(4)
    logits = (3.0 * torch.randn(k)).requires_grad_()
    tensor = torch.tensor(temperature, requires_grad=True)
    q = ExpRelaxedCategorical(tensor, logits=logits)
    d = ExpDirichlet(torch.full((k,), 1e-4).requires_grad_())
    others = [ExpRelaxedCategorical(shared, logits=torch.randn(k)) for shared in (0.01, 0.5, 20.0)]
    leaves = (logits, tensor, d.concentration)
    for value, fn in itertools.product((q.rsample((100,)), d.rsample((100,))), (q, d, *others)):
        log_prob = fn.log_prob(value)
        assert value.isfinite().all()
        assert log_prob.isfinite().all()
        mean = log_prob.mean() + value.exp()[:, 0].mean()
        for gradient in torch.autograd.grad(mean, leaves, retain_graph=True, allow_unused=True):
            assert gradient is None or gradient.isfinite().all()
    gate = LogitRelaxedBernoulli(temperature, logits=100.0 * logits)
    assert gate.log_prob(gate.rsample((100,))).isfinite().all()


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_the_ends_of_the_uniform_variables_are_finite(dtype, monkeypatch):
    def ends(shape, dtype, device):
        last = 1.0 - torch.finfo(dtype).eps / 2.0
        values = torch.tensor([0.0, last, 0.5], dtype=dtype)
        return values[torch.arange(shape.numel()) % 3].reshape(shape)

    monkeypatch.setattr(torch, "rand", ends)
    for law in laws(dtype).values():
        value = law.rsample((9,))
        assert value.isfinite().all()
        assert law.log_prob(value).isfinite().all()


def test_gradients_of_draws_of_dirichlet():
    """In the mean those of E γᵢ = aᵢ / A, E γᵢ² = aᵢ (aᵢ + 1) / A (A + 1), E log γᵢ."""
    torch.manual_seed(6)
    a = t([0.2, 0.7, 4.0])
    leaf = a.expand(40_000, 3).clone().requires_grad_()
    value = ExpDirichlet(leaf).rsample()

    def means(a):
        total = a.sum()
        gamma = a / total
        square = gamma * (a + 1) / (total + 1)
        return torch.cat([gamma, square, a.digamma() - total.digamma()])

    exact = torch.autograd.functional.jacobian(means, a)
    found = torch.cat([value.exp(), value.exp() ** 2, value], -1).sum(0)
    for one, gradient in zip(found, exact, strict=True):
        (draws,) = torch.autograd.grad(one, leaf, retain_graph=True)
        assert float(z_scores(draws, gradient).max()) < limit(27)


def test_gradient_of_dirichlet_at_small_concentration():
    """Scaling all of a: draws stay put in the limit, so E γ does, and log γ grows as 1 / a."""
    torch.manual_seed(7)
    for dtype, size in ((F64, 1e-6), (torch.float32, 1e-4), (torch.float32, 1e-12)):
        scale = torch.tensor(size, dtype=dtype, requires_grad=True)
        value = ExpDirichlet(scale * WEIGHTS.to(dtype)).rsample((1000,))
        (gradient,) = torch.autograd.grad(value.mean(), scale)
        expected = -value.detach().mean() / size
        assert float(gradient / expected) == pytest.approx(1.0, rel=1e-3)


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
