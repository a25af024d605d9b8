"""What the figures of networks show, against draws, against the network itself, against a file."""

import math
from types import SimpleNamespace

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import mixture_bands
from pyroccam.inference.rounding import LayerBits, Rates
from pyroccam.inference.shrinking import (
    Report,
    bytes_by_part,
    input_use,
    irrelevance,
    remains,
    scale_intervals,
)
from pyroccam.models import priors
from pyroccam.models.networks import plain as plain_networks
from pyroccam.models.plain import select
from random_weights import FourScales, limit, pair, small_net
from torch import nn

DRAWS = 20_000


def drawn_scales(guide, layer, name):
    """Draws of what multiplies the groups of a layer, or of its weights."""
    latents = layer.latents()
    own = [n for n in latents if n not in ("weight", "bias")] or ["weight"]
    value = torch.ones(())
    with torch.no_grad():
        for latent in own:
            q = guide.posterior(f"{name}.{latent}")
            draws = q.sample((DRAWS,)).double() ** latents[latent].power
            value = value * draws.reshape(DRAWS, *(draws.shape[1:] or (1,)))
    return value


@pytest.mark.parametrize(
    ("prior", "quantity", "positive"),
    [
        (priors.GroupNormalJeffreys(), "scale", False),
        (priors.GroupHorseshoe(0.1), "scale", True),
        (FourScales(), "scale", True),
        (priors.SpikeSlab(), "gate", False),
        (priors.LogUniform(), "weight", False),
    ],
)
def test_intervals_hold_as_many_draws_as_they_say(prior, quantity, positive):
    """Draws below, below the median, and above: binomial counts, at a false alarm of 1e-6."""
    torch.manual_seed(0)
    model, guide = pair(small_net(), (3,), prior, seed=1)
    level, found = 0.8, irrelevance(model, guide)
    for name, one in scale_intervals(SimpleNamespace(model=model, guide=guide), level).items():
        assert (one.layer, one.quantity, one.positive) == (name, quantity, positive)
        assert one.median.shape == found[name].values.shape  # one for each that is judged
        draws = drawn_scales(guide, model.layers[name], name)
        if quantity != "gate" and not positive:  # turned to a median that is not negative
            draws = draws * torch.where(draws.median(0).values < 0, -1.0, 1.0)
        draws = draws.expand(DRAWS, *one.median.shape)
        assert (one.median >= 0).all()
        for end, share in ((one.low, 0.1), (one.median, 0.5), (one.high, 0.9)):
            count = (draws < end).double().sum(0)
            z = (count - DRAWS * share) / math.sqrt(DRAWS * share * (1 - share))
            assert z.abs().max() < limit(500)


def small_net_of_pixels():
    """A cut network on 2 x 3 images: pixels 4, 1 and 2 are used, the last by one weight only."""
    first, last = nn.Linear(3, 4), nn.Linear(4, 2)
    with torch.no_grad():
        first.weight[1:, 2] = 0.0
    return nn.Sequential(nn.Flatten(), nn.Sequential(select([4, 1, 2], -1), first), nn.Tanh(), last)


def compressed(net, bits=None):
    bits = {"1": LayerBits(4, 3), "3": LayerBits(4, 3)} if bits is None else bits
    rates = Rates(20, 100, 20.0, 5.0, 10.0, 12.0)
    none = {"layers": {}, "left_whole": {}, "thresholds": {}, "irrelevance": {}}
    none |= {"parameters_before": 100, "parameters_after": 20}
    return inference.Small(net, Report(**none, bits=bits, rates=rates))


@pytest.fixture
def small():
    torch.manual_seed(0)
    return compressed(small_net_of_pixels())


BEFORE = {"a": torch.Size([8, 6]), "b": torch.Size([2, 8])}


def test_remains_are_the_weights_that_are_not_zero(small):
    found = remains(small, BEFORE)
    assert list(found) == ["a", "b"]  # by the names before
    expected = torch.ones(4, 3, dtype=torch.bool)
    expected[1:, 2] = False
    assert found["a"].kept.equal(expected)
    assert found["a"].before == (8, 6)
    assert found["a"].fraction == pytest.approx(9 / 48)
    assert found["b"].fraction == pytest.approx(8 / 16)
    with pytest.raises(PyroccamError):
        remains(small, {"a": torch.Size([8, 6])})


