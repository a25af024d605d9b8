"""Digits of weights by published and right rules, roundings, codebooks and priced multiples."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from fitting import blobs, fit_weights
from pyroccam import guides, inference
from pyroccam.data import Dataset, PyroccamError
from pyroccam.inference.rounding import (
    Codebook,
    FixedPoint,
    LayerBits,
    Significand,
    bit_precision,
    cluster,
    priced,
    quantised,
    rest_bits,
)
from pyroccam.inference.rounding import bits as of
from pyroccam.inference.rounding.bits import exponent_bits, significand_bits
from pyroccam.inference.training import row_changes
from pyroccam.models import priors
from torch import nn


def constant(value, count=10):
    return torch.full((count,), float(value))


# -- significand ------------------------------------------------------------------------------


def by_hand(spread):
    """The published count for one weight, written out."""
    return sum(2 * spread < 0.5 * 2.0 ** (1 - t) for t in range(1, 24))


@pytest.mark.parametrize(
    ("mean", "variance", "rule", "bits"),
    [
        (1, 2.0**-6, "published_code", 4),  # a spread equal to a step is too wide for it
        (1, 2.0**-6 * 0.999, "published_code", 5),
        (1, 0, "relative", 23),
        (1, 1e9, "relative", 1),
        (0, 0, "relative", 1),
    ],
)
def test_bits_by_hand(mean, variance, rule, bits):
    assert significand_bits(constant(mean), constant(variance), rule=rule) == bits


@pytest.mark.parametrize("rule", ["deviation", "published_code"])
def test_the_published_count_on_random_spreads(rule):
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        sd = 10 ** (-6 * torch.rand(7, generator=draw, dtype=torch.float64))
        spread = sd if rule == "deviation" else sd**2
        expected = math.ceil(sum(by_hand(s) for s in spread.tolist()) / 7)
        assert significand_bits(torch.ones(7), sd**2, rule=rule) == expected


def test_the_relative_rule_is_the_fewest_bits_that_keep_the_bound():
    draw = torch.Generator().manual_seed(1)
    for _ in range(100):
        w = torch.randn(20, generator=draw, dtype=torch.float64)
        sd = 10 ** (-4 * torch.rand(20, generator=draw, dtype=torch.float64))
        t = significand_bits(w, sd**2)
        bound = ((2.0**-t * w / sd) ** 2).mean()
        assert bound <= 1 / 4
        assert t == 1 or 4 * bound > 1 / 4
        # What the bound promises: an eighth of a nat of posterior density per weight, on average.
        assert ((of.round_significand(w, t) - w) / sd).square().mean() / 2 <= 1 / 8
        assert significand_bits(w / 64, (sd / 64) ** 2) == t  # the only rule without a unit


# -- exponents and layers -----------------------------------------------------------------------


@pytest.mark.parametrize(("largest", "bits"), [(0.9, 1), (1.5, 2), (4.0, 3), (0.5, None)])
def test_the_published_exponent_formula(largest, bits):
    if bits:
        assert of.exponent_bits_published_code(largest) == bits
    else:
        with pytest.raises(PyroccamError):
            of.exponent_bits_published_code(largest)


def test_exponent_bits_tell_all_exponents_apart():
    draw = torch.Generator().manual_seed(2)
    for k in range(200):
        power = torch.randint(-9, 9, (1,), generator=draw)
        w = torch.randn(1 + k % 9, generator=draw) * 2.0**power
        if k % 3 == 0:
            w[0] = 0
        present = [math.frexp(v)[1] for v in w.tolist() if v]
        codes = (max(present) - min(present) + 1 if present else 0) + (k % 3 == 0)
        bits = exponent_bits(w)
        assert 2**bits >= codes
        assert bits == 0 or 2 ** (bits - 1) < codes


def test_bits_of_layers():
    kept = {
        "first": (torch.tensor([1.0, -2.0, 0.25]), constant(0.01, 3)),
        "empty": (torch.zeros(0), torch.zeros(0)),
        "last": (torch.tensor([4.0]), constant(1e-4, 1)),
        "up": (torch.tensor([0.999, 0.6]), constant(0.4, 2)),  # 1.0 has another exponent
    }
    assert bit_precision(kept) == {
        "first": LayerBits(5, 2),  # mean of w^2/V is 169, twice its root 26; exponents -1 ... 2
        "empty": LayerBits(0, 0, 0),
        "last": LayerBits(10, 0),
        "up": LayerBits(2, 1),
    }
    published = bit_precision(kept, significand="published_code", exponent="published_code")
    assert published["first"] == LayerBits(5, 3)
    assert published["last"] == LayerBits(12, 3)
    assert published["last"].total == 16
    three = bit_precision(kept, exponent="published_three")
    assert [b.exponent for b in three.values()] == [3, 0, 3, 3]


# -- rounding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 5, 8])
def test_rounding_finds_the_nearest_representable_number(bits):
    fractions = [1 + k * 2.0 ** (1 - bits) for k in range(2 ** (bits - 1))]
    grid = torch.tensor([f * 2.0**e for e in range(-30, 5) for f in fractions]).double()
    w = torch.randn(500, generator=torch.Generator().manual_seed(bits), dtype=torch.float64)
    rounded = of.round_significand(w, bits)
    assert torch.equal((rounded - w).abs(), (w.abs()[:, None] - grid).abs().min(1).values)
    assert torch.equal(of.round_significand(grid, bits), grid)


@pytest.mark.parametrize("bits", [0, 5])
def test_published_fixed_point_rounding(bits):
    step = 2.0**-bits
    w = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    rounded = of.round_fixed_point(w, bits)
    assert torch.equal(rounded, torch.floor(w.double() / step + 0.5).float() * step)
    assert of.round_fixed_point(torch.tensor([-1.5 * step]), bits).item() == -step  # ties go up


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    nn.init.normal_(net[1].running_mean)
    return net.train()


def test_every_layer_its_own_rounding():
    net = network()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    out = quantised(net, {"0": 5, "3.weight": FixedPoint(6), "3.bias": Significand(2)})
    assert net.training
    assert not out.training
    assert torch.equal(out[0].weight, of.round_significand(before["0.weight"], 5))
    assert torch.equal(out[3].weight, of.round_fixed_point(before["3.weight"], 6))
    assert torch.equal(out[3].bias, of.round_significand(before["3.bias"], 2))
    for name in ("0.bias", "1.weight", "1.running_mean", "1.num_batches_tracked"):
        assert torch.equal(out.state_dict()[name], before[name])
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    wide = copy.deepcopy(net).double()
    wide[3].bias.data.mul_(math.pi)
    out = quantised(wide, 4)[3]
    assert torch.equal(out.weight, of.round_significand(wide[3].weight, 4))
    assert torch.equal(out.bias, wide[3].bias.float().double())
    assert not torch.equal(out.bias, wide[3].bias)
    same = quantised(net, {})
    assert all(torch.equal(v, before[k]) for k, v in same.state_dict().items())
    net[3].weight = nn.Parameter(torch.zeros(0, 3))  # which needs no bits
    assert quantised(net, {"3": 0})[3].weight.shape == (0, 3)


@pytest.mark.parametrize(
    ("bits", "bias", "weight"),
    [({"fc": 3}, 0.0, 1.0), (0, 0.0, 1.0), (5, 1e40, 1.0), (5, 0.0, math.nan)],
)
def test_what_cannot_be_rounded_is_refused(bits, bias, weight):
    net = network().double()
    net[3].bias.data[0], net[3].weight.data[0, 0] = bias, weight
    with pytest.raises(PyroccamError):
        quantised(net, bits)


@pytest.mark.parametrize("size", [1, 5, 32])
def test_clusters_are_a_fixed_point_of_k_means(size):
    w = torch.randn(3000, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    book, index = cluster(w, size)
    assert torch.equal(book, book.sort().values)
    assert torch.equal((w[:, None] - book).abs().argmin(1), index)  # each to its nearest
    for k in range(len(book)):  # and each centre the mean of its own
        assert w[index == k].mean() == pytest.approx(book[k].item(), abs=1e-12)
    if size > 1:
        grid = torch.linspace(w.min(), w.max(), size, dtype=w.dtype)
        assert (book[index] - w).square().sum() < (w[:, None] - grid).square().min(1).values.sum()
    w[w.abs() < 0.5] = 0
    out = Codebook(size)(w)  # keeps zeros
    assert torch.equal(out == 0, w == 0)
    assert len(out[out != 0].unique()) <= size
    assert not Codebook(size)(torch.zeros(3)).any()
    with pytest.raises(PyroccamError):
        cluster(w / 0, size)


# -- priced multiples of a step -------------------------------------------------------------------


def numbers_of(found, step):
    return (found.double() / step).round().long()


@pytest.mark.parametrize("price", [1e-4, 0.1, 0.4])
def test_normal_weights_cost_a_quarter_of_a_bit_more_than_they_have_to(price):
    """No code of a normal source takes fewer bits than Shannon's log2(1 / D) / 2 for a mean square
    error D; one number at a time, under its entropy, takes 0.2546 more at most, and that where the
    step is small (Gish and Pierce 1968: log2(pi e / 6) / 2)."""
    w = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, step = priced(w, torch.ones_like(w), price)
    distortion = float((w - found).square().mean())
    _, counts = numbers_of(found, step).unique(return_counts=True)
    p = counts.double() / counts.sum()
    over = float(-(p * p.log2()).sum()) + 0.5 * math.log2(distortion)
    assert 0 <= over < 0.27
    if price < 1e-3:
        assert over == pytest.approx(0.5 * math.log2(math.pi * math.e / 6), abs=0.01)
        assert step == pytest.approx(math.sqrt(12 * price), rel=1e-6)
        # What the step was derived from.
        assert distortion == pytest.approx(step**2 / 12, rel=0.02)


def cost(w, variances, numbers, step, price):
    """J, from its definition, one weight after another."""
    sizes = [abs(k) for k in numbers]
    total = 0.0
    for wi, v, k in zip(w.tolist(), variances.tolist(), numbers, strict=True):
        total += (wi - k * step) ** 2 / (2 * v)
    for size in sizes:
        total += price * (math.log(len(sizes) / sizes.count(size)) + (size > 0) * math.log(2))
    return total


@pytest.mark.parametrize("seed", range(6))
def test_no_other_numbers_are_much_cheaper(seed):
    """Of all numbers for the step that was found, by trying them."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(5, generator=g, dtype=torch.float64)
    variances = torch.rand(5, generator=g, dtype=torch.float64) + 0.05
    price = 0.3
    found, step = priced(w, variances, price)
    mine = cost(w, variances, numbers_of(found, step).tolist(), step, price)
    nearest = (w / step).round().long().tolist()
    assert mine <= cost(w, variances, nearest, step, price) + 1e-9
    most = max(map(abs, nearest))
    every = itertools.product(range(-most, most + 1), repeat=5)
    least = min(cost(w, variances, list(k), step, price) for k in every)
    assert least - 1e-9 <= mine < 1.15 * least


