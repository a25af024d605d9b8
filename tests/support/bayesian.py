"""Fits of small Bayesian networks."""

import torch
from pyroccam import guides
from pyroccam.models import BayesianNetwork, priors
from random_weights import small_net
from torch import nn

QUICK = {"epochs": 6, "batch_size": 18, "lr": 0.02, "seed": 3, "progress": False, "device": "cpu"}


def bayesian(rows, prior=None, guide=guides.MeanField, net=None, seed=0, **options):
    """A pair with the same initial weights for the same seed."""
    outputs = rows.outputs
    prior = priors.GroupNormalJeffreys() if prior is None else prior
    model = BayesianNetwork(net or small_net(outputs, seed=seed), rows, prior=prior)
    return model, guide(model, **options)


def noisy_net():
    """Batch normalisation and dropout, for which the state of the generator matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2)
        )
