"""Distributions without a mean: densities, draws and KLs."""

import itertools
import math

import pytest
import torch
from pyroccam.models.distributions import (
    CentredNormal,
    CentredUniform,
    ImproperLogUniform,
    Rademacher,
)
from pyroccam.models.distributions.log_uniform import LOG_DENSITY_AT_ONE
from random_weights import limit
from scipy.integrate import quad
from torch.distributions import Normal, kl_divergence

SCALES = torch.tensor([1e-3, 0.2, 1.0, 7.0], dtype=torch.float64)
KINDS = {"normal": CentredNormal, "uniform": CentredUniform, "rademacher": Rademacher}
VARIANCE = {"normal": 1.0, "uniform": 1.0 / 3.0, "rademacher": 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_draws(kind):
    """Mean zero and the variance, which the author's code has a quarter of for two kinds."""
    torch.manual_seed(0)
    scales = SCALES.clone().requires_grad_()
    q = KINDS[kind](scales)
    drawn = q.rsample((20_000,))
    w = (drawn / scales).detach()
    error = limit(8) / math.sqrt(len(w))
    assert float(w.mean(0).abs().max()) < error
    fourth = {"normal": 3.0, "uniform": 0.2, "rademacher": 1.0}[kind]
    sd = math.sqrt(max(fourth - VARIANCE[kind] ** 2, 1e-12))
    assert float((w.square().mean(0) - VARIANCE[kind]).abs().max()) <= error * sd + 1e-9
    assert torch.equal(q.mean, torch.zeros_like(SCALES))
    torch.testing.assert_close(q.variance.detach(), VARIANCE[kind] * SCALES**2)
    if kind == "rademacher":
        assert set(w.unique().tolist()) == {-1.0, 1.0}
    (gradient,) = torch.autograd.grad(drawn.sum(), scales)
    torch.testing.assert_close(gradient, w.sum(0))
    wide = q.expand((3, 4))
    assert wide.rsample().shape == (3, 4)
    assert type(wide) is type(q)


def test_kl_to_the_log_uniform_by_quadrature():
    """Of the densities with their constants; it is the same for every scale."""
    prior = ImproperLogUniform((4,))
    for kind, edge in (("normal", math.inf), ("uniform", 1.0)):
        kl = kl_divergence(KINDS[kind](SCALES), prior)
        for value, scale in zip(kl.tolist(), SCALES.tolist(), strict=True):

            def integrand(w, kind=kind, scale=scale):
                log_q = Normal(0.0, scale).log_prob(torch.tensor(w, dtype=torch.float64))
                log_q = float(log_q) if kind == "normal" else -math.log(2.0 * scale)
                return math.exp(log_q) * (log_q + math.log(w) - LOG_DENSITY_AT_ONE)

            cuts = [0.0, 1e-6 * scale, 1e-3 * scale, scale * min(edge, 1.0)]
            cuts += [] if edge == 1.0 else [12.0 * scale]
            parts = [quad(integrand, a, b)[0] for a, b in itertools.pairwise(cuts)]
            assert value == pytest.approx(2.0 * sum(parts), abs=1e-5)
    assert torch.equal(kl_divergence(Rademacher(SCALES), prior), torch.zeros_like(SCALES))


def test_the_band_that_two_points_stand_for():
    """Points are the limit of bands of fixed relative width: the KL differs by a constant."""
    width, gaps = 1e-3, []
    for scale in SCALES:
        low, high = scale * (1 - width), scale * (1 + width)
        w = torch.linspace(float(low), float(high), 20_001, dtype=torch.float64)
        log_q = -math.log(2.0 * float(high - low))
        prior = Normal(torch.tensor(0.3, dtype=torch.float64), 1.5)
        band = log_q - 0.5 * (prior.log_prob(w) + prior.log_prob(-w)).mean()
        ours = kl_divergence(Rademacher(scale), prior)
        gaps.append(float(ours) - float(band))
    assert max(gaps) - min(gaps) < 1e-5
    value = torch.tensor(-1.0, dtype=torch.float64)  # its own log-density is that of a draw
    q = Rademacher(value.abs())
    assert float(q.log_prob(value)) == pytest.approx(LOG_DENSITY_AT_ONE)
