"""Bayesian linear regression with known noise, where everything is known in closed form."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from pyroccam import data, guides, inference, models
from torch import Tensor, nn

NOISE = 0.5
Floats = NDArray[np.float64]


def rows_of(x: Tensor, y: Tensor) -> data.Dataset:
    """A data set that is not rescaled, without validation rows."""
    return data.Dataset.from_tensors(
        x, y, x[:4], y[:4], task="regression", val_fraction=0.0, standardise=False
    )


def regression(x: Tensor, y: Tensor, prior_scale: float = 1.0, width: float = 1.0) -> inference.Fit:
    """``y = x w + ε`` with independent normal posteriors at the optimum of the bound: the means of
    the exact posterior, and the reciprocals of its precisions' diagonal.

    Arguments:
        width: by which standard deviations differ from the optimum.
    """
    d = rows_of(x, y)
    likelihood = models.likelihoods.Regression(1, scale=NOISE, floor=0.0)
    likelihood.requires_grad_(False)
    net = nn.Linear(x.shape[1], 1, bias=False)
    prior = models.priors.Normal(prior_scale)
    model = models.BayesianNetwork(net, d, prior=prior, likelihood=likelihood)
    guide = guides.MeanField(model)
    fit = inference.fit(model, guide, d, steps=1, progress=False)
    mean, precision = posterior(x.double().numpy(), y.double().numpy()[:, 0], prior_scale)
    ((site, _),) = model.sites.items()
    factor = guide.factors[guides.mean_field.key(site)]
    with torch.no_grad():
        factor.loc.copy_(torch.tensor(mean)[None])
        factor.log_scale.copy_(math.log(width) - 0.5 * torch.tensor(np.diag(precision)).log()[None])
    return fit


def posterior(x: Floats, y: Floats, prior_scale: float = 1.0) -> tuple[Floats, Floats]:
    """Mean and precision matrix of w."""
    precision = x.T @ x / NOISE**2 + np.eye(x.shape[1]) / prior_scale**2
    return np.linalg.solve(precision, x.T @ y / NOISE**2), precision


def exact_loo(x: Floats, y: Floats, prior_scale: float = 1.0) -> Floats:
    """``log p(y_i | y_-i)``, ``(N,)``, by refitting without each row."""
    found = []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        mean, precision = posterior(x[rest], y[rest], prior_scale)
        variance = NOISE**2 + x[i] @ np.linalg.solve(precision, x[i])
        gap = y[i] - x[i] @ mean
        found.append(-0.5 * (math.log(2 * math.pi * variance) + gap**2 / variance))
    return np.array(found)
