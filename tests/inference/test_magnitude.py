"""Going on from a point estimate with fewer weights and fewer values, and what is left of it."""

import math

import pytest
import torch
from fitting import SHORT, fit_weights, images
from pyroccam import guides, inference
from pyroccam.data import PyroccamError
from pyroccam.inference.files import read
from pyroccam.inference.rounding import Layer
from pyroccam.inference.rounding.rates import place_bits
from pyroccam.inference.shrinking import by_layer, prune_weights, share_weights, splice_weights
from pyroccam.models import priors
from torch import nn

QUICK = {**SHORT, "lr": 0.02}
WEIGHTS = 2 * 8 + 8 * 3


def fitted(net=None, rows=None, prior=None, guide=guides.Delta):
    prior = priors.Normal() if prior is None else prior
    return fit_weights(prior, net, rows, guide, **QUICK)


def again(pair, fit):
    return inference.fit(*pair, fit.data, **QUICK)


def masked(fit, kept):
    pair = fit.model, guides.Points(fit.model, by=guides.Mask(kept), begin=fit.guide)
    return again(pair, fit)


def weights(fit):
    return {name: fit.guide.posterior(f"{name}.weight").v.detach() for name in fit.model.layers}


def test_a_threshold_is_so_many_standard_deviations():
    fit = fitted()
    before = weights(fit)
    model, guide = prune_weights(fit, sensitivity={"0": 0.8})
    w = before["0"].double()
    limit = 0.8 * ((w - w.mean()) ** 2).mean().sqrt()
    after = guide.posterior("0.weight").v
    assert torch.equal(after != 0, w.abs() >= limit)
    assert torch.equal(after[after != 0], before["0"][after != 0])  # not drawn anew
    assert torch.equal(guide.posterior("2.weight").v, before["2"])
    assert model is not fit.model
    # Pruning again looks at what is left.
    once = again(prune_weights(fit, sensitivity=0.7), fit)
    first = weights(once)["2"]
    left = first[first != 0].double()
    limit = 0.7 * ((left - left.mean()) ** 2).mean().sqrt()
    second = prune_weights(once, sensitivity=0.7)[1].posterior("2.weight").v
    assert torch.equal(second != 0, first.abs() >= limit)
    assert 0 < int(second.count_nonzero()) < int(first.count_nonzero()) < first.numel()


def test_a_fraction_keeps_the_largest():
    fit = fitted()
    _, guide = prune_weights(fit, keep=[0.5, 0.25])
    for name, count in (("0", 8), ("2", 6)):
        size = weights(fit)[name].abs()
        after = guide.posterior(f"{name}.weight").v
        assert torch.equal(after != 0, size >= size.flatten().sort().values[-count])
    once = again(prune_weights(fit, keep=0.3), fit)
    _, more = prune_weights(once, keep=0.9)  # what is gone does not come back
    assert more.nonzero == once.guide.nonzero


def test_splicing_takes_its_thresholds_from_the_fit():
    fit = fitted()
    before = {n: t.clone() for n, t in fit.guide.state_dict().items()}
    after = again(splice_weights(fit, c={"0": 0.5}, gamma=0.0, stop=1), fit)
    size = weights(fit)["0"].abs()
    limit = size.mean() + 0.5 * size.std(correction=0)
    assert torch.equal(weights(after)["0"] != 0, size >= 0.9 * limit)
    assert int(weights(after)["2"].count_nonzero()) == 24
    assert all(torch.equal(t, before[n]) for n, t in fit.guide.state_dict().items())


def k_means(values, size):
    """From equally spaced centres, by a loop; empty clusters go."""
    centres = [min(values) + k * (max(values) - min(values)) / (size - 1) for k in range(size)]
    while True:
        members = [[] for _ in centres]
        for v in values:
            members[min(range(len(centres)), key=lambda k: abs(v - centres[k]))].append(v)
        means = [sum(m) / len(m) for m in members if m]
        if means == centres:
            return centres
        centres = means


