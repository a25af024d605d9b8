"""What ArviZ gets: groups, names, densities and predictions, in both of its generations."""

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from alternatives import choice_of
from conjugate import NOISE
from known_regression import regression
from pyro import poutine
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.arviz import adapter as arviz_adapter
from pyroccam.inference.arviz.densities import draw_posterior, draw_prior, even_rows
from pyroccam.inference.training.result import Fit
from torch import nn

DRAWS = 60


@pytest.fixture(scope="module")
def spirals() -> data.Dataset:
    return data.load("spirals", seed=0)


def fitted(model: Any, guide: Any, d: data.Dataset) -> Fit:
    return inference.fit(model, guide, d, epochs=1, progress=False)


def groups(tree: Any) -> list[str]:
    found = tree.children if hasattr(tree, "children") else tree.groups()
    return list(found)


def network(d: data.Dataset, prior: models.priors.WeightPrior) -> models.BayesianNetwork:
    torch.manual_seed(0)
    return models.BayesianNetwork(
        nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), d, prior=prior
    )


@pytest.fixture(scope="module")
def horseshoe(spirals: data.Dataset) -> Fit:
    model = network(spirals, models.priors.GroupHorseshoe(1e-2))
    return fitted(model, guides.MeanField(model), spirals)


@pytest.fixture(scope="module")
def depth(spirals: data.Dataset) -> Fit:
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(spirals, width=6, max_depth=3)
    return fitted(model, guides.CategoricalDepth(model), spirals)


def structured(d: data.Dataset, scaling: Any = None, prior: Any = None) -> Fit:
    kind = models.priors.GumbelSoftmax(0.7) if prior is None else prior
    torch.manual_seed(0)
    net = choice_of(2, 3, "tanh", "skip")
    weights = models.priors.Normal(1.0)
    model = models.StructuredNetwork(net, d, structure=kind, prior=weights, scaling=scaling)
    return fitted(model, guides.MeanField(model), d)


def test_groups_and_names(horseshoe: Fit) -> None:
    tree = horseshoe.to_arviz(DRAWS)
    names = {"posterior", "sample_stats", "log_prior", "log_likelihood", "posterior_predictive",
             "observed_data", "prior", "prior_predictive"}  # fmt: skip
    assert names == {*groups(tree)}
    posterior = tree["posterior"]
    assert {*posterior.data_vars} == {
        f"{layer}.{name}"
        for layer in "02"
        for name in ("global.a", "global.b", "scale.a", "scale.b")
    }
    assert posterior["2.scale.a"].dims == ("chain", "draw", "2.input")
    assert posterior["2.scale.a"].shape == (1, DRAWS, 4)
    assert posterior["0.global.a"].shape == (1, DRAWS)
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "row")
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, horseshoe.data.y_train.numpy())
    assert tree.attrs["data"] == "spirals"
    assert torch.__version__.startswith(tree.attrs["version_torch"])


def test_weights_on_request_and_the_dims_of_a_convolution() -> None:
    d = data.Dataset.from_tensors(
        torch.rand(20, 1, 6, 6), torch.arange(20) % 2, torch.rand(4, 1, 6, 6), torch.arange(4) % 2
    )
    net = nn.Sequential(nn.Conv2d(1, 3, (2, 3)), nn.Flatten(), nn.Linear(60, 2))
    model = models.BayesianNetwork(net, d, prior=models.priors.GroupNormalJeffreys())
    fit = fitted(model, guides.MeanField(model), d)
    posterior = fit.to_arviz(5, weights=True)["posterior"]
    assert posterior["0.weight"].dims[2:] == ("0.output", "0.input", "0.row", "0.column")
    assert posterior["0.weight"].shape == (1, 5, 3, 1, 2, 3)
    assert posterior["0.scale"].dims[2:] == posterior["0.bias"].dims[2:] == ("0.output",)
    assert posterior["2.weight"].dims[2:] == ("2.output", "2.input")
    assert posterior["2.scale"].dims[2:] == ("2.input",)
    assert "0.weight" not in fit.to_arviz(5)["posterior"]


