"""Relaxed structure in log space: densities, draws, divergences, and use in Pyro."""

import itertools
import math

import mpmath
import pyro
import pytest
import torch
import torch.distributions as td
from pyro.infer import SVI, TraceMeanField_ELBO
from pyroccam.models.relaxed import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    straight_through,
    straight_through_cube,
)
from pyroccam.models.relaxed_kl import gumbel_kl, relaxed_bernoulli_kl, relaxed_categorical_kl
from random_weights import limit
from scipy.integrate import quad
from torch.distributions import kl_divergence
from torch.fx.experimental.proxy_tensor import make_fx

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
        "dirichlet": ExpDirichlet(weights, **options),
    }


def z_scores(draws, mean):
    """Of the means over the first dimension."""
    return ((draws.mean(0) - mean) / (draws.std(0) / math.sqrt(len(draws)))).abs()


# Densities


def plane(width, step):
    """log γ on a grid of (log γ₁/γ₃, log γ₂/γ₃), and the area of a cell: ``log_prob`` is the
    density in just these coordinates, for dγ₁ dγ₂ = γ₁ γ₂ γ₃ du dv."""
    axis = torch.arange(-width, width + step, step, dtype=F64)
    u, v = torch.meshgrid(axis, axis, indexing="ij")
    return torch.log_softmax(torch.stack([u, v, torch.zeros_like(u)], -1), -1), step**2


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_density_and_kl_of_categorical_by_quadrature(temperature):
    value, area = plane(40.0 / temperature, 0.5 / temperature)
    q = ExpRelaxedCategorical(temperature, probs=WEIGHTS)
    p = ExpRelaxedCategorical(temperature, probs=OTHER)
    log_q, log_p = q.log_prob(value), p.log_prob(value)
    assert float(log_q.exp().sum() * area) == pytest.approx(1.0, abs=1e-11)
    kl = float((log_q.exp() * (log_q - log_p)).sum() * area)
    assert float(kl_divergence(q, p)) == pytest.approx(kl, abs=1e-10)


def test_density_and_kl_of_dirichlet_by_quadrature():
    value, area = plane(60.0, 0.5)
    q, p = ExpDirichlet(WEIGHTS), ExpDirichlet(OTHER)
    log_q = q.log_prob(value)
    density = log_q.exp() * area
    assert float(density.sum()) == pytest.approx(1.0, abs=1e-10)
    kl = float((density * (log_q - p.log_prob(value))).sum())
    assert float(kl_divergence(q, p)) == pytest.approx(kl, abs=1e-9)
    torch.testing.assert_close((density[..., None] * value).sum((0, 1)), q.mean)
    torch.testing.assert_close((density[..., None] * value.exp()).sum((0, 1)), q.gamma_mean)


def test_density_and_kl_of_bernoulli_by_quadrature():
    for temperature in (0.2, 1.0, 5.0):
        value = torch.arange(-50.0, 50.0, 0.125, dtype=F64) / temperature
        q = LogitRelaxedBernoulli(temperature, probs=t(0.8))
        p = LogitRelaxedBernoulli(temperature, logits=t(-2.0))
        density = q.log_prob(value).exp() * 0.125 / temperature
        assert float(density.sum()) == pytest.approx(1.0, abs=1e-12)
        kl = float((density * (q.log_prob(value) - p.log_prob(value))).sum())
        assert float(kl_divergence(q, p)) == pytest.approx(kl, abs=1e-12)


def test_densities_are_those_of_torch_on_the_simplex():
    value = torch.log_softmax(torch.randn(50, 3, generator=torch.manual_seed(0), dtype=F64), -1)
    jacobian = value.sum(-1)
    for temperature in (0.3, 1.0, 4.0):
        theirs = td.RelaxedOneHotCategorical(t(temperature), probs=WEIGHTS).log_prob(value.exp())
        ours = ExpRelaxedCategorical(temperature, probs=WEIGHTS).log_prob(value)
        torch.testing.assert_close(ours, theirs + jacobian)
        logit = value[:, 0]
        jacobian_b = logit.sigmoid().log() + (-logit).sigmoid().log()
        theirs = td.RelaxedBernoulli(t(temperature), logits=t(0.7)).log_prob(logit.sigmoid())
        ours = LogitRelaxedBernoulli(t(temperature), logits=t(0.7)).log_prob(logit)
        torch.testing.assert_close(ours, theirs + jacobian_b)
    theirs = td.Dirichlet(WEIGHTS).log_prob(value.exp())
    torch.testing.assert_close(ExpDirichlet(WEIGHTS).log_prob(value), theirs + jacobian)


