"""The same network under another prior or guide."""

from typing import Any

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.training.result import Fit
from torch import nn

P = models.priors


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load("digits", seed=0)


def net() -> nn.Module:
    torch.manual_seed(0)
    hidden = nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *hidden)


def fitted(model: Any, guide: Any, d: data.Dataset, **settings: Any) -> Fit:
    chosen = {"epochs": 2, "batch_size": 256, **settings}
    return inference.fit(model, guide, d, progress=False, **chosen)


@pytest.fixture(scope="module")
def gnj(digits: data.Dataset) -> Fit:
    options: dict[str, Any] = {"layers": ["1"], "random_biases": False}
    model = models.BayesianNetwork(net(), digits, prior=P.GroupNormalJeffreys(), **options)
    return fitted(model, guides.MeanField(model, max_scale=0.3), digits, lr=0.02, seed=3)


def test_another_prior_keeps_everything_else(gnj: Fit) -> None:
    before = {k: v.clone() for k, v in gnj.model.state_dict().items()}
    other = inference.swap(gnj, prior=P.Normal(2.0), progress=False)
    assert list(other.model.sites) == ["1.weight"]
    assert isinstance(other.guide, guides.MeanField)
    assert other.guide.arguments()["max_scale"] == 0.3
    assert vars(other.settings) == vars(gnj.settings)
    ends = [one.model.layers["1"].start["weight"] for one in (other, gnj)]
    assert torch.equal(*ends)
    after = gnj.model.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())  # the given fit stays


def test_the_rest_begins_afresh(gnj: Fit) -> None:
    """Without a step, normalisation and layers that are not random are not what training left."""
    still = inference.swap(gnj, prior=P.Normal(2.0), lr=1e-12, epochs=1, progress=False)
    assert torch.equal(still.model.net[2].weight, torch.ones(8))
    trained = gnj.model.net[4].weight
    assert not torch.allclose(still.model.net[4].weight, trained)
    again = inference.swap(gnj, prior=P.Normal(2.0), lr=1e-12, epochs=1, progress=False)
    assert torch.equal(still.model.net[4].weight, again.model.net[4].weight)  # by the seed


def test_a_swap_to_the_same_is_the_same_training(digits: data.Dataset) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model = models.BayesianNetwork(plain, digits, prior=P.Normal(1.0))
    fit = fitted(model, guides.MeanField(model), digits)
    again = inference.swap(fit, progress=False)
    for a, b in zip(fit.guide.parameters(), again.guide.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert again.model is not fit.model


@pytest.mark.parametrize(
    ("prior", "guide"),
    [
        (P.GroupHorseshoe(1e-3), None),
        (P.SpikeSlab(0.3), None),
        (P.LogUniform(), guides.VariationalDropout),
        (P.Normal(1.0), guides.Delta),
        (None, lambda model: guides.MeanField(model, scale=1e-3)),
    ],
    ids=["horseshoe", "spike-slab", "dropout", "delta", "function"],
)
def test_priors_and_guides(gnj: Fit, prior: Any, guide: Any) -> None:
    other = inference.swap(gnj, prior=prior, guide=guide, epochs=1, progress=False)
    assert other.evaluate()["nll"] > 0
    if guide is guides.Delta:
        assert isinstance(other.guide, guides.Delta)


def test_a_variance_network_stays_one(digits: data.Dataset) -> None:
    model = models.BayesianNetwork(net(), digits, prior=P.LogUniform())
    options: dict[str, Any] = {"layers": ["4"], "noise": "rademacher", "scale": 0.1, "local": False}
    fit = fitted(model, guides.ZeroMean(model, **options), digits)
    other = inference.swap(fit, prior=P.Normal(1.0), epochs=1, progress=False).guide
    assert isinstance(other, guides.ZeroMean)
    assert other.arguments() == options
    assert other.handler is None
    assert other.traits.zero_mean == ("4",)


def test_what_a_prior_learns_begins_afresh(digits: data.Dataset) -> None:
    """A mixture that two networks share would be one prior for both."""
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model = models.BayesianNetwork(plain, digits, prior=P.GaussianMixture(4))
    fit = fitted(model, guides.Delta(model), digits)
    other = inference.swap(fit, progress=False)
    mine, theirs = (set(map(id, one.model.parameters())) for one in (fit, other))
    assert not mine & theirs


def test_depth(digits: data.Dataset) -> None:
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(digits, width=8, max_depth=3, prior=P.Geometric(0.5))
    guide = guides.CategoricalDepth(model, update="gradient", hold=0.1)
    fit = fitted(model, guide, digits)
    other = inference.swap(fit, prior=P.Uniform(), progress=False)
    torch.testing.assert_close(other.model.log_prior.exp(), torch.full((4,), 0.25))
    assert (other.guide.update, other.guide.schedule.held) == ("gradient", 0.1)
    table = inference.side_by_side({"geometric": fit, "uniform": other})
    assert list(table.index) == ["geometric", "uniform"]
    assert fit.structure is not None
    assert table.loc["geometric", "depth"] == fit.structure.depth_chosen
    assert table.loc["uniform", "nll"] == pytest.approx(other.evaluate()["nll"])
    fixed = model.at_depth(1)
    alone = fitted(fixed, guides.Deterministic(fixed), digits)
    with pytest.raises(PyroccamError):
        inference.swap(alone, prior=P.Uniform())


def test_structure(digits: data.Dataset) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    first = {"tanh": nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh()), "linear": linear}
    graph = models.StructureGraph({("x", "h"): first, ("h", "y"): [nn.Linear(6, 10)]})
    options: dict[str, Any] = {"structure": P.GumbelSoftmax(0.5), "scaling": models.NonCentred()}
    model = models.StructuredNetwork(graph, digits, **options)
    family = guides.StructureFamily(temperature="learnt")
    fit = fitted(model, guides.MeanField(model, structure=family), digits)
    other = inference.swap(fit, structure=P.GumbelSoftmax(1.0), progress=False)
    assert other.guide.structure_family == family
    assert float(other.model.temperature.value) == 1.0
    assert isinstance(other.model.scaling, models.NonCentred)
    assert not other.model.sites
    random = inference.swap(fit, prior=P.Normal(1.0), progress=False)
    assert len(random.model.sites) == 6
    table = inference.side_by_side({"a": fit, "b": random})
    assert "tanh" in table.loc["a", "structure"] or "linear" in table.loc["a", "structure"]


