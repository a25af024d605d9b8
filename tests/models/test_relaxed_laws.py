"""Densities and draws of relaxed structure."""

import itertools

import pytest
import torch
import torch.distributions as td
from pyroccam.models.distributions.relaxed import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    RelaxedGate,
    straight_through,
)
from random_weights import limit
from relaxed_laws import F64, OTHER, WEIGHTS, laws, t, z_scores
from scipy import stats
from torch.distributions import kl_divergence

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
