"""What was fitted in double precision predicts in it."""

from functools import partial

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import Dataset, NetworkError
from pyroccam.inference import diagnostics
from pyroccam.models import priors
from torch import nn

QUICK = {"epochs": 4, "progress": False, "device": "cpu", "seed": 0}


def rows(task):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    if task == "regression":
        y = 2 * x[:, :2] + 5 + 0.1 * torch.randn(80, 2, generator=generator)
    return Dataset.from_tensors(x[:50], y[:50], x[50:], y[50:])


def depth_pair(data, double=False):
    """The stack alone is in double precision, as a person would have it."""
    torch.manual_seed(0)
    stack = models.networks.residual_mlp(data.input_shape, data.outputs, width=5, max_depth=3)
    model = models.LearntDepth(stack.double() if double else stack, data=data)
    return model, guides.CategoricalDepth(model)


def random_pair(prior, guide, data, double=False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, data.outputs))
    model = models.BayesianNetwork(net.double() if double else net, data, prior=prior)
    return model, guide(model)


def floats(module):
    return {t.dtype for t in module.state_dict().values() if t.is_floating_point()}


PAIRS = {
    "depth": depth_pair,
    "normal": partial(random_pair, priors.Normal(), guides.MeanField),
    "groups": partial(random_pair, priors.GroupNormalJeffreys(), guides.MeanField),
    "dropout": partial(random_pair, priors.LogUniform(), guides.VariationalDropout),
    "points": partial(random_pair, priors.Normal(), guides.Delta),
}


@pytest.mark.parametrize(
    ("kind", "task"), [("depth", "classification"), *((kind, "regression") for kind in PAIRS)]
)
def test_a_fit_of_a_network_in_double_precision(kind, task):
    data = rows(task).to(dtype=torch.float64)
    fit = inference.fit(*PAIRS[kind](data, double=True), data, **QUICK)
    assert floats(fit.model) | floats(fit.guide) | {fit.weights.dtype} == {torch.float64}
    x = data.x_test
    ways = ["ensemble"] if kind == "depth" else ["ensemble", "deterministic", "stochastic"]
    for how in ways:
        assert fit.predict(x, how).dtype == torch.float64
        assert fit.evaluate(how=how).keys() == inference.Repeats([fit, fit], 0.0).evaluate().keys()
    assert inference.Repeats([fit, fit], 0.0).evaluate() == pytest.approx(fit.evaluate())
    fit.to_arviz(draws=4)
    inference.elbo.evidence(fit.model, fit.guide, fit.data)
    for finding in diagnostics.diagnose(fit):
        assert "Error" not in finding.text
    other = inference.swap(fit, progress=False)
    assert floats(other.model) | floats(other.guide) == {torch.float64}
    if kind == "groups":
        assert inference.shrink(fit).net(x).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    data = rows("regression")
    with pytest.raises(NetworkError):
        models.BayesianNetwork(nn.Linear(3, 2).to(dtype), data, prior=priors.Normal())
    model, guide = depth_pair(data)
    with pytest.raises(NetworkError):
        inference.fit(model.to(dtype), guide.to(dtype), data, **QUICK)