# Draws


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 20.0])
def test_the_largest_is_chosen_by_weight_at_every_temperature(temperature, dtype):
    torch.manual_seed(0)
    q = ExpRelaxedCategorical(temperature, probs=WEIGHTS.to(dtype))
    share = WEIGHTS / WEIGHTS.sum()
    torch.testing.assert_close(q.probs.to(F64), share, check_dtype=False, rtol=1e-6, atol=0.0)
    chosen = straight_through(q.sample((20_000,))).to(F64)
    assert float(z_scores(chosen, share).max()) < limit(3)
    gate = LogitRelaxedBernoulli(temperature, probs=torch.tensor(0.3, dtype=dtype))
    assert float(gate.probs) == pytest.approx(0.3)
    on = straight_through_cube(gate.sample((20_000,))).to(F64)
    assert float(z_scores(on, 0.3)) < limit(1)


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
    draws = 1000 if k == 3 else 100
    logits = (3.0 * torch.randn(k)).requires_grad_()
    for shared in (0.01, 0.5, 20.0):
        tensor = torch.tensor(temperature, requires_grad=True)
        q = ExpRelaxedCategorical(tensor, logits=logits)
        p = ExpRelaxedCategorical(shared, logits=torch.randn(k))
        d = ExpDirichlet(torch.full((k,), 1e-4).requires_grad_())
        for value, fn in itertools.product((q.rsample((draws,)), d.rsample((draws,))), (q, p, d)):
            log_prob = fn.log_prob(value)
            assert value.isfinite().all()
            assert log_prob.isfinite().all()
            leaves = (logits, tensor, d.concentration)
            for gradient in torch.autograd.grad(
                log_prob.mean() + value.exp()[:, 0].mean(),
                leaves,
                allow_unused=True,
                retain_graph=True,
            ):
                assert gradient is None or gradient.isfinite().all()
    gate = LogitRelaxedBernoulli(temperature, logits=100.0 * logits)
    assert gate.log_prob(gate.rsample((draws,))).isfinite().all()


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_the_ends_of_the_uniform_variables_are_finite(dtype, monkeypatch):
    def ends(shape, dtype, device):
        last = 1.0 - torch.finfo(dtype).eps / 2.0
        return torch.tensor([0.0, last, 0.5], dtype=dtype)[torch.arange(shape.numel()) % 3].reshape(
            shape
        )

    monkeypatch.setattr(torch, "rand", ends)
    for law in laws(dtype).values():
        value = law.rsample((9,))
        assert value.isfinite().all()
        assert law.log_prob(value).isfinite().all()


def test_gradients_of_draws_by_finite_differences():
    weights = t([1.0, -2.0, 0.5])

    def mean_of(logits, temperature):
        torch.manual_seed(5)
        value = ExpRelaxedCategorical(temperature, logits=logits).rsample((200,))
        gate = LogitRelaxedBernoulli(temperature, logits=logits).rsample((200,))
        return (value.exp() * weights).sum(-1).mean() + value.square().mean(), gate.sigmoid().mean()

    for temperature in (0.3, 3.0):
        args = WEIGHTS.log().requires_grad_(), t(temperature).requires_grad_()
        assert torch.autograd.gradcheck(mean_of, args)


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


# Divergences


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
    assert float(gumbel_kl(logits + 3.0, logits).abs().max()) < 1e-4


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
        for kl in (relaxed_categorical_kl, gumbel_kl, relaxed_bernoulli_kl):
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
    """Of the choices, of the relaxed choices, of the utilities: each is a function of the next."""
    generator = torch.manual_seed(10)
    for k, size in itertools.product((2, 3, 8, 50), (0.1, 1.0, 5.0)):
        q, p = size * torch.randn(2, 200, k, generator=generator, dtype=F64)
        discrete = kl_divergence(td.Categorical(logits=q), td.Categorical(logits=p))
        relaxed, utilities = relaxed_categorical_kl(q, p), gumbel_kl(q, p)
        assert (discrete < relaxed).all()
        assert (relaxed < utilities).all()


