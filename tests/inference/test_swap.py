"""The same network under another prior or guide, which begins as the first fit did."""

from typing import Any

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from torch import nn

P = models.priors
QUIET = {"progress": False, "device": "cpu"}
STILL = {"epochs": 1, "lr": 1e-12, "weight_decay": 0.0, **QUIET}
MOVED = {"epochs": 4, "lr": 0.1, "checkpoint": "last", **QUIET}


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load("digits", seed=0)


def net() -> nn.Module:
    torch.manual_seed(0)
    hidden = nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *hidden)


def fitted(model: Any, guide: Any, d: data.Dataset, **settings: Any) -> Any:
    return inference.fit(model, guide, d, **{"epochs": 2, "batch_size": 256, **QUIET, **settings})


@pytest.fixture(scope="module")
def gnj(digits: data.Dataset) -> Any:
    options: dict[str, Any] = {"layers": ["1"], "random_biases": False}
    model = models.BayesianNetwork(net(), digits, prior=P.GroupNormalJeffreys(), **options)
    return fitted(model, guides.MeanField(model, max_scale=0.3), digits, lr=0.02, seed=3)


def test_another_prior_keeps_everything_else(gnj: Any) -> None:
    before = {k: v.clone() for k, v in gnj.model.state_dict().items()}
    other = inference.swap(gnj, prior=P.Normal(2.0), progress=False)
    assert list(other.model.sites) == ["1.weight"]
    assert other.guide.arguments()["max_scale"] == 0.3
    assert vars(other.settings) == vars(gnj.settings)
    ends = [one.model.layers["1"].start["weight"] for one in (other, gnj)]
    assert torch.equal(*ends)
    after = gnj.model.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())  # the given fit stays


def test_depth(digits: data.Dataset) -> None:
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(digits, width=8, max_depth=3, prior=P.Geometric(0.5))
    fit = fitted(model, guides.CategoricalDepth(model, update="gradient", hold=0.1), digits)
    other = inference.swap(fit, prior=P.Uniform(), progress=False)
    torch.testing.assert_close(other.model.log_prior.exp(), torch.full((4,), 0.25))
    assert (other.guide.update, other.guide.schedule.held) == ("gradient", 0.1)
    table = inference.side_by_side({"geometric": fit, "uniform": other})
    assert list(table.index) == ["geometric", "uniform"]
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
    start = linear[1].weight.detach().clone()
    fit = fitted(model, guides.MeanField(model, structure=family), digits)
    other = inference.swap(fit, structure=P.GumbelSoftmax(1.0), progress=False)
    assert other.guide.structure_family == family
    assert float(other.model.temperature.value) == 1.0
    assert isinstance(other.model.scaling, models.NonCentred)
    random = inference.swap(fit, prior=P.Normal(1.0), **STILL)
    assert len(random.model.sites) == 6  # which were numbers, and begin where they began
    assert torch.equal(random.model.layers["edges.x-h.linear.1"].start["weight"], start)
    table = inference.side_by_side({"a": fit, "b": random})
    assert "tanh" in table.loc["a", "structure"] or "linear" in table.loc["a", "structure"]


def test_side_by_side_of_random_weights(gnj: Any) -> None:
    table = inference.side_by_side({"gnj": gnj}, passes=3)
    bound = inference.elbo.evidence(gnj.model, gnj.guide, gnj.data, passes=3, seed=3)
    assert table.loc["gnj", "elbo"] == pytest.approx(bound.elbo / bound.rows)
    assert table.loc["gnj", "kl"] == pytest.approx(bound.kl / bound.rows)
    small = inference.shrink(gnj)
    assert table.loc["gnj", "weights left"] == pytest.approx(small.report.rates.nonzero_percent)


@pytest.mark.filterwarnings("ignore:The cut by")
def test_what_a_narrowed_network_was_is_not_forgotten(digits: data.Dataset) -> None:
    model = models.BayesianNetwork(net(), digits, prior=P.GroupNormalJeffreys())
    fit = fitted(model, guides.MeanField(model), digits)
    whole = inference.shrink(fit, cut=inference.Thresholds(100.0)).report
    median = float(whole.irrelevance["1"].values.median())
    narrowed = fitted(*inference.narrow(fit, cut=inference.Thresholds({"1": median})), digits)
    other = inference.swap(narrowed, prior=P.LogUniform(), progress=False)
    for name in ("weights_before", "parameters_before", "names"):
        assert getattr(other.model, name) == getattr(narrowed.model, name)
    small = inference.shrink(other, cut=inference.Thresholds({"1": 100.0}))
    assert small.report.rates.total == 64 * 8 + 8 * 10
    assert "narrowing" not in str(whole)


# What a swapped fit begins with, whatever its parts are made of


def rows(images=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, *((1, 8, 8) if images else (3,)), generator=generator)
    y = x.flatten(1)[:, :1] * 2 + 1
    y = (y[:, 0] > 1).long() if images else y
    return data.Dataset.from_tensors(x, y, x, y)


def test_a_likelihood_keeps_its_options_and_forgets_what_it_learnt():
    likelihood = models.Regression(1, scale=0.6, floor=0.25)
    before = likelihood.log_scale.detach().clone()
    model = models.BayesianNetwork(nn.Linear(3, 1), rows(), prior=P.Normal(), likelihood=likelihood)
    fit = inference.fit(model, guides.MeanField(model), rows(), **MOVED)
    assert not torch.allclose(fit.model.likelihood.log_scale, before)
    other = inference.swap(fit, **STILL).model.likelihood
    assert other is not fit.model.likelihood
    torch.testing.assert_close(other.log_scale.detach(), before)
    assert other.floor == likelihood.floor


def test_a_swap_to_the_same_is_the_same_training():
    """Of a stack that has statistics for each depth, and a random network."""
    images = rows(images=True)
    torch.manual_seed(0)
    model = models.LearntDepth.conv(images, width=4, inner=2, max_depth=2)
    assert any(type(m).__name__ == "DepthBatchNorm" for m in model.modules())
    alone = models.BayesianNetwork(nn.Linear(3, 1), rows(), prior=P.Normal(1.0))
    for fit in (
        inference.fit(model, guides.CategoricalDepth(model), images, **MOVED),
        inference.fit(alone, guides.MeanField(alone), rows(), **MOVED),
    ):
        again = inference.swap(fit, progress=False)
        for one, other in ((fit.model, again.model), (fit.guide, again.guide)):
            assert one is not other
            for name, value in one.state_dict().items():
                torch.testing.assert_close(other.state_dict()[name], value, msg=name)
