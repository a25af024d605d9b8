"""The density of several spikes, and the KL of a normal to it, against what does not know of it."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from pyroccam.models.distributions import MultiSpikeLogUniform
from pyroccam.models.distributions.log_uniform import LOG_DENSITY_AT_ONE
from pyroccam.models.distributions.multi_spike import achterhold_kl, multi_spike_kl
from scipy.integrate import quad
from torch.distributions import Normal, kl_divergence

OFF = {3: 6e-5, 5: 2e-4, 7: 2e-4, 15: 6e-4}  # nats, as the docstring says
ONE = torch.tensor(1.0, dtype=torch.float64)


def by_quadrature(loc, scale, levels):
    """The KL at a = 1, by adaptive quadrature of what it is, poles and all."""
    c = np.linspace(-1.0, 1.0, levels)

    def integrand(w):
        q = math.exp(-0.5 * ((w - loc) / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
        return -q * math.log(sum(1 / max(abs(w - one), 1e-300) for one in c) / levels)

    inner = [one for one in c if abs(one - loc) < 12 * scale]
    cuts = sorted({loc - 12 * scale, *inner, loc, loc + 12 * scale})

    def between(a, b):  # steps shrink to both ends, where the poles are
        def graded(y):
            return integrand(a + (b - a) * y * y * (3 - 2 * y)) * (b - a) * 6 * y * (1 - y)

        return quad(graded, 0, 1, limit=400, epsabs=1e-7, epsrel=1e-7)[0]

    total = sum(between(a, b) for a, b in pairwise(cuts))
    return total - LOG_DENSITY_AT_ONE - 0.5 * math.log(2 * math.pi * math.e * scale**2)


@pytest.mark.parametrize("levels", [3, 7])
def test_the_kl_is_the_integral_near_levels_between_them_and_far_away(levels):
    gap = 2.0 / (levels - 1)
    points = [
        (0.0, 1e-4), (0.0, 0.05), (0.0, 0.8), (0.0, 30.0),
        (gap, 1e-5), (gap * 1.004, 0.004), (gap * 0.51, 0.02), (gap * 0.5, 1e-3),
        (1.0, 0.02), (1.014, 0.0217), (1.0 - 0.3 * gap, 0.2 * gap), (1.3, 0.3), (1.81, 1.4),
        (2.5, 1e-3), (2.5, 0.7), (9.0, 4.0), (40.0, 15.0), (500.0, 1.0),
    ]  # fmt: skip
    loc, scale = torch.tensor(points, dtype=torch.float64).T
    exact = torch.tensor([by_quadrature(*point, levels) for point in points], dtype=torch.float64)
    assert (multi_spike_kl(loc, scale, ONE, levels) - exact).abs().max() < OFF[levels]


@pytest.mark.parametrize("kl", [multi_spike_kl, achterhold_kl])
def test_the_kl_is_symmetric_and_knows_no_unit(kl):
    loc, scale = torch.randn(2, 200, dtype=torch.float64).mul(0.3)
    scale = scale.abs() + 1e-3
    found = kl(loc, scale, 0.2 * ONE)
    torch.testing.assert_close(kl(-loc, scale, 0.2 * ONE), found)
    torch.testing.assert_close(kl(loc * 7.0, scale * 7.0, 1.4 * ONE), found)


def test_single_precision_is_as_good():
    torch.manual_seed(0)
    loc, scale = torch.randn(2, 500).mul(0.2)
    scale, level = scale.abs() + 1e-4, torch.tensor(0.15)
    exact = multi_spike_kl(loc.double(), scale.double(), level.double(), 7)
    assert (multi_spike_kl(loc, scale, level, 7) - exact).abs().max() < 2e-5


def test_the_published_approximation_is_what_the_paper_says():
    """Half way, by hand: two windows of exp(-0.1² / 2 0.075²) = 0.4111 and of exp(-8) = 3e-4."""
    level = 0.2 * ONE
    u, near_zero = math.exp(-(0.1**2) / (2 * 0.075**2)), math.exp(-(0.3**2) / (2 * 0.075**2))

    def mol(m):
        gate = 1 / (1 + math.exp(1.8732 - 1.48695 * math.log(m * m)))
        return 0.63576 * gate + 0.5 * math.log1p(m * m)

    expected = u * mol(10.0) + near_zero * mol(30.0) + (1 - u - near_zero) * mol(10.0)
    found = achterhold_kl(0.1 * ONE, 0.01 * ONE, level)
    torch.testing.assert_close(found, expected * ONE, atol=1e-6, rtol=0)
    loc = torch.linspace(0, 0.6, 61, dtype=torch.float64)[:, None]
    scale = torch.exp(torch.linspace(-5, 0.6, 57, dtype=torch.float64))
    apart = multi_spike_kl(loc, scale, level) - achterhold_kl(loc, scale, level)
    assert 0.67 < (apart.max() - apart.min()) / 2 < 0.71


@pytest.mark.parametrize("kl", ["exact", "achterhold"])
def test_the_density_and_the_kl_of_the_distribution(kl):
    levels = 3 if kl == "achterhold" else 5
    p = MultiSpikeLogUniform(torch.tensor(0.3), levels, kl=kl)
    torch.testing.assert_close(p.codebook, torch.linspace(-0.3, 0.3, levels))
    w = torch.tensor([0.1, -0.7, 4.0])
    spikes = (w[:, None] - p.codebook).abs().reciprocal().mean(1)
    torch.testing.assert_close(p.log_prob(w), spikes.log() + LOG_DENSITY_AT_ONE)
    assert p.log_prob(torch.tensor(0.3)).isinf()
    own = multi_spike_kl(w, 0.1 * w.abs(), p.level, 5) if kl == "exact" else None
    own = achterhold_kl(w, 0.1 * w.abs(), p.level) if own is None else own
    found = kl_divergence(Normal(w, 0.1 * w.abs()).expand((2, 3)), p.expand((2, 3)))
    torch.testing.assert_close(found, own.expand(2, 3))


@pytest.mark.parametrize("levels", [3, 7])
def test_gradients_are_those_of_differences(levels):
    torch.manual_seed(0)
    loc = torch.cat([torch.rand(60) * 1.3, torch.rand(20) * 6, torch.zeros(1)]).double()
    loc[::2] *= -1
    scale = torch.exp(torch.rand(81).double() * 6 - 5)
    level = torch.full((81,), 1.1, dtype=torch.float64)
    values = [one.requires_grad_() for one in (loc, scale, level)]
    found = torch.autograd.grad(multi_spike_kl(*values, levels).sum(), values)
    for k, slope in enumerate(found):
        step = 1e-5 * (scale if k == 0 else values[k]).detach()
        moved = [[one + sign * step * (j == k) for j, one in enumerate(values)] for sign in (1, -1)]
        up, down = (multi_spike_kl(*at, levels) for at in moved)
        # In units of the deviation, for the mean: beside a level it is steep.
        assert ((up - down) / 2 - slope * step).abs().max() < 2e-9, k
