"""Relaxed structure of three alternatives, and how far a mean of draws is off."""

import math

import torch
from pyroccam.models.distributions.relaxed import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LogitRelaxedBernoulli,
    RelaxedGate,
)

F64 = torch.float64
WEIGHTS = torch.tensor([3.0, 1.0, 0.5], dtype=F64)
OTHER = torch.tensor([0.2, 1.0, 4.0], dtype=F64)


def t(value):
    return torch.tensor(value, dtype=F64)


def laws(dtype=F64, **options):
    """One of each, of batch shape (2,)."""
    weights = torch.stack([WEIGHTS, OTHER]).to(dtype)
    return {
        "categorical": ExpRelaxedCategorical(0.5, probs=weights, **options),
        "bernoulli": LogitRelaxedBernoulli(0.5, logits=weights[:, 0].log(), **options),
        "gate": RelaxedGate(0.5, logits=weights[:, 0].log(), **options),
        "dirichlet": ExpDirichlet(weights, **options),
    }


def z_scores(draws, mean):
    """Of the means over the first dimension."""
    return ((draws.mean(0) - mean) / (draws.std(0) / math.sqrt(len(draws)))).abs()