def test_kl_of_utilities_is_the_least_over_a_shift():
    q, p = WEIGHTS.log(), OTHER.log()
    shifts = torch.linspace(-5, 5, 100_001, dtype=F64)[:, None]
    each = kl_divergence(td.Gumbel(q + shifts, t(1.0)), td.Gumbel(p, t(1.0))).sum(-1)
    assert float(gumbel_kl(q, p)) == pytest.approx(float(each.min()), abs=1e-8)


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
    for kl in (relaxed_categorical_kl, gumbel_kl, relaxed_bernoulli_kl):
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


def test_kl_of_different_choices():
    for kl in (relaxed_categorical_kl, gumbel_kl):
        with pytest.raises(ValueError, match=r"q has logits of shape \(3,\), p of shape \(2, 4\)"):
            kl(torch.zeros(3), torch.zeros(2, 4))


# Use


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "dirichlet"])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_shapes_and_wrappers(kind, dtype):
    torch.manual_seed(12)
    law = laws(dtype)[kind]
    event = () if kind == "bernoulli" else (3,)
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


def test_values_off_the_simplex():
    for law in (laws()["categorical"], laws()["dirichlet"]):
        for value in (t([0.2, 0.3, 0.5]), t([0.0, -math.inf, -math.inf])):  # γ; a vertex
            with pytest.raises(ValueError, match=r"support \(LogSimplex\(\)\)"):
                law.log_prob(value)
        with pytest.raises(NotImplementedError):
            td.biject_to(law.support)


@pytest.mark.parametrize("law", [ExpRelaxedCategorical, LogitRelaxedBernoulli])
def test_what_is_refused(law):
    name = law.__name__
    for wrong in (0.0, -1.0, math.inf, math.nan):
        message = rf"{name}\(temperature\) must be positive and finite, got {wrong}"
        for temperature in (wrong, torch.tensor(wrong)):
            with pytest.raises(ValueError, match=message):
                law(temperature, logits=torch.zeros(3))
    with pytest.raises(ValueError, match=r"one for the whole batch.*got shape \(1,\)"):
        law(torch.ones(1), logits=torch.zeros(3))
    with pytest.raises(ValueError, match=f"{name} takes one of probs and logits, got neither"):
        law(1.0)
    with pytest.raises(ValueError, match="got both"):
        law(1.0, torch.ones(3) / 2, torch.zeros(3))
    for wrong in (0.0, -0.1):
        with pytest.raises(ValueError, match=f"{name} needs .*probs.*; got probs tensor"):
            law(1.0, torch.tensor([0.5, wrong]))
    with pytest.raises(ValueError, match=f"{name} needs .*finite logits; got logits tensor"):
        law(1.0, logits=torch.tensor([0.5, math.nan]))


def test_what_dirichlet_refuses():
    with pytest.raises(ValueError, match="parameter concentration .* ExpDirichlet"):
        ExpDirichlet(torch.tensor([1.0, 0.0]))
    for wrong in (torch.ones(()), torch.ones(4, 1)):
        for law in (ExpDirichlet, lambda w: ExpRelaxedCategorical(1.0, w)):
            with pytest.raises(ValueError, match="at least two alternatives.*of shape"):
                law(wrong)


def test_straight_through():
    log_gamma = torch.log_softmax(torch.randn(1000, 3, generator=torch.manual_seed(13)), -1)
    log_gamma.requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5])
    hard = straight_through(log_gamma)
    assert torch.equal(hard.argmax(-1), log_gamma.argmax(-1))
    assert set(hard.flatten().tolist()) == {0.0, 1.0}
    assert torch.equal(hard.sum(-1), torch.ones(1000))
    found, soft = (
        torch.autograd.grad((f * weights).sum(), log_gamma)[0] for f in (hard, log_gamma.exp())
    )
    assert torch.equal(found, soft)
    logit = torch.tensor([-3.0, 0.0, 2.0], requires_grad=True)
    hard = straight_through_cube(logit)
    assert hard.tolist() == [0.0, 0.0, 1.0]
    found, soft = (torch.autograd.grad(f.sum(), logit)[0] for f in (hard, logit.sigmoid()))
    assert torch.equal(found, soft)