@pytest.mark.parametrize("seed", range(40))
def test_a_step_twice_as_large_is_no_cheaper(seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(5, generator=g, dtype=torch.float64)
    variances = torch.rand(5, generator=g, dtype=torch.float64) + 0.05
    found, step = priced(w, variances, 0.1)
    mine = cost(w, variances, numbers_of(found, step).tolist(), step, 0.1)
    other = cost(w, variances, numbers_of(w, 2 * step).tolist(), 2 * step, 0.1)
    assert mine <= other + 1e-9


def test_what_is_known_well_is_kept_and_what_is_not_is_zero():
    g = torch.Generator().manual_seed(0)
    w = torch.randn(40, 30, generator=g)
    w[:, :5] = 0.0
    variances = torch.full_like(w, 1e-4)
    variances[:20] = 25.0
    found, step = priced(w, variances, 0.1)
    assert found.dtype == w.dtype
    assert (found[:, :5] == 0).all()
    assert (found[:20] == 0).all()
    kept = found[20:, 5:] - w[20:, 5:]
    assert kept.square().mean().sqrt() < 0.05
    assert torch.equal(found, np.float32(step) * numbers_of(found, step).float())
    # Zeros beside them make a zero cheap: more weights become zero.
    w, v = torch.randn(3000, generator=g), torch.full((63_000,), 0.005)
    alone, _ = priced(w, v[:3000], 1.0)
    among, _ = priced(torch.cat([w, torch.zeros(60_000)]), v, 1.0)
    assert (among[:3000] == 0).sum() > (alone == 0).sum()


def wide():
    return nn.Sequential(
        nn.Linear(2, 60), nn.ReLU(), nn.Linear(60, 30), nn.ReLU(), nn.Linear(30, 3)
    )


def test_a_file_is_smaller_and_predicts_the_same():
    fit = fit_weights(priors.Normal(), wide(), blobs(), epochs=40)
    cut = inference.Thresholds(100.0)
    digits, steps = (
        inference.shrink(fit, cut=cut, code=code)
        for code in (inference.Digits(), inference.Steps())
    )
    assert steps.bytes < digits.bytes
    assert row_changes(fit.posterior.mean_network(), steps.net, fit).mean() <= 1e-3
    weights = [p for p in steps.net.parameters() if p.dim() == 2]
    for w, one in zip(weights, steps.report.bits.values(), strict=True):
        assert one.exponent == 0
        values = torch.cat([torch.zeros(1), w.detach().abs().flatten()]).unique()
        whole = values / values.diff().min()
        assert len(w.unique()) <= 2 ** (one.significand + 1) + 1
        torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-2)


