"""Linear regression with known noise, whose posterior is known in closed form."""

import math
from types import SimpleNamespace

import torch
from pyroccam import data, guides, models
from pyroccam.inference.posterior import posterior_of
from torch import nn

NOISE = 0.5


def rows(n=20, features=1, shift=0.0, seed=0, orthogonal=False):
    """All rows are for training; inputs and targets as they are."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator)
    if orthogonal:
        x = torch.linalg.qr(x).Q * math.sqrt(n)
    x = x + shift
    y = x.sum(1, keepdim=True) + NOISE * torch.randn(n, 1, generator=generator)
    return data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)


def model_of(table, bias=False, prior=None):
    """A linear layer with N(0, 1) weights, and noise of standard deviation NOISE."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(table.input_shape[0], 1, bias=bias))
    likelihood = models.Regression(1, scale=NOISE, floor=0.0)
    prior = models.priors.Normal() if prior is None else prior
    return models.BayesianNetwork(net, table, prior=prior, likelihood=likelihood)


def posterior(table, bias=False):
    """Mean and precision matrix of the weights, and of the bias after them, float64."""
    x, y = (part.double() for part in table.split("train"))
    if bias:
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    precision = x.T @ x / NOISE**2 + torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(precision, x.T @ y / NOISE**2)[:, 0], precision


def mean_field(model, table, bias=False, factor=1.0, shift=0.0):
    """The guide at its optimum: the mean, and the deviations given all others; or off by a factor
    in the deviations and a shift of the means in deviations."""
    guide = guides.MeanField(model)
    mean, precision = posterior(table, bias)
    deviation = factor * precision.diagonal().rsqrt()
    mean = mean + shift * deviation / factor
    parts = mean.float(), deviation.log().float()
    with torch.no_grad():
        for site in guide.sites:
            own = guide.factors[site.replace(".", "/")]
            for p, value in zip((own.loc, own.log_scale), parts, strict=True):
                chosen = value[-1:] if site.endswith("bias") else value[: len(value) - bias]
                p.copy_(chosen.reshape(p.shape))
    return guide


def as_fit(model, guide, table):
    """What the diagnostics look at."""
    posterior = posterior_of(model, guide, table)
    return SimpleNamespace(model=model, guide=guide, data=table, posterior=posterior)
