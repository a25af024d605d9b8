"""From a posterior to a small network: what is cut, how it is rounded, what is counted."""

import copy
import math

import pytest
import torch
from both_readers import read
from fitting import blobs, fit_weights, images
from fitting import run as fit_depth
from plain import network
from pyroccam import inference
from pyroccam.data import PyroccamError
from pyroccam.inference import Thresholds
from pyroccam.inference.posterior import evaluate_net
from pyroccam.inference.rounding import (
    FixedPoint,
    Layer,
    Significand,
    compression_rates,
    quantised,
)
from pyroccam.inference.shrinking import irrelevance, thresholds
from pyroccam.inference.shrinking.thresholds import with_zeros
from pyroccam.models import priors
from torch import nn

GROUPS = priors.GroupNormalJeffreys()


def fitted(prior=GROUPS, net=None, rows=None, kill=(), **settings):
    """A short fit in which the scales named in ``kill``, by layer and group, mean nothing."""
    result = fit_weights(prior, net, rows, **settings)
    with torch.no_grad():
        for layer, group in kill:
            result.guide.factors[f"{layer}/scale"].loc[group] = 1e-6
    return result


def cut_mean(result, at):
    """The mean network with zeros for what is above the thresholds."""
    found = irrelevance(result.model, result.guide)
    at = {name: at.get(name, math.inf) for name in found}
    return with_zeros(result.posterior.mean_network(), found, at, result.model)


CUTS = {  # a network, what of it means nothing, and what is left
    "inputs": (None, [("2", g) for g in (0, 3, 4)], "2-5", 2 * 5 + 5 * 3),
    "filters": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.Linear(12, 2)
        ),
        [("0", 1), ("0", 2), ("2", 0)],
        "2-2-8",
        2 * 9 + 2 * 2 * 4 + 8 * 2,
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, 2), nn.ConvTranspose2d(4, 5, 2, 2), nn.Flatten(), nn.Linear(180, 2)
        ),
        [("0", 1), ("1", 2), ("1", 4)],
        f"3-3-{3 * 36}",
        3 * 9 + 3 * 3 * 4 + 3 * 36 * 2,
    ),
}


@pytest.mark.parametrize("name", CUTS)
def test_groups_without_a_say_are_cut_and_the_rest_computes_the_same(name, tmp_path):
    net, kill, architecture, left = CUTS[name]
    rows = blobs() if net is None else images()
    result = fitted(GROUPS, net, rows, kill, epochs=30 if not net else 2)
    before, settings = copy.deepcopy(result.guide.state_dict()), vars(result.settings).copy()
    small = inference.shrink(result, cut=Thresholds(5.0))
    assert all(torch.equal(before[n], t) for n, t in result.guide.state_dict().items())
    assert vars(result.settings) == settings
    assert small.report.architecture == architecture
    assert small.report.nonzero == left
    total = sum(one.affine.shape.weight.numel() for one in result.model.layers.values())
    assert small.report.rates.nonzero_percent == pytest.approx(100 * left / total)
    x = rows.x_test
    bits = {name: one.significand for name, one in small.report.bits.items()}
    same = quantised(cut_mean(result, dict.fromkeys(before, 5.0)), bits)(x)
    torch.testing.assert_close(small.net(x), same, rtol=1e-4, atol=1e-5)
    assert torch.equal(read(small.save(tmp_path / "small.pocc"))(x), small.net(x))
    if net is None:  # three classes
        assert evaluate_net(small.net, result.model, result.data)["accuracy"] > 0.7


