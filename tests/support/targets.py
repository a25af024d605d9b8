"""Targets of every kind, made by the likelihood that is to be learnt."""

import torch
from pyroccam.data import Dataset

WORDS = (
    "normal",
    "heteroscedastic",
    "student-t",
    "closed-form",
    "embedding",
    "poisson",
    "negative-binomial",
    "multi-label",
    "ordinal",
    "categorical",
)
CUTS = torch.tensor([-1.5, 0.0, 2.0])


def made(word, n=300, test=200, seed=0, **more):
    """A data set with two inputs: the first moves the mean, the second the spread."""
    generator = torch.Generator().manual_seed(seed)
    total = n + test
    x = torch.rand(total, 2, generator=generator) * 2 - 1
    mean = 1.5 * x[:, :1] + 0.5 * x[:, :1].square()
    torch.manual_seed(seed)
    task = "regression"
    if word in ("normal", "closed-form"):
        y = mean + 0.3 * torch.randn(total, 1)
    elif word == "heteroscedastic":
        y = mean + spread(x) * torch.randn(total, 1)
    elif word == "student-t":
        y = mean + 0.2 * torch.distributions.StudentT(3.0).sample((total, 1))
    elif word == "embedding":
        y = torch.cat([mean, x], 1) + 0.2 * torch.randn(total, 3)
        y, more = torch.nn.functional.normalize(y, dim=-1), {"standardise": False, **more}
    elif word in ("poisson", "negative-binomial"):
        rate, task = 20.0 * mean.exp(), "counts"
        if word == "negative-binomial":  # a gamma mixture: dispersion 0.4
            rate = rate * torch.distributions.Gamma(2.5, 2.5).sample((total, 1))
        y = torch.poisson(rate)
    elif word == "multi-label":
        logits = torch.cat([2 * x[:, :1], -3 * x[:, 1:], x.sum(1, keepdim=True)], 1)
        y, task = torch.bernoulli(logits.sigmoid()), "multi-label"
    else:
        task = "classification"
        noise = torch.distributions.Uniform(0.0, 1.0).sample((total, 1)).logit()
        y = (3 * mean + noise > CUTS).sum(1)
    parts = x[:n], y[:n], x[n:], y[n:]
    return Dataset.from_tensors(*parts, task=task, seed=seed, **{"val_fraction": 0.2, **more})


def spread(x):
    """The deviation of heteroscedastic targets, ``(N, 1)``: from 0.05 to 1."""
    return 0.05 * 20 ** ((x[:, 1:] + 1) / 2)
