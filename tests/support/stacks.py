"""Small residual stacks with everything that a stack may have."""

import torch
from pyroccam import models
from torch import nn


class Residual(nn.Module):
    """``a + f(a)`` with batch normalisation, as the ready networks have it."""

    def __init__(self, width):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.BatchNorm1d(width))

    def forward(self, a):
        return a + self.f(a)


def odd_stack(inputs, outputs, depth=3, width=12):
    """An adapter that two depths share, and a head with statistics of its own at every depth."""
    torch.manual_seed(0)
    adapter = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))
    adapters = [adapter, adapter, *[None] * (depth - 1)]
    head = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, outputs))
    stem = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width))
    return models.DepthStack(stem, [Residual(width) for _ in range(depth)], head, adapters)