def test_side_by_side_of_random_weights(gnj: Fit) -> None:
    table = inference.side_by_side({"gnj": gnj}, passes=3)
    bound = inference.elbo.evidence(gnj.model, gnj.guide, gnj.data, passes=3, seed=3)
    assert table.loc["gnj", "elbo"] == pytest.approx(bound.elbo / bound.rows)
    assert table.loc["gnj", "kl"] == pytest.approx(bound.kl / bound.rows)
    small = inference.shrink(gnj)
    assert table.loc["gnj", "weights left"] == pytest.approx(small.report.rates.nonzero_percent)


def test_refusals(gnj: Fit) -> None:
    with pytest.raises(PyroccamError):
        inference.swap(gnj, prior=P.Uniform())
    with pytest.raises(PyroccamError):
        inference.swap(gnj, structure=P.Dirichlet(1.0))


@pytest.mark.filterwarnings("ignore:The cut by")
def test_what_a_narrowed_network_was_is_not_forgotten(digits: data.Dataset) -> None:
    model = models.BayesianNetwork(net(), digits, prior=P.GroupNormalJeffreys())
    fit = fitted(model, guides.MeanField(model), digits)
    values = inference.shrink(fit, cut=inference.Thresholds(100.0)).report.irrelevance["1"].values
    smaller = inference.narrow(fit, cut=inference.Thresholds({"1": float(values.median())}))
    narrowed = fitted(*smaller, digits)
    other = inference.swap(narrowed, prior=P.LogUniform(), progress=False)
    for name in ("weights_before", "parameters_before", "names"):
        assert getattr(other.model, name) == getattr(narrowed.model, name)
    small = inference.shrink(other, cut=inference.Thresholds({"1": 100.0}))
    assert small.report.rates.total == 64 * 8 + 8 * 10
    whole = sum(p.numel() for p in net().parameters())
    for report in (
        inference.shrink(narrowed, cut=inference.Thresholds(100.0)).report,
        small.report,
    ):
        assert f"parameters that the last cut left of {whole}, since" in str(report)
    assert "narrowing" not in str(inference.shrink(fit, cut=inference.Thresholds(100.0)).report)
