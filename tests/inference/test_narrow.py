"""Going on with less: the same posterior over a smaller network."""

import copy
from functools import partial
from math import inf

import pytest
import torch
from fitting import SHORT as QUICK
from fitting import blobs, fit_weights, images
from plain import network
from pyroccam import guides, inference
from pyroccam.data import PyroccamError
from pyroccam.inference import Thresholds
from pyroccam.inference.cutting import cut
from pyroccam.inference.posterior import layer_moments, mean_network
from pyroccam.inference.shrinking import irrelevance
from pyroccam.inference.shrinking.thresholds import with_zeros
from pyroccam.models import priors
from torch import nn

# Cuts here are deep, of networks that have hardly been trained.
pytestmark = pytest.mark.filterwarnings("ignore:The cut by")


def perceptron():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.MaxPool2d(2), nn.Conv2d(5, 4, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 2),
    )  # fmt: skip


def transposed():
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, 2), nn.ReLU(), nn.ConvTranspose2d(5, 6, 2, 2), nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2),
    )  # fmt: skip


def fitted(build=perceptron, prior=None, guide=guides.MeanField):
    rows = blobs() if build is perceptron else images()
    prior = priors.GroupNormalJeffreys() if prior is None else prior
    return fit_weights(prior, build, rows, guide)


def zeros_at(result, thresholds):
    """The mean network with zeros for what is above."""
    found = irrelevance(result.model, result.guide)
    return with_zeros(result.posterior.mean_network(), found, thresholds, result.model)


def cut_here(result, share=0.6):
    """Thresholds that cut a share of every layer but the first, and the cut mean network."""
    thresholds = {
        name: float(one.values.quantile(share)) if len(one.values) > 2 else inf
        for name, one in irrelevance(result.model, result.guide).items()
    }
    return thresholds, cut(zeros_at(result, thresholds), result.data.x_train[:2])


@pytest.mark.parametrize(
    ("build", "prior", "guide"),
    [
        (perceptron, priors.GroupHalfCauchy(0.1), guides.MeanField),
        (convolutional, priors.GroupHorseshoe(0.01), guides.MeanField),
        (transposed, priors.SpikeSlab(0.3), guides.MeanField),
        (transposed, priors.GroupNormalJeffreys(), guides.VariationalDropout),
    ],
)
def test_the_mean_of_the_narrow_pair_is_the_cut_mean(build, prior, guide):
    result = fitted(build, prior, guide)
    thresholds, (small, report) = cut_here(result)
    model, own = inference.narrow(result, cut=Thresholds(thresholds))
    assert report.parameters_after < report.parameters_before
    x = result.data.x_test
    torch.testing.assert_close(mean_network(model, own)(x), small(x), rtol=1e-4, atol=1e-5)
    before, after = result.posterior.layers, list(layer_moments(model, own).values())
    for (name, part), new in zip(report.layers.items(), after, strict=True):
        dim = result.model.layers[name].affine.output_dim
        old = before[name].variance.index_select(dim, part.outputs)
        torch.testing.assert_close(new.variance, old.index_select(1 - dim, part.inputs))


def test_training_goes_on_and_may_be_narrowed_again():
    result = fitted(guide=partial(guides.MeanField, max_scale={"3": 0.5}))
    before = copy.deepcopy(result.guide.state_dict())
    thresholds, _ = cut_here(result)
    pair = inference.narrow(result, cut=Thresholds(thresholds))
    again = inference.fit(*pair, result.data, **QUICK)
    assert all(torch.equal(before[k], t) for k, t in result.guide.state_dict().items())
    limits = [f.max_log_scale for name, f in again.guide.factors.items() if "weight" in name]
    assert sum(limit < inf for limit in limits) == 1
    thresholds, (small, _) = cut_here(again, 0.7)
    model, own = inference.narrow(again, cut=Thresholds(thresholds))
    x = result.data.x_test
    torch.testing.assert_close(mean_network(model, own)(x), small(x), rtol=1e-4, atol=1e-5)
    # The rates count from the first network.
    last = inference.fit(model, own, result.data, **QUICK)
    rates = inference.shrink(last, cut=Thresholds(50.0)).report.rates
    assert rates.total == 2 * 9 + 9 * 8 + 8 * 3
    assert rates.kept < rates.total / 2


def without_biases(kind):
    """Normalisation with statistics and shifts that matter, and no other biases."""
    if kind == "mlp":
        net = nn.Sequential(
            nn.Linear(2, 9, bias=False), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 8, bias=False),
            nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3, bias=False),
        )  # fmt: skip
    else:
        net = nn.Sequential(
            nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 5, 1, bias=False), nn.BatchNorm2d(5), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2, bias=False),
        )  # fmt: skip
    for module in net:
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.bias, mean=1.0)
    return net


