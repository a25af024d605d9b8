"""The same network under another prior or guide, which begins as the first fit did."""

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
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


class Own(nn.Module):
    """A parameter and a statistic without a reset_parameters, beside a layer that has one."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)
        self.gain = nn.Parameter(torch.tensor([1.5]))
        self.register_buffer("seen", torch.tensor(0.25))
        nn.init.constant_(self.line.weight, 0.125)  # an initial value of its own

    def forward(self, x):
        if self.training:
            self.seen.mul_(0.9).add_(0.1 * x.detach().mean())
        return self.gain * self.line(x) + self.seen


class Student(models.Likelihood):
    """A likelihood with learnt parameters of its own."""

    task = "regression"
    outputs = 1

    def __init__(self, freedom):
        super().__init__()
        self.freedom = freedom
        self.log_scale = nn.Parameter(torch.tensor([0.3]))

    def forward(self, outputs):
        return dist.StudentT(self.freedom, outputs, self.log_scale.exp()).to_event(1)


def state_of(model):
    parts = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: t.detach().clone() for name, t in parts.items()}


def begins_again(model, guide, data, changes):
    """Trains, and swaps for a fit that does not move; what that is, and what it began with."""
    before = state_of(model)
    fit = inference.fit(model, guide, data, **MOVED)
    for name in changes:
        assert not torch.allclose(state_of(fit.model)[name], before[name]), name
    other = inference.swap(fit, **STILL)
    found = state_of(other.model)
    for name in changes:
        torch.testing.assert_close(found[name], before[name], msg=name)
    return other.model, found


@pytest.mark.parametrize("likelihood", [models.Regression(1, scale=0.6, floor=0.25), Student(4.0)])
def test_parts_of_ones_own(likelihood):
    """Also the likelihood keeps its options, and forgets what it learnt."""
    torch.manual_seed(0)
    net = nn.Sequential(Own(), nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    options = {"prior": P.Normal(), "layers": ["3"], "likelihood": likelihood}
    model = models.BayesianNetwork(net, rows(), **options)
    names = ("0.gain", "0.line.weight", "1.weight", "2.bias")
    changes = [f"net.{name}" for name in names] + ["likelihood.log_scale"]
    other, found = begins_again(model, guides.MeanField(model), rows(), changes)
    assert abs(found["net.0.seen"] - 0.25) < 0.05  # one batch of a moving average
    assert type(other.likelihood) is type(likelihood)
    assert other.likelihood is not model.likelihood
    option = "freedom" if isinstance(likelihood, Student) else "floor"
    assert getattr(other.likelihood, option) == getattr(likelihood, option)


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