def test_remains_of_a_transposed_convolution_have_its_outputs_as_rows():
    layer = nn.ConvTranspose1d(3, 2, 4, bias=False)
    with torch.no_grad():
        layer.weight[:, 1] = 0.0
    small = compressed(nn.Sequential(layer), {"0": LayerBits(4, 3)})
    found = remains(small, {"a": torch.Size([5, 2, 4])})["a"]
    assert found.kept.tolist() == [[True] * 12, [False] * 12]
    assert found.before == (2, 20)


def test_input_use_is_what_the_outputs_of_the_first_layer_depend_on(small):
    """By the derivative of the network's own first layer with respect to each pixel."""
    use = input_use(small, BEFORE["a"], (1, 2, 3))
    x = torch.randn(1, 1, 2, 3)
    jacobian = torch.autograd.functional.jacobian(small.net[:2], x)[0, :, 0]
    assert use.equal((jacobian != 0).sum(0))
    assert use.flatten().tolist() == [0, 4, 1, 0, 4, 0]


def test_parts_add_up_to_the_file(small):
    parts = bytes_by_part(small, ["a", "b"])
    assert list(parts) == ["a", "b", "biases and others", "tables", "description"]
    assert sum(parts.values()) == pytest.approx(small.bytes)
    assert min(parts.values()) >= 0
    (row,) = [r for r in small.size.tensors if r.name == "1.1.weight"]
    assert parts["a"] == row.bits / 8 > 0
    assert list(bytes_by_part(small))[:2] == ["1", "3"]


def test_a_real_network_that_was_narrowed_keeps_the_places_of_its_pixels():
    """Pixels that are cut in a first fit and in a second are both missing, the others in place."""
    digits = data.load("digits")
    net = plain_networks.perceptron((1, 8, 8), 10, hidden=(6,))
    model = models.BayesianNetwork(net, digits, prior=priors.GroupNormalJeffreys())
    guide = guides.MeanField(model)
    fit = SimpleNamespace(model=model, guide=guide, data=digits)
    gone = []
    for step, dropped in enumerate(([0, 10, 63], [0, 20])):
        name, layer = next(iter(fit.model.layers.items()))
        left = [p for p in range(64) if p not in gone]
        site = f"{name}.{next(n for n in layer.latents() if n not in ('weight', 'bias'))}"
        with torch.no_grad():
            fit.guide.factor_of(site).centre[dropped] = 1e-6
        gone += [left[k] for k in dropped]
        if step == 0:
            smaller, own = inference.narrow(fit, cut=inference.Thresholds(3.0))
            fit = SimpleNamespace(model=smaller, guide=own, data=digits)
    small = inference.shrink(fit, cut=inference.Thresholds(3.0))
    use = input_use(small, model.layers["1"].affine.shape.weight, (1, 8, 8)).flatten()
    assert sorted(gone) == [p for p in range(64) if use[p] == 0]


def test_bands_are_the_moments_of_draws():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 3, 2, generator=generator)
    weights = torch.tensor([0.5, 0.1, 0.15, 0.25])
    noise, y_mean, y_std = torch.tensor([[0.3, 0.8], [10.0, -4.0], [2.0, 5.0]])
    found = mixture_bands(outputs, weights, noise, y_mean, y_std)
    n = 200_000
    which = torch.multinomial(weights, n, replacement=True, generator=generator)
    mean = outputs[which].double()
    y = mean + noise * torch.randn(mean.shape, generator=generator)
    y, mean = y * y_std + y_mean, mean * y_std + y_mean
    # Errors of a mean and of a deviation, the latter for at most the kurtosis of these mixtures.
    assert ((y.mean(0) - found.mean).abs() < 5 * found.total / math.sqrt(n)).all()
    assert (y.std(0) / found.total - 1).abs().max() < 5 / math.sqrt(n)
    assert (mean.std(0) / found.epistemic - 1).abs().max() < 5 / math.sqrt(n)
