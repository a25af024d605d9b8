"""Whatever a cut is asked for, a network is left, and what that costs is said."""

import math

import pytest
import torch
from fitting import blobs, fit_weights, images
from plain import network
from pyroccam import inference
from pyroccam.inference.posterior import mean_network
from pyroccam.inference.shrinking import irrelevance
from pyroccam.inference.shrinking.thresholds import TOLERANCE, Cuts, choose_thresholds
from pyroccam.models import priors
from torch import nn


def residual():
    """Two branches that are added, one of two convolutions, over normalised channels."""

    def forward(net, x):
        x = net.stem(x)
        return net.head((x + net.inner(x)).relu().mean((2, 3)))

    stem = nn.Conv2d(1, 4, 3, padding=1)
    inner = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)
    return network(forward, stem=stem, inner=nn.Sequential(*inner), head=nn.Linear(4, 2))


def perceptron():
    return nn.Sequential(nn.Linear(2, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))


def depends(net, x):
    outputs = net(x)
    return bool((outputs - outputs[:1]).abs().max() > 0)


@pytest.mark.parametrize(
    ("build", "val", "prior"),
    [
        (perceptron, 0.0, priors.Normal()),
        (residual, 0.1, priors.GroupNormalJeffreys()),
    ],
)
@pytest.mark.filterwarnings("ignore:.* would cut", "ignore:The cut by")
def test_a_posterior_of_noise_leaves_a_network(build, val, prior):
    """Means anywhere, deviations above all of them."""
    rows = images() if build is residual else blobs(val_fraction=val)
    result = fit_weights(prior, build, rows, epochs=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for factor in result.guide.factors.values():
            factor.loc.copy_(0.1 * torch.randn(factor.loc.shape, generator=generator))
            factor.log_scale.copy_(0.3 * torch.randn(factor.loc.shape, generator=generator) + 0.7)
    by_layer = inference.Thresholds(dict.fromkeys(result.model.layers, -5.0))
    by_rows = inference.ByValidation() if len(rows.x_val) else inference.Valley()
    for cut in (inference.Noise(), by_layer, by_rows):
        small = inference.shrink(result, cut=cut)
        assert depends(small.net, rows.x_train)
        assert all(one.total for one in small.report.bits.values()) or build is residual
    assert depends(mean_network(*inference.narrow(result, cut=inference.Noise())), rows.x_train)


def layers_apart(val_fraction=0.0):
    """A posterior in which the best inputs of a layer are not the best outputs of the one before,
    so that its rule leaves no path."""
    rows = blobs(val_fraction=val_fraction)
    result = fit_weights(priors.Normal(), perceptron, rows, epochs=20)
    with torch.no_grad():
        for layer, kept in (("0", slice(0, 3)), ("2", slice(3, 7))):
            factor = result.guide.factors[f"{layer}/weight"]
            sharp = torch.zeros_like(factor.loc, dtype=torch.bool)
            sharp[(kept,) if layer == "0" else (slice(None), kept)] = True
            noise = factor.loc.abs().log() + torch.where(sharp, -1.0, 1.0)
            factor.log_scale.copy_(noise)
    return result


def parts(result):
    whole, model = result.posterior.mean_network(), result.model
    found = irrelevance(model, result.guide, by="noise")
    return whole, found, model, result.data


def test_without_rows_the_smallest_network_that_has_a_path_is_left():
    result = layers_apart()
    cuts = Cuts(*parts(result))
    wanted = {name: max(0.0, float(one.values.min())) for name, one in cuts.found.items()}
    assert not cuts.leave_network(wanted)
    with pytest.warns(UserWarning, match="no validation rows"):
        small = inference.shrink(result, cut=inference.Noise())
    assert small.report.warnings == tuple(small.warnings)
    assert cuts.leave_network(small.report.thresholds)
    for name, one in cuts.found.items():
        assert small.report.thresholds[name] >= wanted[name]
        below = one.values[one.values < small.report.thresholds[name]]
        if small.report.thresholds[name] > wanted[name]:  # one weight less, and there is no path
            less = max(float(below.max()), wanted[name]) if len(below) else wanted[name]
            assert not cuts.leave_network({**small.report.thresholds, name: less})


def test_with_rows_the_network_left_is_as_good_as_the_whole():
    result = layers_apart(val_fraction=0.2)
    cuts = Cuts(*parts(result))
    everything = dict.fromkeys(cuts.found, math.inf)
    with pytest.warns(UserWarning, match="nats of the whole one"):
        small = inference.shrink(result, cut=inference.Noise())
    assert len(small.warnings) == 1  # it costs nothing
    assert cuts.cost(small.report.thresholds) <= cuts.cost(everything) + TOLERANCE + 1e-9
    assert cuts.size(small.report.thresholds) < cuts.size(everything)
    found = irrelevance(result.model, result.guide)
    asked = {"4": float(found["4"].values.quantile(0.9))}
    whole, _, *others = parts(result)
    chosen = choose_thresholds(inference.Thresholds(asked), found, whole, *others)
    assert chosen.thresholds == {"0": math.inf, "2": math.inf, **asked}  # it leaves a path


def test_a_cut_that_costs_much_is_said():
    result = fit_weights(
        priors.GroupNormalJeffreys(), perceptron, blobs(val_fraction=0.2), epochs=20
    )
    with torch.no_grad():  # all but two groups of each layer are taken for noise
        for name, factor in result.guide.factors.items():
            if name.endswith("/scale"):
                factor.log_scale[2:] = factor.loc[2:].abs().log() + 1.0
                factor.log_scale[:2] = factor.loc[:2].abs().log() - 3.0
    with pytest.warns(UserWarning, match="The cut by Noise"):
        assert inference.shrink(result, cut=inference.Noise()).warnings
    assert not inference.shrink(result, cut=inference.ByValidation()).warnings
