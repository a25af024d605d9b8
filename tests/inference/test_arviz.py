"""What ArviZ gets: groups, names, densities and predictions, in both of its generations."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from alternatives import choice_of
from pyro import poutine
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.arviz import draw_posterior, even_rows, to_arviz, write
from pyroccam.models import priors
from torch import nn

DRAWS = 60
NORMAL = priors.Normal()


@pytest.fixture(scope="module")
def spirals():
    return data.load("spirals", seed=0)


def fitted(model, rows, guide=guides.MeanField, seed=0):
    return inference.fit(model, guide(model), rows, epochs=1, progress=False, seed=seed)


def groups(tree):
    return {*(tree.children if hasattr(tree, "children") else tree.groups())}


def network(rows, prior):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    return models.BayesianNetwork(net, rows, prior=prior)


@pytest.fixture(scope="module")
def horseshoe(spirals):
    return fitted(network(spirals, priors.GroupHorseshoe(1e-2)), spirals)


@pytest.fixture(scope="module")
def depth(spirals):
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(spirals, width=6, max_depth=3)
    return fitted(model, spirals, guides.CategoricalDepth)


def structured(rows, scaling=None, structure=None):
    torch.manual_seed(0)
    options = {"structure": structure or priors.GumbelSoftmax(0.7), "scaling": scaling}
    net = choice_of(2, 3, "tanh", "skip")
    return fitted(models.StructuredNetwork(net, rows, prior=NORMAL, **options), rows)


def test_groups_and_names(horseshoe):
    tree = horseshoe.to_arviz(DRAWS)
    names = {"posterior", "sample_stats", "log_prior", "log_likelihood", "posterior_predictive",
             "observed_data", "prior", "prior_predictive"}  # fmt: skip
    assert names == groups(tree)
    posterior = tree["posterior"]
    own = ("global.a", "global.b", "scale.a", "scale.b", "weight", "bias")
    assert {*posterior.data_vars} == {f"{layer}.{name}" for layer in "02" for name in own}
    assert posterior["2.scale.a"].dims == ("chain", "draw", "2.input")
    assert posterior["0.global.a"].shape == (1, DRAWS)
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "row")
    assert tree.attrs["data"] == "spirals"
    assert torch.__version__.startswith(tree.attrs["version_torch"])
    torch.manual_seed(3)
    before = torch.get_rng_state()
    again = horseshoe.to_arviz(DRAWS)["posterior"]
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(again["2.scale.a"], posterior["2.scale.a"])


def test_the_dims_of_a_convolution_and_improper_priors():
    x, y = torch.rand(24, 1, 6, 6), torch.arange(24) % 2
    d = data.Dataset.from_tensors(x[:20], y[:20], x[20:], y[20:])
    net = nn.Sequential(nn.Conv2d(1, 3, (2, 3)), nn.Flatten(), nn.Linear(60, 2))
    fit = fitted(models.BayesianNetwork(net, d, prior=priors.GroupNormalJeffreys()), d)
    tree = fit.to_arviz(5)
    posterior = tree["posterior"]
    assert posterior["0.weight"].dims[2:] == ("0.output", "0.input", "0.row", "0.column")
    assert posterior["0.scale"].dims[2:] == posterior["0.bias"].dims[2:] == ("0.output",)
    assert posterior["2.scale"].dims[2:] == ("2.input",)
    assert tree.attrs["improper_priors"] == "0.scale, 2.scale"
    assert "prior_predictive" not in groups(tree)
    assert {*tree["prior"].data_vars} == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("kind", ["horseshoe", "floored", "table"])
def test_densities_are_those_of_pyro(kind, horseshoe, spirals):
    """Site by site, at the very draws, by handlers of Pyro over the model."""
    scaling = models.Floored() if kind == "floored" else None
    structure = priors.Categorical() if kind == "table" else None
    fit = horseshoe if kind == "horseshoe" else structured(spirals, scaling, structure)
    drawn = draw_posterior(fit, 3, keep=100)
    d = fit.data
    for s in range(3):
        values = {site: value[s] for site, value in drawn.values.items()}
        with torch.no_grad():
            model = poutine.condition(fit.model, data=values)
            trace = poutine.trace(model).get_trace(d.x_train, d.y_train)
            trace.compute_log_prob()
            guide = poutine.trace(poutine.condition(fit.guide, data=values)).get_trace(d.x_train)
            guide.compute_log_prob()
        for own, theirs in ((drawn.log_prior, trace), (drawn.log_q, guide)):
            found = {site: float(own[site][s]) for site in values}
            known = {site: float(theirs.nodes[site]["log_prob_sum"]) for site in values}
            assert found == pytest.approx(known, rel=1e-4)
        each = drawn.log_likelihood[s].float()
        torch.testing.assert_close(each, trace.nodes["y"]["log_prob"], rtol=1e-3, atol=1e-4)


def test_targets_are_in_original_units_and_keep_their_digits():
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    y = 200.0 + 30.0 * x.sum(1, keepdim=True)
    d = data.Dataset.from_tensors(x, y, x[:5], y[:5], task="regression")
    fit = fitted(models.BayesianNetwork(nn.Linear(2, 1), d, prior=NORMAL), d)
    tree = fit.to_arviz(200)
    predicted = tree["posterior_predictive"]["y"].values
    assert predicted.shape == (1, 200, d.N, 1)
    assert abs(predicted.mean() - 200.0) < 40.0
    assert 200.0 in range(*map(int, np.quantile(tree["prior_predictive"]["y"], [0.2, 0.8])))
    likelihood = torch.tensor(tree["log_likelihood"]["y"].values[0])
    nll = -float((torch.logsumexp(likelihood, 0) - math.log(200)).mean())
    assert nll == pytest.approx(fit.evaluate("train", draws=200)["nll"], abs=1e-4)
    noise = torch.randn(50, 1).double()
    d = data.Dataset.from_tensors(x, 1e8 + noise, x[:4], 1e8 + noise[:4], val_fraction=0.0)
    tree = fitted(models.BayesianNetwork(nn.Linear(2, 1), d, prior=NORMAL), d).to_arviz(5)
    found = tree["observed_data"]["y"].values
    np.testing.assert_allclose(found - found.mean(), (noise - noise.mean()).numpy(), atol=1e-4)
    drawn = tree["posterior_predictive"]["y"].values - 1e8
    assert len(np.unique(drawn)) == drawn.size  # in single precision they are multiples of eight


def test_exact_probabilities_stand_beside_the_draws(depth, spirals):
    tree = depth.to_arviz(4000)
    q = tree["structure"]["depth_probs"].values[0]
    np.testing.assert_allclose(q, depth.weights.double().numpy())
    exact = depth.structure.exact_depth_probs.double().numpy()
    np.testing.assert_allclose(tree["structure"]["depth_exact_probs"].values[0], exact)
    # 4.5 standard errors of each of four shares: a false alarm in 3e-5
    drawn = tree["posterior"]["depth"].values[0]
    prior = tree["prior"]["depth"].values[0], depth.model.log_prior.exp().numpy()
    for found, p in ((drawn, q), prior):
        share = np.bincount(found, minlength=4) / 4000
        assert (np.abs(share - p) <= 4.5 * np.sqrt(p * (1 - p) / 4000) + 1e-12).all()
    by_depth = depth.model.log_likelihood(depth.data.x_train, depth.data.y_train).detach()
    each = by_depth[drawn[:20]].numpy()
    np.testing.assert_allclose(tree["log_likelihood"]["y"].values[0, :20], each, atol=1e-5)
    # structure is shown as γ, with the names of primitives
    fit = structured(spirals)
    tree = fit.to_arviz(50)
    gamma = tree["posterior"]["x-h.structure"]
    assert gamma.dims == ("chain", "draw", "x-h.primitive")
    assert list(gamma.coords["x-h.primitive"].values) == ["tanh", "skip"]
    probs = fit.guide.edge("x-h.structure").probs().detach().numpy()
    np.testing.assert_allclose(tree["structure"]["x-h.structure_probs"].values[0], probs)


def test_rows_are_evenly_spread_and_leave_no_joint_density(horseshoe):
    assert even_rows(10, None).tolist() == even_rows(10, 30).tolist() == list(range(10))
    assert even_rows(10, 4).tolist() == [0, 3, 6, 9]
    tree, whole = horseshoe.to_arviz(10, rows=7), horseshoe.to_arviz(10)
    found = tree["log_likelihood"]["y"]
    assert found.shape == (1, 10, 7)
    assert "log_p" not in tree["sample_stats"]
    rows = tree["log_likelihood"].coords["row"].values.copy()
    labels = horseshoe.data.y_train[rows].numpy()
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, labels)
    np.testing.assert_allclose(whole["log_likelihood"]["y"][..., rows], found, rtol=1e-4, atol=1e-5)


def test_large_weights_are_summed_up_by_layer(spirals):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 501), nn.Tanh(), nn.Linear(501, 2))
    fit = fitted(models.BayesianNetwork(net, spirals, prior=priors.Normal(2.0)), spirals)
    short, whole = fit.to_arviz(6), fit.to_arviz(6, weights=True)
    for group in ("posterior", "prior"):
        assert {*short[group].data_vars} == {"0.weight_rms", "0.bias", "2.weight_rms", "2.bias"}
        assert {*whole[group].data_vars} == {"0.weight", "0.bias", "2.weight", "2.bias"}
        for site in ("0.weight", "2.weight"):
            drawn = whole[group][site].values.reshape(1, 6, -1)
            rms = np.sqrt((drawn**2).mean(-1))
            np.testing.assert_allclose(short[group][f"{site}_rms"].values, rms, rtol=1e-5)


def test_a_point_is_drawn_once_and_says_so(spirals):
    tree = fitted(network(spirals, NORMAL), spirals, guides.Delta).to_arviz(30)
    assert tree["log_likelihood"]["y"].shape[:2] == (1, 1)
    assert "log_q" not in tree["sample_stats"]
    assert "0.weight" in tree.attrs["points"]
    fixed = models.LearntDepth.mlp(spirals, width=4, max_depth=2).at_depth(1)
    names = groups(fitted(fixed, spirals, guides.Deterministic).to_arviz(4))
    assert "posterior" not in names
    assert "log_likelihood" in names


def test_repeats_are_chains(spirals, depth):
    fits = [fitted(network(spirals, priors.GroupHorseshoe(1e-2)), spirals, seed=k) for k in (0, 1)]
    tree, alone = (to_arviz(one, 20) for one in (fits, fits[1]))
    found = tree["posterior"]["0.scale.a"].values
    assert found.shape == (2, 20, 2)
    np.testing.assert_allclose(found[1], alone["posterior"]["0.scale.a"].values[0])
    for refused in (lambda: to_arviz([fits[0], depth]), lambda: depth.to_arviz(10**9)):
        with pytest.raises(PyroccamError):
            refused()


def test_files(depth, tmp_path):
    import arviz

    tree = depth.to_arviz(6)
    path = write(tree, tmp_path / "sub" / "0.nc")
    again = arviz.from_netcdf(str(path), engine="h5netcdf")
    assert groups(again) == groups(tree)
    for group in groups(tree):
        for name in tree[group].data_vars:
            np.testing.assert_array_equal(tree[group][name], again[group][name])
    assert again.attrs["model"] == tree.attrs["model"]


@pytest.mark.filterwarnings("ignore")  # of ArviZ itself, and of matplotlib
def test_what_a_person_asks_arviz_first(horseshoe):
    import arviz as az

    found, names = horseshoe.to_arviz(100), ["2.bias"]
    assert len(az.summary(found, var_names=names)) == 2
    each = draw_posterior(horseshoe, 100).log_likelihood  # of rows that were not left out
    whole = float((each.logsumexp(0) - math.log(100)).sum())
    estimate = az.loo(found)
    value = estimate.elpd_loo if hasattr(estimate, "elpd_loo") else estimate.elpd
    assert whole - 0.5 * abs(whole) < float(value) < whole
    az.plot_forest(found, var_names=names)
    getattr(az, "plot_trace_dist", az.plot_trace)(found, var_names=names)
    plt.close("all")
