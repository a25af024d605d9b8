"""Attacks against a closed form."""

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.inference.posterior import EnsembleNetwork
from torch import nn

from experiments.published.variance.robustness import Pixels, adversarial

DIGITS = data.load("digits", seed=0)


def linear(classes=3, side=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(side * side, classes))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return net


def images(n=12, side=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 1, side, side, generator=generator), torch.arange(n) % 3


def slope(net, x, y):
    """Of the cross-entropy of a linear network: W^T (softmax - one hot)."""
    layer = net[1]
    p = (x.flatten(1) @ layer.weight.T + layer.bias).softmax(-1)
    return ((p - nn.functional.one_hot(y, 3)) @ layer.weight).detach().view_as(x)


def test_fgsm_of_a_linear_network_is_a_step_along_the_sign():
    pytest.importorskip("art")
    net, (x, y) = linear(), images()
    expected = (x + 0.1 * slope(net, x, y).sign()).clamp(0, 1)
    torch.testing.assert_close(adversarial(net, x, y, epsilon=0.1), expected)
    # two classes: the slope keeps its sign, and every step of the iterated attack is the same
    two = linear(classes=2)
    w = two[1].weight.detach()
    away = torch.where(y.clamp_max(1)[:, None] == 0, w[1] - w[0], w[0] - w[1]).view_as(x)
    for steps in (3, 8):  # together they would go 2.5 times as far as they may
        made = adversarial(two, x, y.clamp_max(1), epsilon=0.1, steps=steps)
        torch.testing.assert_close(made, (x + 0.1 * away.sign()).clamp(0, 1))


def test_the_averaged_prediction_is_attacked():
    """Fixed draws: the sign is that of the slope of the averaged prediction, not of one draw."""
    pytest.importorskip("art")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    model = models.BayesianNetwork(net, DIGITS, prior=models.priors.Normal(1.0))
    guide = guides.MeanField(model, scale=0.3)
    fit = inference.fit(model, guide, DIGITS, epochs=1, compile=False, progress=False, device="cpu")
    ensemble = EnsembleNetwork(fit, draws=4, seed=0)
    pixels = Pixels(ensemble, DIGITS)
    x, y = pixels.pixels(DIGITS.x_test[:4]), DIGITS.y_test[:4]
    torch.testing.assert_close(pixels.standardised(x), DIGITS.x_test[:4], atol=1e-5, rtol=1e-5)
    made = adversarial(pixels, x, y, epsilon=0.05)
    inputs = x.clone().requires_grad_()
    draws = [EnsembleNetwork(fit, draws=4, seed=0) for _ in range(2)]
    draws[1]._shares = [0.25, 0.0, 0.0, 0.0]  # the first draw alone
    expected = []
    for one in draws:
        loss = -Pixels(one, DIGITS)(inputs)[torch.arange(4), y].sum()
        (slope,) = torch.autograd.grad(loss, inputs)
        expected.append((x + 0.05 * slope.sign()).clamp(0, 1))
    torch.testing.assert_close(made, expected[0])
    assert float((expected[0] != expected[1]).double().mean()) > 0.02  # no single draw is
    assert float((made != x).double().mean()) > 0.5
