"""Bayesian networks over any network: their sites, their weights, what is left as it was."""

import copy

import pyro.distributions as dist
import pytest
import torch
from plain import network
from pyro import poutine
from pyroccam.models import BayesianNetwork, priors
from pyroccam.models.priors import Latent, LayerPrior, WeightPrior
from random_weights import FourScales, Rows, small_net
from torch import nn
from torch.func import functional_call

ROWS = Rows(3)

pytestmark = pytest.mark.usefixtures("clean")


def backwards():
    """Its layers are registered in another order than they are used in."""
    return network(
        lambda net, x: net.last(net.inner["two"](net.inner["one"](x).tanh()).tanh()),
        last=nn.Linear(4, 2),
        inner=nn.ModuleDict({"two": nn.Linear(4, 4), "one": nn.Linear(3, 4)}),
    )


def everything():
    """Convolutions of several kinds, batch normalisation, dropout, a reshape."""
    body = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", bias=False),
        nn.BatchNorm2d(4),
        nn.Dropout(0.5),
        nn.Conv2d(4, 4, 3, groups=2, stride=2),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
    )
    head = nn.Linear(3 * 2 * 2, 2)
    return network(lambda net, x: net.head(net.body(x).flatten(1)), body=body, head=head)


def make(net, prior=None, rows=ROWS, **options):
    return BayesianNetwork(net, rows, prior=priors.Normal() if prior is None else prior, **options)


def test_sites_come_in_the_order_of_use():
    model = make(backwards())
    assert list(model.layers) == ["inner.one", "inner.two", "last"]
    names = [f"{layer}.{what}" for layer in model.layers for what in ("weight", "bias")]
    trace = poutine.trace(model).get_trace(torch.randn(5, 3))
    drawn = [n for n, s in trace.nodes.items() if s["type"] == "sample" and n in model.sites]
    assert drawn == names == list(model.sites)


def test_which_layers():
    net = small_net()
    assert list(make(net).layers) == ["0", "2"]
    assert list(make(net, layers="2").layers) == ["2"]
    assert list(make(net, layers=lambda name, m: getattr(m, "in_features", 0) == 3).layers) == ["0"]
    by_name = {"2": priors.LogUniform()}
    assert list(make(net, by_name).layers) == ["2"]
    own = make(net, {**by_name, "0": priors.GroupNormalJeffreys()})
    assert list(own.sites) == ["0.weight", "0.scale", "0.bias", "2.weight", "2.bias"]
    assert list(make(net, {**by_name, "0": priors.Normal()}, layers=["2"]).layers) == ["2"]


def by_hand(model, values):
    """Weights of the plain network: scales multiply input units of linear layers, output channels
    of convolutions, there with the bias."""
    found = {}
    for name, layer in model.layers.items():
        weight, bias = values[f"{name}.weight"].clone(), values.get(f"{name}.bias")
        linear = layer.affine.output_dim == 0 and weight.dim() == 2
        for latent, own in layer.latents().items():
            if latent in ("weight", "bias"):
                continue
            factor = values[f"{name}.{latent}"] ** own.power
            if factor.dim() == 1:
                dim = 1 if linear or layer.affine.output_dim == 1 else 0
                for i, one in enumerate(factor):
                    weight.select(dim, i).mul_(one)
            else:
                weight *= factor
            if not linear and factor.dim() < 2 and bias is not None:
                bias = bias * factor
        found[name] = weight, bias
    return found


@pytest.mark.parametrize(
    "prior", [priors.GroupNormalJeffreys(), FourScales(), priors.SpikeSlab(per="weight")]
)
def test_effective_weights_and_the_plain_network(prior):
    """The model computes what the original does with the weights by hand."""
    net = everything().eval()
    net.body[1].running_mean.normal_()
    model = make(net, prior, Rows(2, 4, 4)).eval()
    assert list(model.layers) == ["body.0", "body.3", "body.4", "head"]
    values = {
        site: torch.rand(layer.latents()[name].prior.event_shape) + 0.5
        for site, (layer, name) in model.sites.items()
    }
    expected = by_hand(model, values)
    for name, layer in model.layers.items():
        own = {n: values[f"{name}.{n}"] for n in layer.latents()}
        for a, b in zip(layer.effective(own), expected[name], strict=True):
            assert (a is None and b is None) or torch.allclose(a, b, rtol=1e-5)
    x = torch.randn(3, 2, 4, 4)
    weights = {f"{n}.weight": w for n, (w, _) in expected.items()}
    weights |= {f"{n}.bias": b for n, (_, b) in expected.items() if b is not None}
    reference = functional_call(net, weights, (x,))
    known = poutine.condition(model, data=values)
    mean = poutine.trace(known).get_trace(x).nodes["y"]["fn"].base_dist.loc
    torch.testing.assert_close(mean, reference, rtol=1e-4, atol=1e-4)
    plain = model.plain(expected)
    assert not plain.training
    assert {type(m) for m in plain.modules()} == {type(m) for m in net.modules()}
    model._modules["net"].body[1].running_mean.fill_(9.0)  # it shares nothing
    for weight, _ in expected.values():
        weight.zero_()
    torch.testing.assert_close(plain(x), reference, rtol=1e-4, atol=1e-4)


class NoBias(WeightPrior):
    """Scales of groups, and biases that are numbers."""

    def for_layer(self, layer):
        return _NoBias(layer)


class _NoBias(LayerPrior):
    def latents(self):
        scale = dist.LogNormal(self.zero.expand(self.layer.groups), self.one).to_event(1)
        scale = Latent(scale, start=(0.0, 0.1))
        return {"weight": self.standard(self.layer.weight), "scale": scale}


def test_a_bias_that_is_a_parameter_is_scaled_where_whole_outputs_are():
    """Or a channel whose scale is zero would still have an output."""
    net = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 2))
    model = make(net, NoBias(), Rows(1, 4))
    conv, linear = model.layers.values()
    biases = [name for name, _ in model.named_parameters() if "bias" in name]
    assert biases == ["net.0.bias", "net.2.bias"]
    z = torch.tensor([0.0, 2.0])
    _, bias = conv.effective({"weight": torch.ones(2, 1, 2), "scale": z})
    assert torch.equal(bias, conv.bias * z)
    _, bias = linear.effective({"weight": torch.ones(2, 6), "scale": torch.rand(6)})
    assert torch.equal(bias, linear.bias)


def test_the_original_is_left_as_it_was():
    net = everything()
    net.body[3].eval()
    before, modes = copy.deepcopy(net.state_dict()), [m.training for m in net.modules()]
    state = torch.get_rng_state()
    model = make(net, rows=Rows(2, 4, 4))
    assert torch.equal(torch.get_rng_state(), state)
    for name, t in model._modules["net"].state_dict().items():
        assert "prior" in name or torch.equal(t, before[name]), name  # not even batch statistics
    plain = model.start_network()
    model(torch.randn(6, 2, 4, 4))
    with torch.no_grad():
        for t in [*model.parameters(), *model.buffers()]:
            t.zero_()
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    for part in (net, model, plain):
        assert not any(m._forward_hooks for m in part.modules())