@pytest.mark.parametrize("kind", ["horseshoe", "floored", "non-centred", "table"])
def test_densities_are_those_of_pyro(kind: str, horseshoe: Fit, spirals: data.Dataset) -> None:
    """Site by site, at the very draws, by handlers of Pyro over the model."""
    if kind == "horseshoe":
        fit = horseshoe
    elif kind == "table":
        fit = structured(spirals, prior=models.priors.Categorical())
    else:
        scaling: Any = models.Floored() if kind == "floored" else models.NonCentred()
        fit = structured(spirals, scaling)
    drawn = draw_posterior(fit, 3, weights=True)
    d = fit.data
    for s in range(3):
        values = {site: value[s] for site, value in drawn.values.items()}
        with torch.no_grad():
            model = poutine.condition(fit.model, data=values)
            trace = poutine.trace(model).get_trace(d.x_train, d.y_train)
            trace.compute_log_prob()
            guide = poutine.trace(poutine.condition(fit.guide, data=values)).get_trace(d.x_train)
            guide.compute_log_prob()
        for site in values:
            ours = float(drawn.log_prior[site][s])
            assert ours == pytest.approx(float(trace.nodes[site]["log_prob_sum"]), rel=1e-4)
            ours = float(drawn.log_q[site][s])
            assert ours == pytest.approx(float(guide.nodes[site]["log_prob_sum"]), rel=1e-4)
        likelihood = trace.nodes["y"]["log_prob"]
        torch.testing.assert_close(
            drawn.log_likelihood[s].float(), likelihood, rtol=1e-3, atol=1e-4
        )
    assert drawn.log_p is not None
    assert float(drawn.log_p[0]) == pytest.approx(
        sum(float(v[0]) for v in drawn.log_prior.values()) + float(drawn.log_likelihood[0].sum())
    )


def test_the_ratio_is_the_evidence_of_an_exact_posterior() -> None:
    """Of conjugate regression log p(θ, y) - log q(θ) is log p(y) for every θ."""
    g = torch.Generator().manual_seed(0)
    x = torch.linalg.qr(torch.randn(12, 2, generator=g))[0]
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(12, 1, generator=g)
    drawn = draw_posterior(regression(x, y), 40)
    assert drawn.log_ratio is not None
    cov = (x @ x.T).double() + NOISE**2 * torch.eye(12, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(12).double(), cov)
    expected = float(evidence.log_prob(y[:, 0].double()))
    torch.testing.assert_close(
        drawn.log_ratio, torch.full((40,), expected).double(), rtol=1e-5, atol=1e-4
    )


def test_targets_far_from_zero_keep_their_digits() -> None:
    x, noise = torch.linspace(-1, 1, 20)[:, None], torch.randn(20, 1).double()
    y = 1e8 + noise
    rows = data.Dataset.from_tensors(x, y, x[:4], y[:4], val_fraction=0.0)
    model = models.BayesianNetwork(nn.Linear(1, 1), rows, prior=models.priors.Normal())
    tree = fitted(model, guides.MeanField(model), rows).to_arviz(5)
    found = tree["observed_data"]["y"].values
    expected = noise - noise.mean()
    np.testing.assert_allclose(found - found.mean(), expected.numpy(), atol=1e-4)
    drawn = tree["posterior_predictive"]["y"].values - 1e8
    assert drawn.std() > 0.0
    assert len(np.unique(drawn)) == drawn.size  # in single precision they are multiples of eight


def test_exact_probabilities_stand_beside_the_draws(depth: Fit) -> None:
    tree = depth.to_arviz(4000)
    q = tree["structure"]["depth_probs"].values[0]
    np.testing.assert_allclose(q, depth.weights.double().numpy())
    assert depth.structure is not None
    np.testing.assert_allclose(
        tree["structure"]["depth_exact_probs"].values[0],
        depth.structure.exact_depth_probs.double().numpy(),
    )
    drawn = tree["posterior"]["depth"].values[0]
    share = np.bincount(drawn, minlength=4) / 4000
    # 4.5 standard errors of each of four shares: a false alarm in 3e-5
    assert (np.abs(share - q) <= 4.5 * np.sqrt(q * (1 - q) / 4000) + 1e-12).all()
    by_depth = depth.model.log_likelihood(depth.data.x_train, depth.data.y_train).detach()
    np.testing.assert_allclose(
        tree["log_likelihood"]["y"].values[0, :20], by_depth[drawn[:20]].numpy(), atol=1e-5
    )


def test_structure_is_shown_as_gamma_with_the_names_of_primitives(spirals: data.Dataset) -> None:
    fit = structured(spirals)
    tree = fit.to_arviz(50)
    gamma = tree["posterior"]["x-h.structure"]
    assert gamma.dims == ("chain", "draw", "x-h.primitive")
    assert list(gamma.coords["x-h.primitive"].values) == ["tanh", "skip"]
    np.testing.assert_allclose(gamma.values.sum(-1), 1.0, atol=1e-5)
    probs = tree["structure"]["x-h.structure_probs"].values[0]
    np.testing.assert_allclose(probs, fit.guide.edge("x-h.structure").probs().detach().numpy())


