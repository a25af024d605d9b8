"""Fits of a conjugate regression, and its LOO by refitting."""

import math

import numpy as np
from conjugate import NOISE, mean_field, model_of
from pyroccam import data, guides, inference


def regression(x, y, width=1.0):
    """A fit with independent normals at the optimum of the bound; ``width`` times as wide."""
    table = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)
    model = model_of(table)
    model.likelihood.requires_grad_(False)
    fit = inference.fit(model, guides.MeanField(model), table, steps=1, progress=False)
    fit.guide = mean_field(model, table, factor=width)
    return fit


def exact_loo(x, y):
    """``log p(y_i | y_-i)`` for inputs ``(N, d)`` and targets ``(N,)``, numpy, float64."""
    found = []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        precision = x[rest].T @ x[rest] / NOISE**2 + np.eye(x.shape[1])
        mean = np.linalg.solve(precision, x[rest].T @ y[rest] / NOISE**2)
        variance = NOISE**2 + x[i] @ np.linalg.solve(precision, x[i])
        found.append(
            -0.5 * (math.log(2 * math.pi * variance) + (y[i] - x[i] @ mean) ** 2 / variance)
        )
    return np.array(found)
