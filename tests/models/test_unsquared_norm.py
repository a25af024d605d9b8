"""The density that falls with the norm: against quadrature, and draws of another law."""

import math

import pytest
import torch
from pyroccam.models.priors.unsquared_norm import SphericalLaplace
from scipy import stats

RATE = torch.tensor(1.7, dtype=torch.float64)


def test_of_one_number_it_is_the_laplace_distribution():
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    expected = torch.distributions.Laplace(0.0, 1 / RATE).log_prob(x)
    torch.testing.assert_close(SphericalLaplace(RATE, (1,)).log_prob(x[:, None]), expected)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3)])
def test_of_more_numbers_it_is_normalised(shape):
    """By importance: draws of Student's t in so many dimensions, whose tails are heavier."""
    fn = SphericalLaplace(RATE, shape)
    n = math.prod(shape)
    scale = (n + 1.0) / float(RATE) ** 2  # the variance of a number is (n + 1) / rate²
    t = stats.multivariate_t(shape=scale * torch.eye(n).numpy(), df=5, seed=0)
    draws = t.rvs(40_000)
    log_p = fn.log_prob(torch.from_numpy(draws).reshape(-1, *shape))
    ratio = (log_p - torch.from_numpy(t.logpdf(draws))).exp()
    error = float(ratio.std() / math.sqrt(len(ratio)))
    assert error < 0.02
    assert float(ratio.mean()) == pytest.approx(1.0, abs=5.0 * error)


def test_draws_have_the_radius_of_a_gamma_law_and_every_direction():
    fn = SphericalLaplace(RATE, (2, 3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draws = fn.expand((4,)).sample((2_000,))
    assert draws.shape == (2_000, 4, 2, 3)
    flat = draws.reshape(-1, 6)
    norm = flat.norm(dim=1)
    assert stats.kstest(norm, stats.gamma(6, scale=1 / float(RATE)).cdf).pvalue > 1e-4
    # The square of a coordinate of a direction is Beta(½, (n - 1) / 2).
    squares = (flat[:, 0] / norm).square()
    assert stats.kstest(squares, stats.beta(0.5, 2.5).cdf).pvalue > 1e-4
    assert abs(float((flat[:, 0] > 0).double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(len(flat))


def test_the_gradient_is_the_direction_and_zero_at_zero():
    fn = SphericalLaplace(RATE, (2, 2))
    w = torch.tensor([[3.0, 0.0], [0.0, -4.0]], dtype=torch.float64, requires_grad=True)
    fn.log_prob(w).backward()
    torch.testing.assert_close(w.grad, -RATE * w.detach() / 5.0)
    zero = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    fn.log_prob(zero).backward()
    assert not zero.grad.any()
