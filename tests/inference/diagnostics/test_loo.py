"""LOO of a posterior that is known, held-out densities, and comparison of methods."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from known_regression import exact_loo, regression
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference import diagnostics
from torch import nn

DRAWS = 4000


def problem(rows=40, inputs=3, correlated=0.0):
    """Inputs with orthogonal columns, or columns that share a part; targets."""
    g = torch.Generator().manual_seed(0)
    x = torch.linalg.qr(torch.randn(rows, inputs, generator=g))[0] * math.sqrt(rows) * 0.3
    x = x + correlated * x.roll(1, 1)
    return x, x.sum(1, keepdim=True) + 0.5 * torch.randn(rows, 1, generator=g)


def exact_of(x, y):
    return exact_loo(x.double().numpy(), y.double().numpy()[:, 0])


def spread(x, y, width=1.0):
    """Mean and standard error over eight sets of draws."""
    fit, found = regression(x, y, width=width), []
    for seed in range(8):
        fit.settings = dataclasses.replace(fit.settings, seed=seed)
        found.append(diagnostics.loo(fit, DRAWS // 4).elpd)
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(8))


def test_loo_of_an_exact_posterior():
    x, y = problem()
    mean, error = spread(x, y)  # q is the posterior, and p / q a constant
    assert abs(mean - exact_of(x, y).sum()) < 4 * error + 1e-3  # 3 in 1,000 with 7 degrees
    assert error < 0.05
    found = diagnostics.loo(regression(x, y), DRAWS)
    np.testing.assert_allclose(found.pointwise, exact_of(x, y), atol=0.05)
    assert found.error == pytest.approx(math.sqrt(40) * found.pointwise.std(ddof=1))
    assert 1.0 < found.p_loo < 3.5  # three weights, hardly shrunk
    assert found.finding().verdict == "good"
    wide = diagnostics.loo(regression(*problem(rows=60, inputs=50, correlated=0.9)), 400)
    assert (wide.khat_joint > 0.7, wide.correction) == (True, "none")


def test_the_correction_makes_up_for_a_posterior_that_is_too_wide():
    x, y = problem(correlated=0.5)
    exact = exact_of(x, y).sum()
    mean, error = spread(x, y, width=1.4)
    assert abs(mean - exact) < 4 * error + 2e-3
    part = diagnostics.loo(regression(x, y, width=1.4), DRAWS, rows=39)  # without log p(θ, y)
    assert (part.correction, part.khat_joint) == ("none", None)
    assert abs(40 / 39 * part.elpd - exact) > 10 * error


def test_an_outlier_is_told_by_its_khat():
    x, y = problem(rows=12)
    x, y = x.clone(), y.clone()
    x[0], y[0] = 6.0, -30.0
    found = diagnostics.loo(regression(x, y), DRAWS)
    assert found.khat[0] > 0.7 > np.median(found.khat)
    assert found.finding().verdict == "poor"
    for bad, verdict in ((6, "poor"), (7, "refused")):
        worse = dataclasses.replace(found, khat=np.where(np.arange(12) < bad, 2.0, 0.1)).finding()
        assert (worse.verdict, worse.numbers["bad"]) == (verdict, bad)


@pytest.fixture(scope="module")
def spirals():
    return data.load("spirals", seed=0)


def pairs(rows, hidden=True):
    """A learnt depth, and random weights."""
    depth = models.LearntDepth.mlp(rows, width=6, max_depth=3)
    inputs, outputs = rows.input_shape[0], rows.outputs
    net = nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))
    random = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
    return (depth, guides.CategoricalDepth(depth)), (random, guides.MeanField(random))


def fitted(model, guide, rows, epochs=4):
    return inference.fit(model, guide, rows, epochs=epochs, progress=False)


@pytest.fixture(scope="module")
def fits(spirals):
    return [fitted(*pair, spirals) for pair in pairs(spirals)]


def test_held_out_density_is_the_nll(fits):
    """Of regression in original units."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(60, 2, generator=g)
    y = 100.0 * x.sum(1, keepdim=True) + torch.randn(60, 1, generator=g)
    d = data.Dataset.from_tensors(x[:40], y[:40], x[40:], y[40:], task="regression")
    for fit in (*fits, *(fitted(*pair, d, epochs=3) for pair in pairs(d))):
        mean = diagnostics.elpd(fit, draws=20).mean
        assert -mean == pytest.approx(fit.evaluate("test")["nll"], abs=1e-4)


def test_the_gain_over_no_network(fits):
    """Against frequencies counted by hand, one added to each."""
    d = fits[0].data
    found = diagnostics.elpd(fits[0])
    p = (int(d.y_train.sum()) + 1) / (d.N + 2)
    base = [math.log(p if y else 1 - p) for y in d.y_test.tolist()]
    assert found.gain == pytest.approx(found.mean - float(np.mean(base)))


def test_comparison_is_paired_over_rows(fits):
    names = dict(zip(("depth", "net"), fits, strict=True))
    found = diagnostics.compare(names, split="test")
    first, second = found.table
    one, other = (diagnostics.elpd(names[row["name"]], draws=1000).pointwise for row in found.table)
    gap = one - other
    assert second["difference"] == pytest.approx(gap.sum())
    assert second["difference_error"] == pytest.approx(math.sqrt(len(gap)) * gap.std(ddof=1))
    assert first["difference"] == 0.0
    assert first["weight"] + second["weight"] == pytest.approx(1.0)
    assert found.finding().text.startswith(first["name"])


def test_what_has_no_loo(spirals, fits):
    depth, network = fits
    point = fitted(network.model, guides.Delta(network.model), spirals, epochs=1)
    elsewhere = data.load("spirals", seed=1)
    other = fitted(*pairs(elsewhere)[1], elsewhere, epochs=1)
    for call in (
        lambda: diagnostics.loo(depth),
        lambda: diagnostics.loo(point),
        lambda: diagnostics.elpd(network, split="train"),
        lambda: diagnostics.compare({"a": network, "b": other}, split="test"),
        lambda: diagnostics.compare({}),
    ):
        with pytest.raises(PyroccamError):
            call()