def test_what_a_class_makes_again_is_not_rounded():
    """The angles of Llama are in no file: a new one with the rounded state predicts the same."""
    transformers = pytest.importorskip("transformers")
    size = {"vocab_size": 11, "hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**size, num_attention_heads=2, num_key_value_heads=2)
    net, again = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
    nn.init.normal_(net.model.norm.weight)
    small = quantised(net, rest_bits(net, lambda _: 0.0, 0.0))
    assert not torch.equal(small.model.norm.weight, net.model.norm.weight)
    again.load_state_dict(small.state_dict())
    ids = torch.arange(11)[None]
    assert torch.equal(again(ids).logits, small(ids).logits)


@pytest.mark.filterwarnings("ignore:These weights")
def test_a_table_of_numbers_has_few_digits():
    torch.manual_seed(0)
    x = torch.randint(0, 60, (120, 2))
    y = (x[:, 0] > x[:, 1]).long()
    data = Dataset.from_tensors(x, y, x, y, seed=0, ids=True)
    net = nn.Sequential(nn.Embedding(60, 16), nn.Flatten(), nn.Linear(32, 2))
    net[0].requires_grad_(False)
    fit = fit_weights(priors.Normal(), net, data, guide=guides.Delta, epochs=3)
    small = inference.shrink(fit, code=inference.Digits(rest=True))
    assert small.bytes < 60 * 16 * 4 / 2
    mean = fit.posterior.mean_network()
    found, expected = (
        inference.posterior.evaluate_net(n, fit.model, data, "val") for n in (small.net, mean)
    )
    assert found["nll"] == pytest.approx(expected["nll"], abs=2e-3)