def test_single_weights_are_zero_and_stored_sparsely():
    result = fitted(priors.LogUniform())
    values = irrelevance(result.model, result.guide)["0"].values
    limit = float(values.median())
    small = inference.shrink(result, cut=Thresholds({"0": limit}))
    kept, alive = int((values <= limit).sum()), int((values <= limit).any(1).sum())
    assert small.report.nonzero == kept + 3 * alive  # what a unit without inputs feeds dies with it
    # Of what is left, and of that alone: each weight its bits and its place.
    weights = [small.net.get_submodule(name).weight for name in ("0", "2")]
    layers = [Layer(w.shape[1], w.shape[0]) for w in weights]
    counts = [int(w.count_nonzero()) for w in weights]
    assert counts[0] == kept
    bits = [b.total for b in small.report.bits.values()]
    assert small.report.rates == compression_rates(40, layers, bits, counts)
    assert small.report.to_json()["rates"]["fast_prediction"] == small.report.rates.fast > 1
    # Bits are those of the weights that are left, not of the zeros.
    m = result.posterior.layers["0"]
    ratio = (m.mean.square() / m.variance)[values <= limit].mean()
    expected = 1 + math.ceil(0.5 * math.log2(float(ratio)))
    assert small.report.bits["0"].significand == max(expected, 1)


@pytest.mark.parametrize(("rule", "rounding"), [
    ("relative", Significand), ("published_code", FixedPoint), ("deviation", FixedPoint),
])  # fmt: skip
def test_each_rule_of_bits_rounds_as_it_means(rule, rounding):
    result = fitted()
    small = inference.shrink(result, cut=Thresholds(100.0), code=inference.Digits(rule))
    mean = result.posterior.mean_network()
    for name, bits in small.report.bits.items():
        weight = mean.get_submodule(name).weight
        found = small.net.get_submodule(name).weight
        assert torch.equal(found, rounding(bits.significand)(weight))
        assert not torch.equal(found, weight)
        exponents = {math.frexp(w)[1] for w in found.flatten().tolist() if w}
        codes = max(exponents) - min(exponents) + 1 + bool((found == 0).any())
        assert bits.exponent == math.ceil(math.log2(codes))


def gated():
    """Channels are weighed by a branch that sees their means."""

    def forward(net, x):
        x = torch.relu(net.a(x))
        gate = torch.sigmoid(net.up(torch.relu(net.down(x.mean((2, 3))))))
        return net.f((x * gate[:, :, None, None]).flatten(1))

    layers = {"a": nn.Conv2d(1, 5, 3), "f": nn.Linear(5 * 36, 2)}
    return network(forward, **layers, down=nn.Linear(5, 4), up=nn.Linear(4, 5))


@pytest.mark.parametrize("prior", [GROUPS, priors.LogUniform()])
def test_a_branch_that_died_costs_nothing(prior):
    torch.manual_seed(0)
    result = fitted(prior, gated(), images())
    with torch.no_grad():
        result.guide.factors["up/weight"].loc.zero_()
    whole = Thresholds(math.inf)
    small = inference.shrink(result, cut=whole)
    assert {name for name, bits in small.report.bits.items() if not bits.total} == {"up", "down"}
    assert small.report.nonzero == 5 * 9 + 5 * 36 * 2
    bits = [small.report.bits[name].total for name in ("a", "f")]
    layers = [Layer(1, 5, 9), Layer(180, 2)]
    rates = compression_rates(5 * 9 + 5 * 4 * 2 + 5 * 36 * 2, layers, bits)
    assert small.report.rates == rates
    books = inference.shrink(result, cut=whole, code=inference.Codebook(8))
    assert books.report.rates.maximum == pytest.approx(32 * 445 / (405 * 3 + 2 * 32 * 8))
    x = result.data.x_test
    mean = result.posterior.mean_network()
    torch.testing.assert_close(small.net(x), mean(x), rtol=0.05, atol=0.05)
    model, _ = inference.narrow(result, cut=whole)
    assert model.layers["up"].start["weight"].numel() == 5


