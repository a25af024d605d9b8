"""Layers that read fewer units, fitted to what those of the whole network give."""

import copy

import numpy as np
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.inference.shrinking.reconstruction import reconstructed
from pyroccam.models import priors
from torch import nn


class Residual(nn.Module):
    """Two branches beside a stream, the second of which adds in place."""

    def __init__(self, width, bias):
        super().__init__()
        self.into = nn.ModuleList(nn.Linear(4, width) for _ in range(2))
        self.back = nn.ModuleList(nn.Linear(width, 4, bias=bias) for _ in range(2))
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        x = x + self.drop(self.back[0](self.into[0](x).tanh()))
        x += self.back[1](self.into[1](x).tanh())
        return x


def fit_of(net, n=200):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))
    y = x @ torch.ones(4, 4)
    data = Dataset.from_tensors(x, y, x, y, val_fraction=0)
    model = models.BayesianNetwork(net, data, prior=priors.Normal())
    return inference.as_fit(model, guides.Delta(model), data)


def unread(net, *units):
    """A copy without some units in what the branches add."""
    own = copy.deepcopy(net)
    with torch.no_grad():
        for layer in own.back:
            layer.weight[:, list(units)] = 0.0
    return own


def test_units_that_others_can_stand_for_are_not_missed():
    torch.manual_seed(0)
    net = Residual(6, bias=True).eval()
    with torch.no_grad():
        for layer in net.into:  # tanh is odd
            layer.weight[5], layer.bias[5] = -layer.weight[2], -layer.bias[2]
    fit = fit_of(net)
    zeros = unread(net, 5)
    x = fit.data.x_test
    assert (zeros(x) - net(x)).abs().max() > 0.1
    found = reconstructed(zeros, net, fit)
    torch.testing.assert_close(found(x), net(x), atol=5e-3, rtol=0)
    assert not any(layer.weight[:, 5].any() for layer in found.back)


@pytest.mark.parametrize("bias", [True, False])
def test_a_branch_is_the_least_squares_of_what_makes_its_sum_right(bias):
    torch.manual_seed(0)
    net = Residual(6, bias).eval()
    fit = fit_of(net)
    found = reconstructed(unread(net, 0, 3), net, fit)
    x = fit.data.x_train.double().numpy()

    def affine(layer, x):
        own = 0.0 if layer.bias is None else layer.bias.detach().double().numpy()
        return x @ layer.weight.detach().double().numpy().T + own

    whole, ours = x, x
    for into, back, made in zip(net.into, net.back, found.back, strict=True):
        whole = whole + affine(back, np.tanh(affine(into, whole)))
        read = np.tanh(affine(into, ours))[:, [1, 2, 4, 5]]
        read = np.concatenate([read, np.ones((len(read), int(bias)))], 1)
        best, *_ = np.linalg.lstsq(read, whole - ours, rcond=None)
        np.testing.assert_allclose(made.weight[:, [1, 2, 4, 5]].detach().T, best[:4], atol=5e-3)
        ours = ours + affine(made, np.tanh(affine(into, ours)))


def test_what_is_whole_stays_as_it_is():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)).eval()
    found = reconstructed(net, net, fit_of(net))
    for name, value in net.state_dict().items():
        assert found.state_dict()[name].equal(value)