@pytest.mark.parametrize(
    ("kind", "prior", "random_biases"),
    [
        ("mlp", priors.LogUniform(), True),
        ("conv", priors.GroupHorseshoe(0.01), False),
        ("conv", priors.Normal(learn="weight"), True),
    ],
)
def test_layers_without_a_bias_gain_one_for_what_became_constant(kind, prior, random_biases):
    rows = blobs() if kind == "mlp" else images()
    build = partial(without_biases, kind)
    result = fit_weights(prior, build, rows, seed=1, random_biases=random_biases)
    model = result.model
    with torch.no_grad():  # units without a say, which the shifts make constant, not zero
        for layer in list(model.layers)[:-1]:
            result.guide.factors[f"{layer}/weight"].loc[1::3] = 0.0
    one = irrelevance(model, result.guide)["0"]
    thresholds = dict.fromkeys(model.layers, inf)
    if one.grouped and kind == "conv":
        thresholds["0"] = float(one.values.median())
    mean = zeros_at(result, thresholds)(rows.x_test)
    smaller, own = inference.narrow(result, cut=Thresholds(thresholds))
    assert mean.std(0).min() > 1e-3
    gained = [name for name, layer in smaller.layers.items() if "bias" in layer.start]
    assert gained
    for name in gained:
        site = f"{name}.bias"
        assert (site in smaller.sites) == (smaller.layers[name].bias is None) == random_biases
        if random_biases:
            begun = guides.MeanField(smaller).posterior(site)
            torch.testing.assert_close(own.posterior(site).stddev, begun.stddev)
    torch.testing.assert_close(mean_network(smaller, own)(rows.x_test), mean, rtol=1e-4, atol=1e-5)
    # The pair is one like any other.
    again = inference.fit(smaller, own, rows, **QUICK)
    assert inference.shrink(again, cut=Thresholds(inf)).net(rows.x_test).isfinite().all()


def test_what_priors_learnt_comes_along_cut_as_the_weights_are():
    for learn in ("weight", "layer"):
        result = fitted(prior=priors.Normal(learn=learn))
        layers = result.model.layers
        with torch.no_grad():
            result.guide.factors["3/weight"].loc[2] = 0.0  # a unit that is constant
            for layer in layers.values():
                for learnt in layer.prior.parameters():
                    learnt.normal_()
        smaller, own = inference.narrow(result, cut=Thresholds(inf))
        rest = [0, 1, 3, 4, 5, 6, 7] if learn == "weight" else ...
        last = (slice(None), rest) if learn == "weight" else ...
        old, new = layers["3"].prior, smaller.layers["3"].prior
        assert torch.equal(new.log_scale, old.log_scale[rest])
        if learn == "weight":
            assert torch.equal(new.log_scale_bias, old.log_scale_bias[rest])
        cut = smaller.layers["5"].prior.log_scale
        assert torch.equal(cut, layers["5"].prior.log_scale[last])
        assert cut is not layers["5"].prior.log_scale
        inference.fit(smaller, own, result.data, **QUICK)


def test_the_rows_of_the_next_fit_do_not_choose_the_thresholds():
    result = fitted()
    rows = result.data.all_rows()
    (one, _), (other, own) = (inference.narrow(result, data=data) for data in (None, rows))
    assert one.narrowed_at == other.narrowed_at
    assert (one.size, other.size) == (result.data.N, rows.N)
    again = inference.fit(other, own, rows, **QUICK)
    assert again.data.N == rows.N > result.data.N


def test_the_thresholds_part_the_values_from_afar():
    """Given again they cut the same, whatever the roundings of the values."""
    result = fitted()
    with torch.no_grad():
        for name, p in result.guide.named_parameters():
            if "scale" in name:
                p.add_(torch.randn(p.shape, generator=torch.manual_seed(0)))
    found = irrelevance(result.model, result.guide)
    at = {name: float(one.values.sort().values[-2]) for name, one in found.items()}  # a value
    model, _ = inference.narrow(result, cut=Thresholds(at))
    for name, one in found.items():
        for values in (one.values, one.values * (1 + 1e-5), one.values * (1 - 1e-5)):
            assert torch.equal(values <= model.narrowed_at[name], one.values <= at[name])
    whole, _ = inference.narrow(result, cut=Thresholds(100.0))
    assert set(whole.narrowed_at.values()) == {inf}


def inputs_cut():
    def forward(net, x):
        return net.b(torch.tanh(net.a(x.flatten(1))))

    return network(forward, a=nn.Linear(64, 9), b=nn.Linear(9, 2))


def test_thresholds_and_numbers_by_layer_keep_their_names():
    """A layer of fewer inputs moves inside a module that selects them."""
    result = fitted(build=inputs_cut)
    with torch.no_grad():
        result.guide.factors["a/scale"].loc[0] = 1e-6
    low = float(irrelevance(result.model, result.guide)["a"].values.sort().values[-2])
    model, own = inference.narrow(result, cut=Thresholds({"a": low + 1e-3}))
    assert model.parameters_before == sum(p.numel() for p in inputs_cut().parameters())
    again = inference.fit(model, own, result.data, **QUICK)
    for first in ("a", "a.1"):
        small = inference.shrink(again, cut=Thresholds({first: 50.0, "b": 60.0}))
        assert small.report.thresholds == {"a.1": 50.0, "b": 60.0}
        code = inference.Codebook({first: 4})
        bits = inference.shrink(again, cut=Thresholds(50.0), code=code).report.bits
        assert bits["a.1"].total == 2 != bits["b"].total
    twice, _ = inference.narrow(again, cut=Thresholds({"a": 50.0}))
    assert model.names == twice.names == {"a": "a.1", "b": "b"}
    for how in (
        {"cut": Thresholds({"c": 50.0})},
        {"cut": Thresholds({"a": 50.0, "a.1": -50.0})},
        {"code": inference.Codebook({"a": 4, "a.1": 8})},
    ):
        with pytest.raises(PyroccamError):
            inference.shrink(again, **how)
