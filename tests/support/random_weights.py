"""Small Bayesian networks, whatever prior there is, and comparisons by chance."""

import math

import pyro
import torch
from pyro import poutine
from pyroccam import data, guides, models
from pyroccam.models import priors
from pyroccam.models.priors import Latent, LayerPrior, WeightPrior
from pyroccam.testing.means import assert_same_means, limit  # noqa: F401 (asked for here)
from torch import nn

PRIORS = [  # all that there are, by their defaults; one begins with a network
    kind()
    for name in priors.__all__
    if isinstance(kind := getattr(priors, name), type)
    and issubclass(kind, WeightPrior)
    and kind not in (WeightPrior, priors.Pretrained)
]
OPTIONS = [
    priors.Normal("fan_in"),
    priors.Normal(learn="layer"),
    priors.LogUniform("molchanov"),
    priors.ARD("group"),
    priors.SpikeSlab(per="weight"),
]


class FourScales(WeightPrior):
    """Normal weights and four log-normal scales to the power ½, two of groups, two of the layer."""

    def __init__(self, start=0.0):
        self.start = start

    def for_layer(self, layer):
        return _FourScales(layer, self.start)


class _FourScales(LayerPrior):
    def __init__(self, layer, start):
        super().__init__(layer)
        self.start = start

    def latents(self):
        def scale(*shape):
            fn = pyro.distributions.LogNormal(self.zero.expand(shape), self.one.expand(shape))
            return Latent(fn.to_event(len(shape)), power=0.5, start=(self.start, 0.3))

        return {
            "global.a": scale(),
            "global.b": scale(),
            "scale.a": scale(self.layer.groups),
            "scale.b": scale(self.layer.groups),
            "weight": self.standard(self.layer.weight),
            **self.standard_bias(),
        }


def table(task="classification", n=60, seed=0, **options):
    """54 training and 6 validation rows of three inputs, 20 test rows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n + 20, 3, generator=generator)
    score = x @ torch.tensor([1.0, -2.0, 0.5])
    y = (score > 0).long() if task == "classification" else score[:, None] + 0.3 * x[:, :1] ** 2
    return data.Dataset.from_tensors(x[:n], y[:n], x[n:], y[n:], task=task, **options)


def small_net(outputs=2, width=4, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, outputs))


class Rows:
    """What a model needs to know of data, without any."""

    def __init__(self, *input_shape, outputs=2, N=10, task="regression"):
        self.input_shape, self.outputs, self.N, self.task = input_shape, outputs, N, task


def pair(
    net, input_shape, prior, seed=0, guide=guides.MeanField, spread=True, rows=None, **options
):
    """A model of one net and its guide, the parameters of the guide at random if ``spread``."""
    model = models.BayesianNetwork(net, rows or Rows(*input_shape), prior=prior)
    guide = guide(model, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in guide.named_parameters() if spread else ():
            noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.copy_(0.2 * noise - 1.0 if name.endswith("log_scale") else 0.5 * noise)
    return model, guide


def outputs(model, guide, x):
    """Of the network, with the guide's values."""
    with pyro.settings.context(module_local_params=True):
        trace = poutine.trace(guide).get_trace(x)
        return poutine.replay(model.part("net"), trace=trace)(x)


def with_products(sample):
    """A sample ``(R, *)`` and the products of its entries, less one centre for both samples."""
    flat = sample.flatten(1)
    return torch.cat([flat, (flat[:, :, None] * flat[:, None, :]).flatten(1)], 1)


def normal_kl(loc, scale, prior_scale=1.0):
    """To ``N(0, prior_scale²)``, summed, by hand."""
    ratio = (scale / prior_scale) ** 2
    return 0.5 * (ratio + (loc / prior_scale) ** 2 - 1 - ratio.log()).sum()


def normal_log_density(y, mean, scale):
    return -0.5 * ((y - mean) / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)
