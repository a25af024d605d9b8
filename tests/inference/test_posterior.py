"""Moments and networks of a posterior over weights; the rows of another set."""

import dataclasses

import pytest
import torch
from plain import network
from pyroccam import guides
from pyroccam.data import Dataset
from pyroccam.inference.posterior import layer_moments, mean_network, same_inputs, same_targets
from pyroccam.inference.posterior.draws import draw_outputs
from pyroccam.inference.posterior.same_rows import on_scale_of
from pyroccam.models import priors
from pyroccam.models.layers import BayesianLayer
from random_weights import FourScales, assert_same_means, pair, small_net
from torch import nn
from torch.func import functional_call

pytestmark = pytest.mark.usefixtures("clean")


def mixed():
    """A convolution, one without a bias, a linear layer."""
    body = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.ConvTranspose1d(2, 2, 2, bias=False))
    return network(lambda net, x: net.head(net.body(x).flatten(1)), body=body, head=nn.Linear(6, 2))


@torch.no_grad()
@pytest.mark.parametrize(
    ("prior", "kind", "draws"),
    [
        (FourScales(), guides.MeanField, 1000),
        (FourScales(), guides.Delta, 2),
    ],
)
def test_moments_of_the_weights(prior, kind, draws):
    """Also of biases, which the scales of a convolution cover and those of a linear layer do
    not."""
    model, guide = pair(mixed(), (1, 3), prior, guide=kind)
    for name, found in layer_moments(model, guide).items():
        latents = model.layers[name].latents()
        values = {n: guide.posterior(f"{name}.{n}").sample((draws,)) for n in latents}
        own = ({n: v[k] for n, v in values.items()} for k in range(draws))
        weights, biases = zip(*(model.layers[name].effective(o, latents) for o in own), strict=True)
        pairs = [(torch.stack(weights), found.mean, found.variance)]
        if biases[0] is None:
            assert found.bias is found.bias_variance is None
        else:
            pairs.append((torch.stack(biases), found.bias, found.bias_variance))
        for sample, mean, variance in pairs:
            if kind is guides.Delta:
                torch.testing.assert_close(mean, sample[0])
                assert float(variance.max()) < 1e-6
                continue
            together = torch.stack([sample - mean, (sample - mean) ** 2], 1)
            expected = torch.stack([torch.zeros_like(mean), variance])
            assert_same_means(together, expected[None].expand(2, *expected.shape))
            assert variance.max() > 1e-3


def test_the_mean_network():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    net[1].running_mean.normal_()
    model, guide = pair(net, (3,), priors.GroupNormalJeffreys())
    plain, weights = mean_network(model, guide), {}
    for name, m in layer_moments(model, guide).items():
        z = guide.posterior(f"{name}.scale").base_dist.loc
        torch.testing.assert_close(m.mean, guide.posterior(f"{name}.weight").base_dist.loc * z)
        weights |= {f"{name}.weight": m.mean, f"{name}.bias": m.bias}
    x = torch.randn(5, 3)
    torch.testing.assert_close(plain(x), functional_call(net.eval(), weights, (x,)))
    assert not any(isinstance(m, BayesianLayer) for m in plain.modules())


def test_drawn_networks(monkeypatch):
    """Each draw is one network for all inputs, in whatever batches; seeded."""
    model, guide = pair(small_net(), (3,), FourScales())
    model.train()
    x = torch.randn(3, 3)[[0, 1, 2, 0, 1, 2, 0]]
    state = torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr("pyroccam.inference.posterior.draws.rows_in_a_pass", lambda _: 2)
        out = draw_outputs(model, guide, x, 4, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert out.shape == (4, 7, 2)
    assert not out.requires_grad
    torch.testing.assert_close(out[:, :3], out[:, 3:6])
    assert len(out[:, 0, 0].unique()) == 4
    torch.testing.assert_close(out, draw_outputs(model, guide, x, 4, seed=1))
    point = guides.Delta(model)  # one draw many times
    expected = mean_network(model, point)(x).detach()
    torch.testing.assert_close(draw_outputs(model, point, x, 3), expected.expand(3, -1, -1))


def two(shape=(3,), task="regression"):
    """The same rows but for those kept for validation, and so on two scales."""
    generator = torch.Generator().manual_seed(0)
    x = 7.0 + 3.0 * torch.randn(50, *shape, generator=generator)
    y = -40.0 + 9.0 * x.flatten(1)[:, :2]
    y = (y[:, 0] > 20).long() if task == "classification" else y
    rows = x[:40], y[:40], x[40:], y[40:]
    return [Dataset.from_tensors(*rows, val_fraction=0.4, seed=s) for s in (0, 1)], x[40:], y[40:]


def test_the_scale_of_another_set():
    (one, other), x, y = two((2, 4, 4))
    expected = (x - other.x_mean.view(-1, 1, 1)) / other.x_std.view(-1, 1, 1)
    targets = (y - other.y_mean) / other.y_std
    moved = one.standardised_as(other).y_test
    torch.testing.assert_close(moved, targets, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(on_scale_of(one.x_test, one, other), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_which_rows_are_the_same(task):
    (one, other), *_ = two(task=task)
    assert same_inputs(one, other, "test")
    assert same_targets(one, other, "test")
    assert not same_inputs(one, other, "val")
    assert not same_inputs(one, two((4,), task)[0][0], "test")
    turned = dataclasses.replace(other, x_test=other.x_test.flip(0), y_test=other.y_test.flip(0))
    assert not same_inputs(one, turned, "test")
    assert torch.equal(turned.y_test, other.y_test) or not same_targets(one, turned, "test")
