"""Models whose evidence is known otherwise: in closed form, or by an integral over a grid."""

import functools
import math

import torch
from conjugate import mean_field, model_of, rows
from pyroccam import data, guides, inference, models
from torch import nn


def fitted(model, guide, table, steps=1, **settings):
    """A fit that has hardly begun, unless more steps are asked for."""
    model.likelihood.requires_grad_(False)
    return inference.fit(model, guide, table, steps=steps, progress=False, device="cpu", **settings)


@functools.cache
def linear(n=30, features=3):
    """A fit of a linear regression by the best independent normals, and its log evidence."""
    table = rows(n, features)
    model = model_of(table, bias=True)
    fit = fitted(model, guides.MeanField(model), table)
    fit.guide = mean_field(model, table, bias=True)
    return fit, linear_evidence(fit)


def linear_evidence(fit):
    """``log N(y; 0, X Xᵀ + σ² I)`` of a linear layer with a bias and standard normal weights."""
    x, y = (part.double() for part in fit.data.split("train"))
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    noise = float(fit.model.double().likelihood.scale)
    fit.model.float()
    cover = x @ x.T + noise**2 * torch.eye(len(x), dtype=x.dtype)
    zero = torch.zeros(len(x), dtype=x.dtype)
    return float(torch.distributions.MultivariateNormal(zero, cover).log_prob(y[:, 0]))


@functools.cache
def logistic(n=25, seed=0):
    """A fit of two classes by one input, a weight and a bias for the difference of the logits; and
    its log evidence, by an integral over a grid."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, generator=generator)
    y = (torch.rand(n, generator=generator) < torch.sigmoid(1.5 * x[:, 0] - 0.5)).long()
    table = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)
    net = nn.Sequential(
        nn.Linear(1, 1),
        _Against(),
    )
    model = models.BayesianNetwork(net, table, prior=models.priors.Normal(2.0))
    fit = fitted(model, guides.MeanField(model), table, steps=600, lr=0.05)
    grid = torch.linspace(-14.0, 14.0, 1401, dtype=torch.float64)
    w, b = torch.meshgrid(grid, grid, indexing="ij")
    log_p = -(w**2 + b**2) / 8.0 - math.log(2 * math.pi * 4.0)
    for one, label in zip(x[:, 0].double().tolist(), y.tolist(), strict=True):
        log_p = log_p + nn.functional.logsigmoid((2 * label - 1) * (w * one + b))
    cell = 2.0 * math.log(float(grid[1] - grid[0]))
    return fit, float(log_p.flatten().logsumexp(0)) + cell


class _Against(nn.Module):
    """A number as the logit of the second class, against zero."""

    def forward(self, x):
        return torch.cat([torch.zeros_like(x), x], 1)


@functools.cache
def hidden(units=2, n=20, seed=0):
    """A fit of a small network with tanh units, of known noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.linspace(-2.0, 2.0, n)[:, None]
    y = torch.sin(2 * x) + 0.3 * torch.randn(n, 1, generator=generator)
    table = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(1, units), nn.Tanh(), nn.Linear(units, 1))
    likelihood = models.Regression(1, scale=0.4, floor=0.0)
    model = models.BayesianNetwork(net, table, prior=models.priors.Normal(), likelihood=likelihood)
    return fitted(model, guides.MeanField(model), table, steps=500, lr=0.02)
