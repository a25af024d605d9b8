"""Pairs that plain Pyro has trained, as fits: SVI, its guides, draws of MCMC."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from conjugate import model_of, posterior, rows
from known_regression import exact_loo
from pyro.infer import MCMC, NUTS, SVI, Predictive, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoMultivariateNormal, AutoNormal
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference import diagnostics
from pyroccam.models import priors
from torch import nn

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture(scope="module")
def wiggle():
    return data.load("wiggle", seed=0)


def network(table, prior):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    return models.BayesianNetwork(net, table, prior=prior)


def trained(model, guide, table, elbo=TraceMeanField_ELBO, steps=30):
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo())
    for _ in range(steps):
        svi.step(table.x_train, table.y_train)
    return guide


@pytest.fixture(scope="module")
def exact():
    """A regression with its exact posterior, as a fit of 2,000 draws of it."""
    table = rows(features=2)
    mean, precision = posterior(table)
    torch.manual_seed(0)
    normal = dist.MultivariateNormal(mean, precision_matrix=precision)
    values = {"0.weight": normal.sample((2000,)).float()[:, None]}
    return inference.as_fit(model_of(table), values, table)


@pytest.mark.parametrize("kind", ["weights", "depth"])
def test_a_pair_of_ours_is_the_fit_that_it_was(kind, wiggle):
    if kind == "weights":
        pair = (model := network(wiggle, priors.Normal())), guides.MeanField(model)
    else:
        torch.manual_seed(0)
        model = models.LearntDepth.mlp(wiggle, width=4, max_depth=2)
        pair = model, guides.CategoricalDepth(model, update="gradient", hold=0.0)
    fit = inference.fit(*pair, wiggle, epochs=2, checkpoint="last", progress=False)
    found = inference.as_fit(*pair, wiggle)
    assert found.evaluate() == fit.evaluate()
    assert found.val_nll == fit.val_nll
    for one, other in zip(found.structures, fit.structures, strict=True):
        assert one.to_json() == other.to_json()


def test_what_plain_svi_trains(wiggle):
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(wiggle, width=8, max_depth=1)
    guide = guides.CategoricalDepth(model)
    before = inference.as_fit(model, guide, wiggle).evaluate()["nll"]
    trained(model, guide, wiggle, lambda: TraceEnum_ELBO(max_plate_nesting=1))
    fit = inference.as_fit(model, guide, wiggle)
    assert fit.evaluate()["nll"] < before - 0.02
    assert isinstance(inference.shrink(fit).net, nn.Module)
    assert diagnostics.convergence(fit).verdict == "refused"


@pytest.mark.parametrize("kind", [AutoNormal, AutoDiagonalNormal])
def test_independent_normals_of_pyro_are_a_mean_field(kind, wiggle):
    """Also where a scale is positive, and its posterior log-normal: by their quantiles."""
    model = network(wiggle, priors.GroupHalfCauchy(0.5))
    guide = trained(model, kind(model), wiggle)
    fit = inference.as_fit(model, guide, wiggle)
    assert isinstance(fit.guide, guides.MeanField)
    for site, (low, high) in guide.quantiles([0.1, 0.7]).items():
        q = fit.guide.posterior(site).base_dist if low.dim() else fit.guide.posterior(site)
        torch.testing.assert_close(q.icdf(torch.tensor(0.1)), low, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(q.icdf(torch.tensor(0.7)), high, rtol=1e-4, atol=1e-5)
    smaller, own = inference.narrow(fit, cut=inference.Thresholds(10.0))
    assert inference.fit(smaller, own, wiggle, epochs=1, progress=False).val_nll < 3.0


def test_points_of_pyro_are_points(wiggle):
    model = network(wiggle, priors.GroupHalfCauchy(0.5))
    guide = trained(model, AutoDelta(model), wiggle)
    fit = inference.as_fit(model, guide, wiggle)
    assert fit.posterior.is_point
    for site, value in guide.median().items():
        torch.testing.assert_close(fit.guide.posterior(site).v, value)


def test_draws_keep_what_sites_know_of_each_other(wiggle):
    """A scale and its weight that always multiply to the same: so it is in moments, in draws and
    predictions, where independent sites would have a spread."""
    model = network(wiggle, priors.GroupHalfCauchy(0.5))
    start = model.start_network()
    scale = 0.5 + torch.rand(40, 3)
    values = {"0.scale": scale[:, :1], "2.scale": scale}
    for name, layer in model.layers.items():
        values[f"{name}.global"] = torch.ones(40)
        values[f"{name}.bias"] = layer.start["bias"].expand(40, -1)
        values[f"{name}.weight"] = layer.start["weight"] / values[f"{name}.scale"][:, None]
    fit = inference.as_fit(model, values, wiggle)
    for name, layer in fit.posterior.layers.items():
        torch.testing.assert_close(layer.mean, start.get_submodule(name).weight.detach())
        assert float(layer.variance.max()) < 1e-12
    out = fit.outputs(wiggle.x_test, draws=5)
    torch.testing.assert_close(out, start(wiggle.x_test).detach().expand(5, -1, -1))
    assert inference.shrink(fit, cut=inference.Thresholds(1e9)).bytes > 0


def test_moments_predictions_and_loo_of_exact_draws(exact):
    """By the closed form of a conjugate regression; LOO by refitting without each row."""
    table = exact.data
    mean, precision = posterior(table)
    layer = exact.posterior.layers["0"]
    torch.testing.assert_close(layer.mean[0].double(), mean, atol=0.02, rtol=0.0)
    spread = torch.linalg.inv(precision).diagonal()
    torch.testing.assert_close(layer.variance[0].double(), spread, rtol=0.15, atol=0.0)
    loo = diagnostics.loo(exact, 2000)
    x, y = (part.double().numpy() for part in table.split("train"))
    assert loo.elpd == pytest.approx(exact_loo(x, y[:, 0]).sum(), abs=0.1)
    assert loo.correction == "none"
    tree = exact.to_arviz(50)
    assert "log_q" not in tree["sample_stats"]
    assert "points" not in tree.attrs
    verdicts = {one.name: one.verdict for one in diagnostics.diagnose(exact, draws=200)}
    assert verdicts["k-hat"] == "refused"
    assert verdicts["LOO"] != "refused"


def test_nuts_on_the_same_model(exact):
    """Its draws have the mean of the exact posterior, within five standard errors."""
    table, model = exact.data, exact.model
    run = MCMC(NUTS(model), num_samples=60, warmup_steps=30, disable_progbar=True)
    run.run(table.x_train, table.y_train)
    fit = inference.as_fit(model, run, table)
    assert fit.guide.chains == 1
    mean, precision = posterior(table)
    error = torch.linalg.inv(precision).diagonal().sqrt() / 60**0.5
    off = fit.posterior.layers["0"].mean[0].double() - mean
    assert (off.abs() < 5 * error).all()
    assert fit.evaluate()["nll"] == pytest.approx(exact.evaluate()["nll"], abs=0.02)


@pytest.mark.parametrize(("apart", "verdict"), [(0.0, "good"), (3.0, "poor")])
def test_chains_of_one_run_are_compared(apart, verdict, exact):
    """By R-hat of what they predict, and as chains of ArviZ."""
    model, draws = exact.model, torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    draws[100:] += apart
    guide = guides.Samples(model, {"0.weight": draws[:, None]}, chains=2)
    fit = inference.as_fit(model, guide, exact.data)
    (found,) = (one for one in diagnostics.diagnose(fit, draws=50) if one.name == "agreement")
    assert found.verdict == verdict
    shown = fit.to_arviz(draws=40)["posterior"]["0.weight"]
    assert shown.shape[:2] == (2, 40)
    whole = fit.to_arviz()["posterior"]["0.weight"].values  # each once, in its order
    assert np.array_equal(whole[:, :, 0], draws.view(2, 100, 2))
    gap = shown.values[1].mean() - shown.values[0].mean()
    assert abs(gap - apart) < 0.6


def test_any_other_guide_is_drawn(exact):
    model, table = exact.model, exact.data
    guide = AutoMultivariateNormal(model, init_scale=0.5)
    guide(table.x_train, table.y_train)
    fit = inference.as_fit(model, guide, table, seed=1)
    assert isinstance(fit.guide, guides.Samples)
    assert float(fit.posterior.layers["0"].variance.mean()) == pytest.approx(0.25, rel=0.1)


def test_the_guide_of_draws_in_pyro(exact):
    """Under Pyro's handlers it gives one of the draws, whole."""
    found = Predictive(exact.model, guide=exact.guide, num_samples=3)(exact.data.x_test)
    for one in found["0.weight"]:
        assert (exact.guide.samples["0.weight"] == one).all(-1).any()


