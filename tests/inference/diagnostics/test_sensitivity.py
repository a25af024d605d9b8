"""Power scaling against posteriors that are known at every power."""

import math

import numpy as np
import pytest
import torch
from known_regression import regression
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.arviz import power_scaling
from pyroccam.inference.diagnostics import prior_sensitivity
from scipy.stats import norm
from torch import nn

DRAWS = 4000


def distance(p, q, low, high):
    """Square root of the symmetrised cumulative Jensen-Shannon divergence, by quadrature: of the
    distribution functions or of one less them, whichever is larger."""
    x = np.linspace(low, high, 20_001)[1:-1]

    def between(f, g):
        m = 0.5 * (f + g)
        divergences = 0.0
        for a in (f, g):
            terms = np.where(a > 0, a * np.log2(np.maximum(a, 1e-300) / m), 0.0)
            divergences += np.trapezoid(terms, x) + np.trapezoid(m - a, x) / math.log(2)
        return math.sqrt(divergences / np.trapezoid(f + g, x))

    return max(between(p.cdf(x), q.cdf(x)), between(p.sf(x), q.sf(x)))


@pytest.mark.parametrize("component", ["prior", "likelihood"])
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_against_normals_at_other_powers(component, scale):
    """Prior N(0, scale²), ten observations of mean 1: a normal at every power."""
    n, mean = 10, 1.0

    def at(alpha):
        a, b = (alpha, 1.0) if component == "prior" else (1.0, alpha)
        precision = a / scale**2 + b * n
        return norm(b * n * mean / precision, precision**-0.5)

    theta = at(1.0).rvs(DRAWS, random_state=np.random.default_rng(0))
    logs = {"prior": -0.5 * (theta / scale) ** 2, "likelihood": -0.5 * n * (theta - mean) ** 2}
    found = power_scaling({"t": theta}, logs[component], component)["t"]
    ends = theta.min(), theta.max()
    sides = [distance(at(1.0), at(alpha), *ends) for alpha in (1 / 1.01, 1.01)]
    # The draws' own spread: 12 % is four standard deviations of the estimate over seeds.
    assert float(found) == pytest.approx(sum(sides) / (2 * math.log2(1.01)), rel=0.12)


def test_a_strong_prior_is_told_and_a_weak_one_is_not():
    g = torch.Generator().manual_seed(0)
    x = torch.linalg.qr(torch.randn(60, 2, generator=g))[0]
    weak = regression(x * 60, x.sum(1, keepdim=True) * 60)  # a weight known to 0.01 of its prior
    found = prior_sensitivity(weak, DRAWS, weights=True)
    assert (found.moved(), found.finding().verdict) == ({"0.weight": 0}, "good")
    strong = regression(x, 8.0 * x.sum(1, keepdim=True))
    found = prior_sensitivity(strong, DRAWS, weights=True)
    assert found.moved() == {"0.weight": 2}
    assert float(found.likelihood["0.weight"].min()) > 0.05
    assert found.finding().verdict == "doubtful"


def test_a_latent_that_the_data_do_not_touch():
    """An input that is always zero: its scale is the prior's."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=g)
    x[:, 1] = 0.0
    y = (x[:, 0] > 0).long()
    d = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)
    prior = models.priors.GroupHalfCauchy(1.0)
    torch.manual_seed(0)
    model = models.BayesianNetwork(nn.Linear(2, 2), d, prior=prior)
    settings = {"steps": 100, "lr": 0.05, "batch_size": 50, "progress": False}
    found = prior_sensitivity(inference.fit(model, guides.MeanField(model), d, **settings), DRAWS)
    (name,) = [k for k, v in found.prior.items() if v.shape == (2,)]
    assert found.likelihood[name][1] < 0.05 < found.prior[name][1]
    assert found.likelihood[name][1] < found.likelihood[name][0]
    assert "do not feel the data" in found.finding().text


def test_what_cannot_be_scaled():
    spirals = data.load("spirals", seed=0)
    model = models.BayesianNetwork(nn.Linear(2, 2), spirals, prior=models.priors.Normal(1.0))
    point, normal = (
        inference.fit(model, guide(model), spirals, epochs=1, progress=False)
        for guide in (guides.Delta, guides.MeanField)
    )
    with pytest.raises(PyroccamError):
        prior_sensitivity(point, 10, weights=True)
    assert {*prior_sensitivity(normal, 10).prior} == {"weight_rms", "bias_rms"}
    part = prior_sensitivity(normal, 100, weights=True, rows=5)
    assert part.likelihood == {}
    assert part.finding().figure is None
