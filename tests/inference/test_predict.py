import pyro.distributions as dist
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import DataError, Dataset, PyroccamError, TooLarge, allowing
from pyroccam.inference.posterior import (
    evaluate_net,
    evaluate_outputs,
    evaluate_pruned,
    exact_depth_posterior,
    nll_by_depth,
    outputs_by_depth,
    posterior_of,
)
from pyroccam.models.plain import PrunedNetwork
from torch import nn


def table(task="classification"):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long() if task == "classification" else 3 * x + 1
    return Dataset.from_tensors(x[:40], y[:40], x[40:], y[40:])


def model_of(data):
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(data, width=5, max_depth=3)
    for _ in range(3):
        model.stack.outputs(torch.randn(9, 2) * 2)
    return model


def test_shares_of_every_kind_of_pair():
    data = table()
    model = model_of(data)
    guide, marginal = guides.CategoricalDepth(model), guides.Marginal(model)
    with torch.no_grad():
        guide.logits.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]).log())
    assert posterior_of(model, guide).shares.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    fixed = model.at_depth(1)
    assert posterior_of(fixed, guides.Deterministic(fixed)).shares.tolist() == [1.0]
    expected = exact_depth_posterior(model, data)
    torch.testing.assert_close(posterior_of(model, marginal, data).shares, expected.float())
    with pytest.raises(PyroccamError):
        _ = posterior_of(model, marginal).shares


class OwnNoise(models.Likelihood):
    """A deviation for each row: four outputs for two targets."""

    task, outputs = "regression", 4

    def forward(self, outputs):
        return dist.Normal(outputs[..., :2], outputs[..., 2:].exp()).to_event(1)


class Robust(models.Regression):
    """A kind of the known likelihood, with another density."""

    def forward(self, outputs):
        return dist.StudentT(3.0, outputs, self.scale).to_event(1)


class Cold(models.Classification):
    def forward(self, outputs):
        return dist.Categorical(logits=0.5 * outputs)


@pytest.mark.parametrize(
    ("task", "own"),
    [("classification", None), ("regression", None), ("regression", Robust(2))],
)
def test_metrics_of_the_mixture_and_of_the_pruned_network_agree(task, own):
    """Densities are of targets in original units, which adds log of the scales."""
    data = table(task)
    model = model_of(data).eval()
    model.likelihood = own or model.likelihood
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    outputs = outputs_by_depth(model, data.x_test)
    rows = data.y_test, data.y_std
    scores = evaluate_outputs(outputs, weights, model.likelihood, *rows)
    log_p = model.likelihood.log_predictive(outputs, weights.log(), data.y_test).detach()
    units = float(data.y_std.log().sum()) if task == "regression" else 0.0
    assert scores["nll"] == pytest.approx(units - float(log_p.mean()), abs=1e-5)
    net = PrunedNetwork(model.stack, 3, weights, model.likelihood)
    assert evaluate_pruned(net, data.x_test, *rows) == pytest.approx(scores, abs=1e-5)
    each = units - model.log_likelihood(data.x_test, data.y_test).detach().mean(1)
    assert nll_by_depth(outputs, model.likelihood, *rows) == pytest.approx(each.tolist(), abs=1e-5)


@pytest.mark.parametrize("own", [OwnNoise(), Cold(3)])
def test_a_likelihood_of_ones_own_is_scored_by_its_task(own):
    rows = table(own.task)
    net = nn.Sequential(nn.Linear(*rows.input_shape, 6), nn.Tanh(), nn.Linear(6, own.outputs))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(), likelihood=own)
    guide = guides.MeanField(model)
    fit = inference.fit(model, guide, rows, epochs=2, progress=False, device="cpu")
    found, predicted = fit.evaluate(draws=7), fit.predict(rows.x_test, draws=7)
    outputs = fit.outputs(rows.x_test, draws=7)
    with torch.no_grad():
        density = torch.stack([own(part).log_prob(rows.y_test).exp() for part in outputs]).mean(0)
    nll = -float(density.double().log().mean())
    if own.task == "regression":
        mean = outputs[..., :2].mean(0)
        torch.testing.assert_close(predicted, mean)
        wrong = (mean - rows.y_test) * rows.y_std
        assert found["rmse"] == pytest.approx(float(wrong.square().mean().sqrt()), rel=1e-5)
        nll += float(rows.y_std.log().sum())
    else:
        probs = (0.5 * outputs).softmax(-1).mean(0)
        torch.testing.assert_close(predicted.exp(), probs)
        right = (probs.argmax(-1) == rows.y_test).double().mean()
        assert found["accuracy"] == pytest.approx(float(right))
    assert found["nll"] == pytest.approx(nll, rel=1e-5)
    small = inference.shrink(fit, cut=inference.Thresholds(100.0))
    assert evaluate_net(small.net, model, rows).keys() == found.keys()


def test_outputs_that_would_be_broadcast_are_refused():
    rows = table("regression")
    squeezed = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    model = models.BayesianNetwork(squeezed, rows, prior=models.priors.Normal())
    with pytest.raises(PyroccamError):
        inference.fit(model, guides.MeanField(model), rows, progress=False, device="cpu", epochs=1)


def fitted(data):
    """A pair as it begins, in a fit that was not made by training."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    net(data.x_test)
    model = models.BayesianNetwork(net, data, prior=models.priors.Normal())
    guide = guides.MeanField(model)
    weights, settings = posterior_of(model, guide).shares, inference.Settings(epochs=1)
    return inference.Fit(model, guide, data, settings, [], 1, 0.0, 0.0, None, weights)


def test_rows_of_every_number_type_are_predicted_alike():
    fit = fitted(table())
    x = fit.data.x_test.round()
    expected = fit.predict(x)
    for given in (*map(x.to, (torch.float64, torch.bfloat16, torch.int8)), x.long().tolist()):
        assert torch.equal(fit.predict(given), expected)
    assert torch.equal(fit.predict(x > 0), fit.predict((x > 0).float()))


def test_what_are_no_rows_is_refused_at_the_door():
    """One row is not taken for a batch."""
    y, x = torch.arange(20) % 3, torch.randn(20, 1, 3, 2)
    fit = fitted(Dataset.from_tensors(x, y, x, y))
    assert fit.predict(x[0][None]).shape == (1, 3)
    assert fit.predict(x[:0]).shape == (0, 3)
    broken = x.double()
    broken[3:5] = 1e300
    for odd in (x[0], x + 1j, x.to_sparse(), x.numpy().astype(str), x[None], None, broken):
        for call in (fit.predict, fit.outputs, fit.components):
            with pytest.raises(DataError):
                call(odd)


def test_draws_are_a_count_that_ends():
    fit = fitted(table())
    x = fit.data.x_test
    with pytest.raises(PyroccamError):
        fit.predict(x, draws=1_000_001)
    with allowing(100 * 20 * 3 * 4):
        assert fit.outputs(x, draws=100).shape == (100, 20, 3)
        with pytest.raises(TooLarge):
            fit.outputs(x, draws=101)