def nothing(x, y=None):
    """Neither a model nor a guide."""


REFUSED = {
    "another model": lambda d, fit: inference.as_fit(nothing, nothing, d),
    "no draws of a site": lambda d, fit: inference.as_fit(fit.model, {}, fit.data),
    "draws of another shape": lambda d, fit: inference.as_fit(
        fit.model, {"0.weight": torch.ones(5, 2)}, fit.data
    ),
    "a guide of another model": lambda d, fit: inference.as_fit(
        fit.model, guides.MeanField(network(d, priors.Normal())), fit.data
    ),
    "no draws": lambda d, fit: inference.as_fit(
        fit.model, {"0.weight": torch.ones(0, 1, 2)}, fit.data
    ),
    "other rows": lambda d, fit: inference.as_fit(
        network(d, priors.Normal()), guides.MeanField(network(d, priors.Normal())), d.halves()[0]
    ),
    "training": lambda d, fit: inference.fit(fit.model, fit.guide, fit.data, progress=False),
    "narrowing": lambda d, fit: inference.narrow(fit, cut=inference.Thresholds(10.0)),
    "a bound": lambda d, fit: inference.evidence(fit, by="bound"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_fit_is_refused(what, exact, wiggle):
    with pytest.raises(PyroccamError):
        REFUSED[what](wiggle, exact)


def test_scales_of_either_sign_are_not_cut_by_draws(wiggle):
    model = network(wiggle, priors.GroupNormalJeffreys())
    guide = guides.MeanField(model)
    fit = inference.as_fit(model, guide.draw(20), wiggle)
    with pytest.raises(PyroccamError, match="either sign"):
        inference.shrink(fit)


def test_particles_together_are_refused_where_weights_are_not_drawn(wiggle):
    model = network(wiggle, priors.Normal())
    guide = guides.MeanField(model)
    elbo = TraceMeanField_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
    with guide.handler, pytest.raises(PyroccamError, match="local=False"):
        elbo.loss(model, guide, wiggle.x_train, wiggle.y_train)
