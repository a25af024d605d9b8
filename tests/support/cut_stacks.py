"""Pruned networks of ready stacks and of one of one's own, none of whose numbers is fresh."""

import torch
from pyroccam import models
from pyroccam.models.plain import PrunedNetwork
from torch import nn


class Data:
    def __init__(self, task, outputs, input_shape):
        self.N, self.task, self.outputs, self.input_shape = 6, task, outputs, input_shape


def trained(name, task="classification"):
    """A model whose every number differs from that of a fresh one, and inputs."""
    torch.manual_seed(4)
    shape = (5,) if name in ("mlp", "own") else (1, 10, 10)
    data = Data(task, 3, shape)
    if name == "own":
        model = models.LearntDepth(own_stack(), data=data)
    else:
        small = {"resnet": {}, "mlp": {"width": 6}, "conv": {"width": 4, "inner": 3}}[name]
        model = models.LearntDepth.of(name, data, max_depth=3, **small)
    x = torch.randn(6, *shape)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for _ in range(3):
            model.stack.outputs(torch.randn(6, *shape) * 2 + 1)
    return model.eval(), x


def own_stack():
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    return models.DepthStack(nn.Linear(5, 4), blocks, nn.Linear(4, 3))


WEIGHTS = torch.tensor([0.2, 0.5, 0.3])


def cut(model, form):
    return PrunedNetwork(model.stack, 2, WEIGHTS if form == "marginal" else None, model.likelihood)
