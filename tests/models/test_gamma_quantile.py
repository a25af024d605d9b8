"""Quantiles of gamma distributions and their derivatives by the shape, against SciPy."""

import numpy as np
import pytest
import torch
from pyroccam.models.distributions import gamma_of
from pyroccam.models.distributions.gamma_quantile import gamma_quantile
from scipy.stats import gamma, kstest

SHAPES = (4.0, 4.3, 5.0, 8.5, 30.0, 300.0, 10_000.0)
LEVELS = (1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6)


def grid():
    a, u = np.meshgrid(SHAPES, LEVELS, indexing="ij")
    return torch.from_numpy(a.copy()), torch.from_numpy(u.copy())


def test_quantiles():
    a, u = grid()
    expected = torch.from_numpy(gamma.ppf(u.numpy(), a.numpy()))
    torch.testing.assert_close(gamma_quantile(u, a), expected, rtol=1e-9, atol=0)
    found = gamma_quantile(u.float(), a.float())
    assert found.dtype == torch.float32
    # Of levels that single precision can tell.
    torch.testing.assert_close(found[:, 2:5].double(), expected[:, 2:5], rtol=1e-5, atol=0)


def test_the_first_derivative():
    a, u = grid()
    found = torch.func.grad(lambda a: gamma_quantile(u, a).sum())(a)
    step = 1e-3 * a.numpy()
    up, down = (gamma.ppf(u.numpy(), a.numpy() + sign * step) for sign in (1, -1))
    expected = torch.from_numpy((up - down) / (2 * step))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_the_second_derivative():
    a, u = (part[:5] for part in grid())

    def slope(a):
        return torch.func.grad(lambda a: gamma_quantile(u, a).sum())(a)

    found = torch.func.grad(lambda a: slope(a).sum())(a)
    step = 1e-3 * a
    expected = (slope(a + step) - slope(a - step)) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    mapped = torch.vmap(gamma_quantile)(u, a)
    torch.testing.assert_close(mapped, gamma_quantile(u, a))


@pytest.mark.parametrize("a", [1e-2, 0.3, 1.0, 7.0])
def test_variables_of_any_shape(a):
    g = torch.Generator().manual_seed(0)
    uniforms = torch.rand(5, 5000, dtype=torch.float64, generator=g)
    values = gamma_of(uniforms, torch.full((5000,), a, dtype=torch.float64))
    assert kstest(values.numpy(), "gamma", (a,)).pvalue > 1e-5
    ends = gamma_of(torch.tensor([[0.0], [0.0], [0.5], [0.5], [0.5]]), torch.tensor([2.0]))
    assert torch.isfinite(ends.log()).all()
