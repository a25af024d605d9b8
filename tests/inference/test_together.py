"""Several fits together against a mixture written out row by row, in original units."""

import dataclasses
import itertools
import math

import pyro.distributions as dist
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.posterior.ensemble import EnsembleNetwork, components
from pyroccam.inference.posterior.same_rows import same_targets
from pyroccam.inference.training.result import Fit, Repeats
from pyroccam.inference.training.settings import Settings
from torch import nn


def rows(seed=0, task="regression", n=40):
    """The same test rows for every seed, other validation rows, and so another scale."""
    generator = torch.Generator().manual_seed(0)
    x = 5.0 + 3.0 * torch.randn(n + 12, 2, generator=generator)
    y = (
        200.0
        + 40.0 * x[:, :1] * torch.tensor([[1.0, -0.1]])
        + 10.0 * torch.randn(n + 12, 2, generator=generator)
    )
    if task == "classification":
        y = (x[:, 0] > 5).long() + (x[:, 1] > 5).long()
    return Dataset.from_tensors(x[:n], y[:n], x[n:], y[n:], val_fraction=0.3, seed=seed)


def untrained(data, depth, weights, scale=None, seed=0, likelihood=None):
    """What a fit would give, with weights, q(d) and noise as asked."""
    torch.manual_seed(seed)
    stack = models.networks.residual_mlp(data.input_shape, data.outputs, width=4, max_depth=depth)
    model = models.LearntDepth(stack, data=data, likelihood=likelihood)
    guide = guides.CategoricalDepth(model)
    with torch.no_grad():
        for p in model.stack.parameters():
            p.add_(0.3 * torch.randn_like(p))
        guide.logits.copy_(torch.tensor(weights).log())
        if scale is not None:
            model.likelihood.log_scale.copy_(torch.tensor(scale).log())
    model.eval()
    rest = {"history": [], "best_epoch": 1, "val_nll": 0.0, "seconds": 0.0, "structure": None}
    return Fit(model, guide, data, Settings(seed=seed), weights=guide.probs, **rest)


def three(task="regression"):
    """Other depths, other q(d), other noise, other scales."""
    noise = [[0.2, 0.9], [0.7, 0.4], [1.5, 0.05]] if task == "regression" else [None] * 3
    q = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]]
    return [untrained(rows(k, task), depth, q[k], noise[k], k) for k, depth in enumerate((3, 5, 3))]


@torch.no_grad()
def by_hand(fits):
    """Density of each row, a term for each repeat and depth, and the mean of the mixture."""
    nll = squared = 0.0
    x_raw = fits[0].data.x_test.double() * fits[0].data.x_std + fits[0].data.x_mean
    y_raw = fits[0].data.y_test.double() * fits[0].data.y_std + fits[0].data.y_mean
    for x_row, y_row in zip(x_raw, y_raw, strict=True):
        density, mean = 0.0, torch.zeros(2, dtype=torch.float64)
        for one in fits:
            data, model = one.data, one.model
            x = ((x_row - data.x_mean) / data.x_std).float()[None]
            sd = (model.likelihood.floor + model.likelihood.log_scale.exp()).double() * data.y_std
            for w, out in zip(one.weights, model.stack.outputs(x), strict=True):
                mu = out[0].double() * data.y_std + data.y_mean
                z = (y_row - mu) / sd
                each = torch.exp(-0.5 * z**2) / (sd * math.sqrt(2 * math.pi))
                density += float(w * each.prod()) / len(fits)
                mean += (w * mu).detach() / len(fits)
        nll -= math.log(density) / len(x_raw)
        squared += float(((mean - y_row) ** 2).mean()) / len(x_raw)
    return {"rmse": math.sqrt(squared), "nll": nll}


def test_each_repeat_has_its_own_likelihood_weights_and_scale():
    fits = three()
    expected = by_hand(fits)
    for order in itertools.permutations(fits):
        found = Repeats(list(order), 0.0).evaluate()
        assert found == pytest.approx(expected, rel=1e-5)
    assert Repeats(fits[:1], 0.0).evaluate() == pytest.approx(fits[0].evaluate(), rel=1e-5)


def test_as_many_depths_with_other_weights():
    """Two repeats of one number of depths: q(d) of the first is not that of the second."""
    fits = [one for one in three() if len(one.weights) == 4]
    assert Repeats(fits, 0.0).evaluate() == pytest.approx(by_hand(fits), rel=1e-5)