def test_the_likelihood_of_the_validation_rows_stays_within_the_tolerance():
    result = fitted(epochs=30, kill=[("2", 1), ("2", 6)])
    whole = result.posterior.mean_network()
    before = evaluate_net(whole, result.model, result.data, "val")["nll"]
    tight, middle, loose = (
        inference.shrink(result, cut=inference.ByValidation(nats)).report
        for nats in (1e-4, 0.2, 100.0)
    )
    for report, most in ((tight, 1e-4), (middle, 0.2)):
        net = cut_mean(result, report.thresholds)
        assert evaluate_net(net, result.model, result.data, "val")["nll"] <= before + most + 1e-6
    assert tight.nonzero <= 2 * 6 + 6 * 3  # what means nothing costs nothing
    assert loose.nonzero <= middle.nonzero <= tight.nonzero
    assert loose.nonzero == 1 + 3  # one input, one unit: no layer is emptied
    by = inference.shrink(result, cut=inference.ByValidation())
    assert inference.shrink(result).report.thresholds == by.report.thresholds


@pytest.mark.parametrize("prior", [GROUPS, priors.LogUniform()])
def test_the_size_is_the_number_of_weights_that_are_left(prior):
    result = fitted(prior)
    found = irrelevance(result.model, result.guide)
    cuts = thresholds.Cuts(result.posterior.mean_network(), found, result.model, result.data)
    for shares in ((0.5, 0.9), (1.0, 0.3)):
        pairs = zip(found.items(), shares, strict=True)
        at = {name: float(one.values.quantile(share)) for (name, one), share in pairs}
        net = cut_mean(result, at)
        assert cuts.size(at) == sum(int(p.count_nonzero()) for p in net.parameters() if p.dim() > 1)


@pytest.mark.parametrize("prior", [GROUPS, priors.GroupHorseshoe(0.1)])
@pytest.mark.filterwarnings("ignore:The cut by Noise")
def test_scales_with_more_noise_than_mean_are_cut(prior):
    result = fitted(prior)
    factors = [f for name, f in result.guide.factors.items() if name.startswith("2/")]
    factors = [f for f in factors if f.loc.shape == (8,)]  # of the groups
    normal = not factors[0].positive  # one scale; log-normal ones are two, with the powers 1/2
    noisy = math.log(2.0) if normal else 0.5 * math.log(2 * math.log(5.0))
    with torch.no_grad():
        for one in factors:
            one.log_scale.fill_(-4.0)
            if normal:
                one.loc.fill_(1.0)
            one.log_scale[4:] = noisy
    report = inference.shrink(result, cut=inference.Noise()).report
    assert report.thresholds["2"] == 0.0
    assert report.architecture.endswith("-4")
    # The scale of the layer, which is nearly certain, adds a little.
    alpha = report.irrelevance["2"].values[4:].exp()
    assert alpha == pytest.approx(torch.full((4,), 4.0).double(), rel=0.1)


def test_a_valley_is_found_layer_by_layer():
    """Also by default, where there are no validation rows."""
    net = nn.Sequential(nn.Linear(2, 40), nn.ReLU(), nn.Linear(40, 3))
    rows = blobs(val_fraction=0.0)
    result = fitted(GROUPS, net, rows, kill=[("2", g) for g in range(15)])
    report = inference.shrink(result, cut=inference.Valley()).report
    assert report.thresholds["0"] == math.inf  # two values are no clusters
    assert report.architecture == "2-25"
    assert inference.shrink(result).report.thresholds == report.thresholds
    with pytest.raises(PyroccamError):
        inference.shrink(result, cut=inference.ByValidation())


def test_what_cannot_be_done_is_refused():
    result = fitted()
    for cut in (Thresholds({"1": 0.0}), inference.Search(2)):
        with pytest.raises(PyroccamError):
            inference.narrow(result, cut=cut)
    for fit, given in (
        (result, {"exits": "last"}),
        (result, {"budget": inference.Bytes(100)}),
        (fit_depth(), {"cut": inference.Noise()}),
    ):
        with pytest.raises(PyroccamError):
            inference.shrink(fit, **given)
