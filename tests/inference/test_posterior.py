"""Moments and networks of a posterior over weights."""

import pyro.distributions as dist
import pytest
import torch
from bayesian import bayesian
from plain import network
from pyroccam import guides, inference
from pyroccam.data.errors import PyroccamError
from pyroccam.guides.factors import GateFactor, NormalFactor
from pyroccam.guides.points import DeltaFactor
from pyroccam.guides.zero_mean import ZeroMeanFactor
from pyroccam.inference.posterior import posterior_of
from pyroccam.inference.posterior.draws import draw_outputs, draw_weights, outputs_of
from pyroccam.inference.posterior.layers import layer_moments, mean_network
from pyroccam.models import priors
from pyroccam.models.layers.bayesian_layer import BayesianLayer
from random_weights import FourScales, assert_same_means, pair, small_net, table
from torch import nn
from torch.func import functional_call

pytestmark = pytest.mark.usefixtures("clean")


# -- moments ----------------------------------------------------------------------------------


LOC, SCALE = torch.tensor([0.5, -2.0]), 0.6


@pytest.mark.parametrize(
    ("factor", "power"),
    [
        (NormalFactor(LOC, SCALE), 1.0),
        (NormalFactor(LOC, SCALE, positive=True), 1.0),
        (NormalFactor(LOC, SCALE, positive=True), 0.5),
        (DeltaFactor(torch.tensor([0.25, 4.0]).log(), dist.constraints.positive), 0.5),
        (ZeroMeanFactor(LOC, "uniform"), 1.0),
        (ZeroMeanFactor(LOC, "rademacher"), 1.0),
    ],
)
def test_moments_of_a_power(factor, power):
    sample = factor().sample((200_000,)).detach() ** power
    first, second = (m.detach() for m in factor.moments(power))
    together = torch.stack([sample, sample**2], 1).double()
    assert_same_means(together, torch.stack([first, second])[None].double().expand(2, -1, -1))


def test_a_relaxed_gate_counts_as_the_gate():
    probs = torch.tensor([0.2, 0.9])
    for value in GateFactor(probs.logit(), 0.5).moments(1.0):
        torch.testing.assert_close(value, probs)


def test_moments_that_are_not_known():
    with pytest.raises(PyroccamError):
        NormalFactor(LOC, SCALE).moments(0.5)


def mixed():
    """A convolution, one without a bias, a linear layer."""
    body = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.ConvTranspose1d(2, 2, 2, bias=False))
    return network(lambda net, x: net.head(net.body(x).flatten(1)), body=body, head=nn.Linear(6, 2))


def drawn(model, guide, draws):
    """Samples of the weights and biases of every layer, ``(draws, *)``."""
    found = {}
    for name, layer in model.layers.items():
        latents = layer.latents()
        values = {n: guide.posterior(f"{name}.{n}").sample((draws,)) for n in latents}
        each = [{n: v[k] for n, v in values.items()} for k in range(draws)]
        rows = [layer.effective(own, latents) for own in each]
        weights, biases = zip(*rows, strict=True)
        found[name] = torch.stack(weights), None if biases[0] is None else torch.stack(biases)
    return found


@torch.no_grad()
@pytest.mark.parametrize(
    ("prior", "kind"),
    [(FourScales(), guides.MeanField), (priors.GroupNormalJeffreys(), guides.VariationalDropout)],
)
def test_moments_of_the_weights(prior, kind):
    """Also of biases, which the scales of a convolution cover and those of a linear layer do
    not."""
    model, guide = pair(mixed(), (1, 3), prior, guide=kind)
    samples = drawn(model, guide, 1000)
    for name, found in layer_moments(model, guide).items():
        weight, bias = samples[name]
        pairs = [(weight, found.mean, found.variance)]
        if bias is None:
            assert found.bias is None
            assert found.bias_variance is None
        else:
            pairs.append((bias, found.bias, found.bias_variance))
        for sample, mean, variance in pairs:
            together = torch.stack([sample - mean, (sample - mean) ** 2], 1)
            expected = torch.stack([torch.zeros_like(mean), variance])
            assert_same_means(together, expected[None].expand(2, *expected.shape))
            assert variance.max() > 1e-3