def test_likelihoods_of_ones_own_are_each_repeats_own():
    class Laplace(models.Likelihood):
        task = "regression"

        def __init__(self, b):
            super().__init__()
            self.outputs, self.b = 2, b

        def forward(self, outputs):
            return dist.Laplace(outputs, self.b).to_event(1)

    q = [0.2, 0.3, 0.5]
    fits = [untrained(rows(k), 2, q, None, k, Laplace(b)) for k, b in enumerate((0.3, 1.2))]
    total = 0.0
    for one in fits:
        outputs = one.outputs(one.data.x_test)
        z = (one.data.y_test - outputs).abs() / one.model.likelihood.b
        density = torch.exp(-z) / (2 * one.model.likelihood.b * one.data.y_std)
        total = total + torch.einsum("s,sn->n", one.weights, density.prod(-1)) / 2
    found = Repeats(fits, 0.0).evaluate()["nll"]
    assert found == pytest.approx(-float(total.log().mean()), rel=1e-5)


def test_probabilities_of_classes_are_averaged_by_each_repeats_weights():
    fits = three("classification")
    first = fits[0].data
    probs = 0.0
    for one in fits:
        each = one.model.stack.outputs(one.data.x_test).softmax(-1)
        probs = probs + torch.einsum("s,snc->nc", one.weights, each) / 3
    nll = -float(probs[torch.arange(12), first.y_test].log().mean().detach())
    for order in itertools.permutations(fits):
        found = Repeats(list(order), 0.0).evaluate()
        assert found["nll"] == pytest.approx(nll, rel=1e-5)


def test_other_rows_are_refused_by_their_targets_too():
    fits = three()
    odd = dataclasses.replace(fits[1].data, y_test=fits[1].data.y_test + 0.1)
    with pytest.raises(PyroccamError):
        Repeats([fits[0], dataclasses.replace(fits[1], data=odd)], 0.0).evaluate()
    with pytest.raises(PyroccamError):
        Repeats(fits[:2], 0.0).evaluate("val")


def test_targets_in_large_units_are_the_same_rows():
    x = torch.randn(30, 2)
    y = 1e6 * torch.randn(30)
    one, other = (Dataset.from_tensors(x, y, x, y, val_fraction=0.3, seed=s) for s in (0, 1))
    assert same_targets(one, other, "test")
    assert not same_targets(one, other, "train")


def test_draws_as_many_as_there_are_weights_are_equally_likely():
    data = rows()
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    model = models.BayesianNetwork(net, data, prior=models.priors.Normal())
    fit = inference.fit(
        model, guides.MeanField(model), data, epochs=1, seed=0, progress=False, device="cpu"
    )
    fit.weights = torch.tensor([0.9, 0.05, 0.05])  # of a person who weighs them
    outputs, shares = fit.components(data.x_test, draws=3)
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3))
    torch.testing.assert_close(fit.predict(data.x_test, draws=3), outputs.mean(0))


def test_inputs_are_brought_to_the_scale_of_each_fit():
    fits = []
    for k in range(2):
        data = rows(k, "classification")
        torch.manual_seed(k)
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
        model = models.BayesianNetwork(net, data, prior=models.priors.Normal())
        guide = guides.Delta(model)
        fits.append(
            inference.fit(model, guide, data, epochs=1, seed=k, progress=False, device="cpu")
        )
    expected = sum(one.predict(one.data.x_test).exp() for one in fits) / 2
    x = fits[0].data.x_test
    ensemble = EnsembleNetwork(fits)
    found = ensemble(x).exp().float()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    step = torch.zeros_like(x)
    step[:, 0] = 1e-3
    ahead, behind = (ensemble(x + s).exp()[:, 0].sum() for s in (step, -step))
    x = x.clone().requires_grad_()
    ensemble(x).exp()[:, 0].sum().backward()  # through the scale of the second
    slope = float((ahead - behind) / 2e-3)
    assert float(x.grad[:, 0].sum()) == pytest.approx(slope, rel=1e-2)
    outputs, shares = components(fits, x.detach())
    mixed = torch.einsum("s,snc->nc", shares, outputs.softmax(-1))
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-4)


def test_probabilities_of_each_repeats_own_likelihood():
    class Tempered(models.Classification):
        def __init__(self, temperature):
            super().__init__(3)
            self.temperature = temperature

        def forward(self, outputs):
            return dist.Categorical(logits=outputs / self.temperature)

    q = [0.2, 0.3, 0.5]
    fits = [
        untrained(rows(k, "classification"), 2, q, None, k, Tempered(t))
        for k, t in enumerate((0.5, 3.0))
    ]
    probs = 0.0
    for one in fits:
        logits = one.outputs(one.data.x_test) / one.model.likelihood.temperature
        probs = probs + torch.einsum("s,snc->nc", one.weights, logits.softmax(-1)) / 2
    nll = -float(probs[torch.arange(12), fits[0].data.y_test].log().mean())
    assert Repeats(fits, 0.0).evaluate()["nll"] == pytest.approx(nll, rel=1e-5)
