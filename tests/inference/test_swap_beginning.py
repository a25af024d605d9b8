"""A swapped fit begins as the first one did, whatever its parts are made of."""

import pyro.distributions as dist
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from torch import nn

P = models.priors
STILL = {"epochs": 1, "lr": 1e-12, "weight_decay": 0.0, "progress": False, "device": "cpu"}
MOVED = {"epochs": 4, "lr": 0.1, "progress": False, "device": "cpu", "checkpoint": "last"}


def rows(images=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, *((1, 8, 8) if images else (3,)), generator=generator)
    y = x.flatten(1)[:, :1] * 2 + 1
    y = (y[:, 0] > 1).long() if images else y
    return Dataset.from_tensors(x, y, x, y)


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
    """Trains, swaps for a fit that does not move; gives both models and what it began with."""
    before = state_of(model)
    fit = inference.fit(model, guide, data, **MOVED)
    after = state_of(fit.model)
    for name in changes:
        assert not torch.allclose(after[name], before[name]), name
    other = inference.swap(fit, **STILL)
    return fit, other, before


def test_a_convolutional_stack_with_statistics_of_each_depth():
    data = rows(images=True)
    torch.manual_seed(0)
    model = models.LearntDepth.conv(data, width=4, inner=2, max_depth=3)
    norms = [n for n, m in model.named_modules() if type(m).__name__ == "DepthBatchNorm"]
    assert norms
    changes = [f"{n}.{what}" for n in norms for what in ("weight", "bias", "running_mean")]
    guide = guides.CategoricalDepth(model)
    _, other, before = begins_again(model, guide, data, changes)
    found = state_of(other.model)
    for name, value in before.items():
        if name.endswith("num_batches_tracked"):
            assert found[name] == value + 1
        elif "running" not in name:  # one batch has moved those
            torch.testing.assert_close(found[name], value, msg=name)
    # That the statistics themselves began where they did: the next test, bit for bit


def test_a_swap_to_the_same_is_the_same_training():
    data = rows(images=True)
    torch.manual_seed(0)
    model = models.LearntDepth.conv(data, width=4, inner=2, max_depth=2)
    fit = inference.fit(model, guides.CategoricalDepth(model), data, **MOVED)
    again = inference.swap(fit, progress=False)
    for name, value in fit.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value, msg=name)


@pytest.mark.parametrize(
    ("likelihood", "kept"),
    [
        (models.Regression(1, scale=0.6, floor=0.25), {"floor": 0.25}),
        (Student(4.0), {"freedom": 4.0}),
    ],
    ids=["known", "own"],
)
@pytest.mark.parametrize("kind", ["depth", "weights"])
def test_the_likelihood_keeps_its_options_and_forgets_what_it_learnt(kind, likelihood, kept):
    data = rows()
    torch.manual_seed(0)
    if kind == "depth":
        blocks = [nn.Sequential(nn.Linear(3, 3), nn.Tanh())]
        model = models.LearntDepth(
            nn.Linear(3, 3), blocks, nn.Linear(3, 1), data=data, likelihood=likelihood
        )
        guide = guides.CategoricalDepth(model)
    else:
        net = nn.Linear(3, 1)
        model = models.BayesianNetwork(net, data, prior=P.Normal(), likelihood=likelihood)
        guide = guides.MeanField(model)
    fit, other, before = begins_again(model, guide, data, ["likelihood.log_scale"])
    name = "likelihood.log_scale"
    torch.testing.assert_close(state_of(other.model)[name], before[name])
    assert type(other.model.likelihood) is type(likelihood)
    assert {n: getattr(other.model.likelihood, n) for n in kept} == kept
    assert other.model.likelihood is not fit.model.likelihood


def test_a_module_of_ones_own():
    data = rows()
    torch.manual_seed(0)
    net = nn.Sequential(Own(), nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = models.BayesianNetwork(net, data, prior=P.Normal(), layers=["3"])
    changes = ["net.0.gain", "net.0.seen", "net.0.line.weight", "net.1.weight", "net.2.bias"]
    _, other, before = begins_again(model, guides.MeanField(model), data, changes)
    found = state_of(other.model)
    for name in ("net.0.gain", "net.0.line.weight", "net.1.weight", "net.2.bias"):
        torch.testing.assert_close(found[name], before[name], msg=name)
    assert abs(found["net.0.seen"] - 0.25) < 0.05  # one batch of a moving average


def test_a_stack_of_ones_own():
    data = rows()
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Parameter(torch.tensor([0.1]))

        def forward(self, x):
            return x + self.gate * x.tanh()

    model = models.LearntDepth(nn.Linear(3, 3), [Block(), Block()], nn.Linear(3, 1), data=data)
    changes = ["stack.blocks.0.gate", "stack.stem.weight"]
    _, other, before = begins_again(model, guides.CategoricalDepth(model), data, changes)
    for name, value in before.items():
        if name.startswith("stack"):
            torch.testing.assert_close(state_of(other.model)[name], value, msg=name)


def test_weights_that_were_numbers_become_random_where_they_began():
    data = rows()
    torch.manual_seed(0)
    graph = models.StructureGraph(
        {("x", "y"): {"a": nn.Linear(3, 1), "b": nn.Sequential(nn.Linear(3, 1), nn.Tanh())}}
    )
    model = models.StructuredNetwork(graph, data, structure=P.GumbelSoftmax(0.5))
    start = graph.edges["x-y"]["a"].weight.detach().clone()
    fit = inference.fit(model, guides.MeanField(model), data, **MOVED)
    other = inference.swap(fit, prior=P.Normal(), **STILL)
    assert torch.equal(other.model.layers["edges.x-y.a"].start["weight"], start)