def test_values_are_found_from_equally_spaced_ones():
    fit = again(prune_weights(fit := fitted(), keep={"2": 0.8}), fit)
    model, guide = share_weights(fit, bits={"2": 2})
    before, after = weights(fit)["2"], guide.posterior("2.weight").v.detach()
    expected = torch.tensor(k_means(before[before != 0].double().tolist(), 4))
    torch.testing.assert_close(guide.factor_of("2.weight").book.detach(), expected)
    assert torch.equal(after == 0, before == 0)
    nearest = (before[..., None] - expected).abs().argmin(-1)
    assert torch.equal(after[after != 0], guide.factor_of("2.weight").book[nearest][after != 0])
    trained = again((model, guide), fit)
    assert len(weights(trained)["2"].unique()) == len(expected) + 1
    assert not torch.equal(weights(trained)["2"], after)


def convolutions():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, 2)
    )
    return fitted(net, images())


def test_shared_values_stay_and_count_as_indices(tmp_path):
    fit = fitted()
    fit = again(prune_weights(fit, keep={"0": 0.5, "2": 0.5}), fit)
    fit = again(share_weights(fit, bits={"2": 2}), fit)
    small = inference.shrink(fit)
    assert small.report.bits["2"].total == 2
    assert small.report.bits["0"].total > 20
    assert math.isnan(small.report.rates.fast)
    first, second = (small.net.get_submodule(n).weight for n in ("0", "2"))
    left = second.detach().unique()
    assert {*left[left != 0].tolist()} <= {*fit.guide.factor_of("2.weight").book.tolist()}
    n, m = int(first.count_nonzero()), int(second.count_nonzero())
    places = place_bits(Layer(*first.shape[::-1]), n) + place_bits(Layer(*second.shape[::-1]), m)
    bits = n * small.report.bits["0"].total + 2 * m + 32 * 4 + places
    assert small.report.rates.maximum == pytest.approx(32 * WEIGHTS / bits)
    found = read(small.save(tmp_path / "small.pocc"))
    assert torch.equal(found.get_submodule("2").weight, second)
    assert sum(row.nonzero for row in small.size.tensors if row.name.endswith("weight")) == n + m


@pytest.mark.parametrize("guide", [guides.Delta, guides.MeanField])
def test_a_codebook_can_be_asked_for(guide):
    cut = None if guide is guides.Delta else inference.Thresholds(100.0)
    small = inference.shrink(fitted(guide=guide), cut=cut, code=inference.Codebook([2, 8]))
    for name, size in (("0", 2), ("2", 8)):
        assert 1 < len(small.net.get_submodule(name).weight.unique()) <= size + 1
        assert small.report.bits[name].total == size.bit_length() - 1


def test_what_cannot_be():
    fit = fitted()
    dead = masked(fit, {"0": torch.zeros(8, 2).bool()})
    for call, given, options in (
        (inference.shrink, fit, {"cut": inference.Valley()}),
        (inference.shrink, dead, {}),
        (share_weights, dead, {}),
        (prune_weights, fit, {}),
        (prune_weights, fit, {"sensitivity": 50.0}),
        (prune_weights, fit, {"keep": [0.5]}),
        (prune_weights, fitted(guide=guides.MeanField), {"keep": 0.5}),
        (splice_weights, fit, {"c": {"liner": 1.0}}),
    ):
        with pytest.raises(PyroccamError):
            call(given, **options)


def test_numbers_by_layer():
    fit = convolutions()
    model = fit.model
    sizes = share_weights(fit)[1].sizes  # 2^8 of a convolution are more than the first layer has
    assert (sizes["0"], sizes["4"] <= 2**5) == (54, True)
    for asked, expected in (
        (2, [2.0, 2.0, 2.0]),
        ([1, 2, 3], [1.0, 2.0, 3.0]),
        ({"convolution": 1.0, "4": 3}, [1.0, 1.0, 3.0]),
        ({"linear": 1.0, "0": 3}, [3.0, None, 1.0]),
        ({"linear": 1.0, "last": 2}, [None, None, 2.0]),
        ({"first": 4, "last": 5, "4": 6}, [4.0, None, 6.0]),
    ):
        found = by_layer("c", asked, model)
        assert [found.get(name) for name in model.layers] == expected