def one_loss(logits, concentration, temperature):
    """Of every law, draw and KL."""
    options = {"temperature": temperature, "validate_args": False}
    q = ExpRelaxedCategorical(logits=logits, **options)
    p = ExpRelaxedCategorical(logits=torch.zeros_like(logits), **options)
    gate, other = (LogitRelaxedBernoulli(logits=w, **options) for w in (logits, 1.0 - logits))
    d = ExpDirichlet(concentration, validate_args=False)
    choice, simplex, bit = q.rsample((2,)), d.expand((2,)).rsample(), gate.rsample()
    loss = (q.log_prob(simplex) - d.log_prob(choice)).mean() + other.log_prob(bit).sum()
    loss = loss + (straight_through(choice) * choice).sum() + straight_through_cube(bit).sum()
    return loss + kl_divergence(q, p) + kl_divergence(gate, other).sum()


def with_gradients(f):
    def call(*args):
        loss = f(*args)
        return loss, *torch.autograd.grad(loss, args)

    return call


def test_traces_to_a_graph():
    """The loss alone, then differentiated; and both together."""
    args = [t([0.1, 0.7, -1.0]), t([0.3, 1.0, 2.0]), t(0.7)]
    others = [t([1.0, 0.0, 2.0]), t([1.0, 0.1, 0.2]), t(0.2)]
    args, others = ([a.requires_grad_() for a in some] for some in (args, others))
    forward = make_fx(one_loss, pre_dispatch=True)(*args)
    together = make_fx(with_gradients(one_loss))(*args)
    found = []
    for f in (with_gradients(one_loss), with_gradients(forward), together):
        torch.manual_seed(14)
        found.append([value.detach() for value in f(*others)])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_vectorises_with_different_noise_in_each():
    def draws(logits):
        q = ExpRelaxedCategorical(0.5, logits=logits, validate_args=False)
        d = ExpDirichlet(logits.exp(), validate_args=False)
        g = LogitRelaxedBernoulli(0.5, logits=logits, validate_args=False)
        kl = relaxed_categorical_kl(logits, torch.zeros_like(logits))
        return q.rsample(), d.rsample(), g.rsample(), kl

    rows = torch.vmap(draws, randomness="different")(torch.zeros(4, 3))
    for value in rows[:3]:
        assert len(value[:, 0].unique()) == 4
    assert torch.equal(rows[3], torch.zeros(4))


@pytest.mark.parametrize("shared", [True, False])
def test_in_a_model_and_its_guide(shared):
    """Pyro's own ELBO takes the KL where the temperature is one tensor, else a draw's ratio."""
    temperature = torch.tensor(0.5)
    other = temperature if shared else temperature.clone()
    features, y = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 2.0]]), torch.tensor([2.0, 2.0])

    def model(observed):
        with pyro.plate("edges", 2):
            prior = ExpRelaxedCategorical(temperature, probs=torch.ones(3))
            log_gamma = pyro.sample("edge.structure", prior)
        gate = pyro.sample("gate", LogitRelaxedBernoulli(temperature, probs=torch.tensor(0.5)))
        if observed:
            mean = (log_gamma.exp() * features).sum(-1) * gate.sigmoid()
            pyro.sample("y", pyro.distributions.Normal(mean, 0.1).to_event(1), obs=y)

    def guide(observed):
        logits = pyro.param("logits", lambda: torch.tensor([0.5, 0.0, -1.0]))
        odds = pyro.param("odds", lambda: torch.tensor(1.0))
        with pyro.plate("edges", 2):
            pyro.sample("edge.structure", ExpRelaxedCategorical(other, logits=logits))
        pyro.sample("gate", LogitRelaxedBernoulli(other, logits=odds))

    torch.manual_seed(15)
    with pyro.get_param_store().scope(), pyro.validation_enabled():
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), TraceMeanField_ELBO())
        losses = [svi.evaluate_loss(False) for _ in range(3)]
        logits, odds = pyro.param("logits").detach(), pyro.param("odds").detach()
        kl = 2 * relaxed_categorical_kl(logits, torch.zeros(3))
        kl = float(kl + relaxed_bernoulli_kl(odds, torch.zeros(())))
        assert (losses == pytest.approx([kl] * 3)) is shared
        losses = [svi.step(True) for _ in range(60)]
        assert all(map(math.isfinite, losses))
        assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
        assert int(pyro.param("logits").argmax()) == 2