def test_predictions_and_observations_are_in_original_units() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(50, 2, generator=g)
    y = 200.0 + 30.0 * x.sum(1, keepdim=True)
    d = data.Dataset.from_tensors(x, y, x[:5], y[:5], task="regression")
    model = models.BayesianNetwork(nn.Linear(2, 1), d, prior=models.priors.Normal(1.0))
    fit = fitted(model, guides.MeanField(model), d)
    tree = fit.to_arviz(200)
    observed = tree["observed_data"]["y"].values
    assert observed.shape == (d.N, 1)
    assert abs(observed.mean() - 200.0) < 20.0
    predicted = tree["posterior_predictive"]["y"].values
    assert predicted.shape == (1, 200, d.N, 1)
    assert abs(predicted.mean() - 200.0) < 40.0
    assert 200.0 in range(*map(int, np.quantile(tree["prior_predictive"]["y"], [0.2, 0.8])))
    likelihood = torch.tensor(tree["log_likelihood"]["y"].values[0])
    nll = -float((torch.logsumexp(likelihood, 0) - math.log(200)).mean())
    assert nll == pytest.approx(fit.evaluate("train", draws=200)["nll"], abs=1e-4)


def test_rows_are_evenly_spread_and_leave_no_joint_density(horseshoe: Fit) -> None:
    assert even_rows(10, None).tolist() == even_rows(10, 30).tolist() == list(range(10))
    assert even_rows(10, 4).tolist() == [0, 3, 6, 9]
    with pytest.raises(PyroccamError):
        even_rows(10, 0)
    tree = horseshoe.to_arviz(10, rows=7)
    assert tree["log_likelihood"]["y"].shape == (1, 10, 7)
    assert "log_p" not in tree["sample_stats"]
    assert "all training rows" in tree.attrs["log_p"]
    rows = tree["log_likelihood"].coords["row"].values.copy()
    np.testing.assert_array_equal(
        tree["observed_data"]["y"].values, horseshoe.data.y_train[rows].numpy()
    )
    whole = horseshoe.to_arviz(10)
    np.testing.assert_allclose(
        whole["log_likelihood"]["y"].values[..., rows], tree["log_likelihood"]["y"].values,
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_draws_are_made_in_parts(horseshoe: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyroccam.inference.posterior.draws.AT_ONCE", 60)
    drawn = draw_posterior(horseshoe, 9)
    assert drawn.log_likelihood.shape == (9, horseshoe.data.N)
    assert len(drawn.values["0.global.a"].unique()) == 9
    assert draw_prior(horseshoe.model, horseshoe.data.x_train[:3], 9).predictions is not None


def test_improper_priors_are_named(spirals: data.Dataset) -> None:
    model = network(spirals, models.priors.GroupNormalJeffreys())
    tree = fitted(model, guides.MeanField(model), spirals).to_arviz(5)
    assert tree.attrs["improper_priors"] == "0.scale, 2.scale"
    assert "prior_predictive" not in groups(tree)
    assert "prior" not in groups(tree)


def test_weights_alone_are_summed_up_by_layer(spirals: data.Dataset) -> None:
    model = network(spirals, models.priors.Normal(2.0))
    fit = fitted(model, guides.MeanField(model), spirals)
    short, whole = fit.to_arviz(6), fit.to_arviz(6, weights=True)
    for group in ("posterior", "prior"):
        assert {*short[group].data_vars} == {
            f"{site}_rms" for site in ("0.weight", "0.bias", "2.weight", "2.bias")
        }
        for name, value in short[group].data_vars.items():
            drawn = whole[group][name.removesuffix("_rms")].values.reshape(1, 6, -1)
            np.testing.assert_allclose(value.values, np.sqrt((drawn**2).mean(-1)), rtol=1e-5)


def test_a_point_is_drawn_once_and_says_so(spirals: data.Dataset) -> None:
    model = network(spirals, models.priors.Normal(1.0))
    tree = fitted(model, guides.Delta(model), spirals).to_arviz(30)
    assert tree["log_likelihood"]["y"].shape[:2] == (1, 1)
    assert "log_q" not in tree["sample_stats"]
    assert "0.weight" in tree.attrs["points"]
    fixed = models.LearntDepth.mlp(spirals, width=4, max_depth=2).at_depth(1)
    tree = fitted(fixed, guides.Deterministic(fixed), spirals).to_arviz(4)
    assert "posterior" not in groups(tree)
    assert "log_likelihood" in groups(tree)


def test_prior_draws_have_the_moments_of_the_prior(spirals: data.Dataset) -> None:
    model = network(spirals, models.priors.Normal(2.0))
    drawn = draw_prior(model, spirals.x_train[:2], 4000, weights=True)
    sd = drawn.values["0.weight"].double().std(0)
    assert float((sd - 2.0).abs().max()) < 4.5 * 2.0 / math.sqrt(2 * 4000)
    depths = models.LearntDepth.mlp(spirals, width=4, max_depth=3)
    share = draw_prior(depths, spirals.x_train[:2], 4000).values["depth"].bincount() / 4000
    expected = depths.log_prior.exp()
    assert bool(((share - expected).abs() < 4.5 * (expected * (1 - expected) / 4000).sqrt()).all())


def test_repeats_are_chains(spirals: data.Dataset) -> None:
    def build(seed: int) -> tuple[Any, nn.Module, data.Dataset]:
        model = network(spirals, models.priors.GroupHorseshoe(1e-2))
        return model, guides.MeanField(model), spirals

    repeats = inference.fit_repeats(build, [0, 1, 2], together=False, epochs=1, progress=False)
    tree = repeats.to_arviz(20, prior=False)
    assert tree["posterior"]["0.scale.a"].shape == (3, 20, 2)
    alone = repeats.fits[1].to_arviz(20, prior=False)
    np.testing.assert_allclose(
        tree["posterior"]["0.scale.a"].values[1], alone["posterior"]["0.scale.a"].values[0]
    )
    repeats.fits[1] = structured(spirals)
    with pytest.raises(PyroccamError):
        repeats.to_arviz(20)


def test_files(horseshoe: Fit, depth: Fit, tmp_path: Path) -> None:
    for k, fit in enumerate((horseshoe, depth)):
        tree = fit.to_arviz(6)
        path = arviz_adapter.write(tree, tmp_path / "sub" / f"{k}.nc")
        again = arviz_adapter.read(path)
        assert {*groups(again)} == {*groups(tree)}
        for group in groups(tree):
            for name in tree[group].data_vars:
                np.testing.assert_array_equal(tree[group][name], again[group][name])
                assert tree[group][name].dims == again[group][name].dims
        assert again.attrs["model"] == tree.attrs["model"]
        arviz_adapter.write(again, path)  # in memory: its own file may be replaced
    assert [p.name for p in (tmp_path / "sub").iterdir() if "partial" in p.name] == []
    with pytest.raises(FileNotFoundError, match=r"no\.nc"):
        arviz_adapter.read(tmp_path / "no.nc")


def test_refusals(horseshoe: Fit) -> None:
    with pytest.raises(PyroccamError):
        horseshoe.to_arviz(0)
    with pytest.raises(PyroccamError):
        horseshoe.to_arviz(10**9)


def test_generators_are_left_alone(horseshoe: Fit) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    a = horseshoe.to_arviz(5)
    assert torch.equal(torch.get_rng_state(), before)
    b = horseshoe.to_arviz(5)
    np.testing.assert_array_equal(a["posterior"]["0.scale.a"], b["posterior"]["0.scale.a"])
    other = horseshoe.to_arviz(5, seed=1)
    assert not np.array_equal(a["posterior"]["0.scale.a"], other["posterior"]["0.scale.a"])
    assert not horseshoe.model.training


@pytest.mark.filterwarnings("ignore")  # of ArviZ itself, and of matplotlib
@pytest.mark.parametrize("kind", ["normal", "log-uniform", "group", "depth", "structure"])
def test_what_a_person_asks_arviz_first(kind: str, depth: Fit, spirals: data.Dataset) -> None:
    import arviz as az

    prior = {"normal": models.priors.Normal(), "log-uniform": models.priors.LogUniform()}
    if kind == "depth":
        fit = depth
    elif kind == "structure":
        bent = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        graph = models.StructureGraph({("x", "y"): {"plain": nn.Linear(2, 2), "bent": bent}})
        structure = models.priors.GumbelSoftmax(0.5)
        random = models.StructuredNetwork(graph, spirals, structure=structure)
        fit = fitted(random, guides.MeanField(random), spirals)
    else:
        model = network(spirals, prior.get(kind) or models.priors.GroupNormalJeffreys())
        fit = fitted(model, guides.MeanField(model), spirals)
    found = fit.to_arviz(100)
    assert len(az.summary(found)) >= 1
    each = draw_posterior(fit, 100).log_likelihood  # the density of rows that were not left out
    whole = float((each.logsumexp(0) - math.log(100)).sum())
    estimate = az.loo(found)
    value = estimate.elpd_loo if hasattr(estimate, "elpd_loo") else estimate.elpd
    assert whole - 0.5 * abs(whole) < float(value) < whole
    az.plot_forest(found)
    plt.close("all")