@torch.no_grad()
def test_moments_of_points():
    model, guide = pair(mixed(), (1, 3), FourScales(), guide=guides.Delta)
    for name, found in layer_moments(model, guide).items():
        ((weight,), bias) = drawn(model, guide, 1)[name]
        torch.testing.assert_close(found.mean, weight)
        assert float(found.variance.max()) < 1e-6
        if bias is not None:
            torch.testing.assert_close(found.bias, bias[0])


def test_moments_are_those_of_the_present_parameters():
    model, guide = pair(small_net(), (3,), priors.Normal())
    posterior = posterior_of(model, guide)
    first = posterior.layers
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(0.5)
    for name, found in layer_moments(model, guide).items():
        assert torch.equal(posterior.layers[name].mean, found.mean)
        assert not torch.equal(first[name].variance, found.variance)


def test_densities_of_draws():
    model, guide = pair(small_net(), (3,), priors.Normal())
    posterior = posterior_of(model, guide)
    values = posterior.draw(5)
    for site, found in posterior.log_prob(values).items():
        q = guide.posterior(site)
        each = [q.log_prob(v).sum().double() for v in values[site]]
        torch.testing.assert_close(found, torch.stack(each), rtol=1e-5, atol=1e-5)
    assert {*values} == {*guide.latents()}
    assert posterior_of(model, guides.Delta(model)).log_prob(values) == {}


# -- networks ---------------------------------------------------------------------------------


def test_the_mean_network():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    net[1].running_mean.normal_()
    model, guide = pair(net, (3,), priors.GroupNormalJeffreys())
    plain = mean_network(model, guide)
    found = layer_moments(model, guide)
    weights = {}
    for name, m in found.items():
        z = guide.posterior(f"{name}.scale").base_dist.loc
        expected = guide.posterior(f"{name}.weight").base_dist.loc * z
        torch.testing.assert_close(m.mean, expected)
        weights |= {f"{name}.weight": m.mean, f"{name}.bias": m.bias}
    x = torch.randn(5, 3)
    torch.testing.assert_close(plain(x), functional_call(net.eval(), weights, (x,)))
    assert not plain.training
    assert not any(isinstance(m, BayesianLayer) for m in plain.modules())


def test_drawn_networks():
    """Each draw is one network for all inputs, in whatever batches; seeded."""
    model, guide = pair(small_net(), (3,), FourScales())
    model.train()
    x = torch.randn(3, 3)[[0, 1, 2, 0, 1, 2, 0]]
    state = torch.get_rng_state()
    out = draw_outputs(model, guide, x, 4, seed=1, batch_size=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert out.shape == (4, 7, 2)
    assert not out.requires_grad
    torch.testing.assert_close(out[:, :3], out[:, 3:6])
    assert len(out[:, 0, 0].unique()) == 4
    torch.rand(3)
    torch.testing.assert_close(out, draw_outputs(model, guide, x, 4, seed=1))
    assert not torch.allclose(out, draw_outputs(model, guide, x, 4, seed=2))
    with pytest.raises(PyroccamError):
        draw_outputs(model, guide, x, 0)


def test_a_point_is_one_draw_many_times():
    rows = table()
    model, guide = bayesian(rows, priors.Normal(), guides.Delta)
    x, _ = rows.split("test")
    out = draw_outputs(model, guide, x, 3)
    weights = draw_weights(model, guide, 1)
    expected = outputs_of(inference.posterior.layers.mean_network(model, guide), weights, x)
    torch.testing.assert_close(out, expected.expand(3, -1, -1))


@torch.no_grad()
def test_drawn_networks_have_the_posterior():
    """Two inputs of a linear network: means and covariances are known."""
    model, guide = pair(nn.Linear(3, 2), (3,), priors.Normal())
    x = torch.randn(2, 3)
    out = draw_outputs(model, guide, x, 3000)
    q = {n: guide.posterior(f".{n}").base_dist for n in ("weight", "bias")}
    mean = x @ q["weight"].loc.T + q["bias"].loc
    a, b = ((out - mean)[:, i] for i in (0, 1))
    one = torch.cat([a, b, a * b, a**2, b**2], 1)
    v, c = q["weight"].variance.T, q["bias"].variance
    known = [torch.zeros(4), x.prod(0) @ v + c, x[0] ** 2 @ v + c, x[1] ** 2 @ v + c]
    assert_same_means(one, torch.cat(known)[None].expand(2, -1))
