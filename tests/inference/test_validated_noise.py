"""The noise of validation rows, against a search over σ."""

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.inference.posterior import exact_depth_posterior, outputs_by_depth
from pyroccam.inference.training.validated_noise import has_validated_noise
from pyroccam.models.likelihoods import noise_of_rows
from scipy import optimize
from torch import nn

QUICK = {"progress": False, "device": "cpu", "seed": 0}


def mixture(count=3, rows=40, targets=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(count, rows, targets, generator=generator)
    y = outputs[0] + torch.tensor([0.3, 0.8])[:targets] * torch.randn(
        rows, targets, generator=generator
    )
    weights = torch.tensor([0.6, 0.3, 0.1])[:count]
    return outputs, weights / weights.sum(), y


@pytest.mark.parametrize("count", [1, 3])
def test_em_finds_the_best_of_all_noises(count):
    """Of the density of the rows, to which N - 2 in place of N adds 2 log σ for each target."""
    outputs, weights, y = mixture(count)

    def loss(log_sigma):
        sigma = torch.tensor(log_sigma).exp()
        log_p = torch.distributions.Normal(outputs.double(), sigma).log_prob(y.double()).sum(-1)
        total = torch.logsumexp(weights.double().log()[:, None] + log_p, 0).sum()
        return -float(total + 2 * sigma.log().sum())

    best = optimize.minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7})
    likelihood = models.Regression(2, floor=0.0)
    before = likelihood.log_scale.detach().clone()
    found = noise_of_rows(likelihood, outputs, weights, y)["log_scale"]
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(best.x.tolist(), abs=1e-4)
    assert torch.equal(likelihood.log_scale, before)  # of which nothing is changed


def sines(n=60, noise=0.5, seed=0):
    """Few rows, much noise, and inputs that say nothing: a network learns the rows by heart."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n + 2000, 6, generator=generator)
    y = x[:, :1].sin() + noise * torch.randn(n + 2000, 1, generator=generator)
    return Dataset.from_tensors(x[:n], y[:n], x[n:], y[n:], val_fraction=0.3, seed=seed)


def test_noise_and_depth_agree():
    """q(d) is the exact posterior under the noise that the fit ends with."""
    data = sines()
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(data, width=30, max_depth=2)
    how = {"epochs": 40, "weight_decay": 0.0, "evaluations": 2, "lr": 0.02, **QUICK}
    fit = inference.fit(model, guides.CategoricalDepth(model), data, **how)
    assert fit.structure.tv_to_exact < 1e-5
    exact = exact_depth_posterior(fit.model, fit.data)
    torch.testing.assert_close(fit.weights.double(), exact, atol=1e-5, rtol=1e-4)
    outputs = outputs_by_depth(fit.model, fit.data.x_val)
    likelihood = fit.model.likelihood
    again = noise_of_rows(likelihood, outputs, fit.weights, fit.data.y_val)["log_scale"]
    torch.testing.assert_close(likelihood.log_scale.detach().double(), again, rtol=0.0, atol=1e-2)


def test_where_the_noise_is_that_of_the_validation_rows():
    data = sines()
    model = models.LearntDepth.mlp(data, width=4, max_depth=2)
    guide = guides.CategoricalDepth(model)
    assert has_validated_noise(model, guide, data)
    fixed = model.at_depth(1)
    assert has_validated_noise(fixed, guides.Deterministic(fixed), data)
    assert not has_validated_noise(model, guide, sines(n=20))  # six validation rows
    assert not has_validated_noise(model, guide, data.all_rows())
    net = models.BayesianNetwork(nn.Linear(6, 1), data, prior=models.priors.Normal())
    assert not has_validated_noise(net, guides.MeanField(net), data)
    assert has_validated_noise(net, guides.Delta(net), data)  # points learn rows by heart, too
    model.likelihood.log_scale.requires_grad_(False)  # known noise stays known
    assert not has_validated_noise(model, guide, data)
