"""Bit precision: the published rules as published, the right ones against brute force."""

import math

import pytest
import torch
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.rounding import bits as of
from pyroccam.inference.rounding.bits import (
    LayerBits,
    bit_precision,
    exponent_bits,
    significand_bits,
)

RULES = ("relative", "deviation", "published_code")


def constant(value, count=10):
    return torch.full((count,), float(value))


# -- significand ------------------------------------------------------------------------------


def by_hand(spread):
    """The published count for one weight, written out."""
    return sum(2 * spread < 0.5 * 2.0 ** (1 - t) for t in range(1, 24))


@pytest.mark.parametrize(
    ("mean", "variance", "rule", "bits"),
    [
        (1, 0.05**2, "published_code", 7),  # it compares the variance
        (1, 0.05**2, "deviation", 3),
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

        def bound(bits, w=w, sd=sd):
            return (of.unit_roundoff(bits) * w / sd).square().mean().item()

        assert bound(t) <= 1 / 4
        assert t == 1 or bound(t - 1) > 1 / 4
        # What the bound promises: an eighth of a nat of posterior density per weight, on average.
        assert ((of.round_significand(w, t) - w) / sd).square().mean() / 2 <= 1 / 8


def test_only_the_relative_rule_does_not_care_about_units():
    w, sd = torch.tensor([0.3, -1.1, 0.7]), torch.tensor([0.01, 0.02, 0.05])
    changed = {}
    for rule in RULES:
        before = significand_bits(w, sd**2, rule=rule)
        changed[rule] = significand_bits(w / 64, (sd / 64) ** 2, rule=rule) - before
    # A step in the weights' own unit moves by 6 binary places; the variance rule counts it twice.
    assert changed == {"relative": 0, "deviation": 6, "published_code": 12}


# -- exponent -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("largest", "bits"), [(0.9, 1), (1.5, 2), (4.0, 3)])
def test_the_published_exponent_formula(largest, bits):
    assert of.exponent_bits_published_code(largest) == bits


@pytest.mark.parametrize("largest", [0.4, 0.5, 0.0])
def test_where_the_published_formula_has_no_value(largest):
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


def test_rounding_up_may_need_another_exponent():
    kept = {"a": (torch.tensor([0.999, 0.6]), constant(0.4, 2))}
    assert exponent_bits(kept["a"][0]) == 0
    assert bit_precision(kept)["a"] == LayerBits(2, 1)
    assert of.round_significand(kept["a"][0], 2).tolist() == [1.0, 0.5]


# -- layers ---------------------------------------------------------------------------------------


def test_bits_of_layers():
    kept = {
        "first": (torch.tensor([1.0, -2.0, 0.25]), constant(0.01, 3)),
        "empty": (torch.zeros(0), torch.zeros(0)),
        "last": (torch.tensor([4.0]), constant(1e-4, 1)),
    }
    assert bit_precision(kept) == {
        "first": LayerBits(5, 2),  # mean of w^2/V is 169, twice its root 26; exponents -1 ... 2
        "empty": LayerBits(0, 0, 0),
        "last": LayerBits(10, 0),
    }
    published = bit_precision(kept, significand="published_code", exponent="published_code")
    assert published["first"] == LayerBits(5, 3)
    assert published["last"] == LayerBits(12, 3)
    assert published["last"].total == 16
    three = bit_precision(kept, exponent="published_three")
    assert [b.exponent for b in three.values()] == [3, 0, 3]


# -- rounding -------------------------------------------------------------------------------------


def representable(bits, exponents):
    """All positive numbers of so many significand bits, by listing them."""
    fractions = [1 + k * 2.0 ** (1 - bits) for k in range(2 ** (bits - 1))]
    return torch.tensor([f * 2.0**e for e in exponents for f in fractions], dtype=torch.float64)


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 8])
def test_rounding_finds_the_nearest_representable_number(bits):
    grid = representable(bits, range(-30, 5))
    w = torch.randn(500, generator=torch.Generator().manual_seed(bits), dtype=torch.float64)
    rounded = of.round_significand(w, bits)
    nearest = (w.abs()[:, None] - grid).abs().min(1)
    assert torch.equal((rounded - w).abs(), nearest.values)
    assert torch.equal(of.round_significand(grid, bits), grid)


@pytest.mark.parametrize("bits", range(1, 25))
def test_rounding_errs_by_the_unit_roundoff_at_most(bits):
    w = torch.randn(2000, generator=torch.Generator().manual_seed(bits))
    error = (of.round_significand(w, bits).double() - w).abs() / w.abs()
    assert error.max() <= of.unit_roundoff(bits)
    if bits < 16:
        assert error.max() > 0.9 * of.unit_roundoff(bits) / (1 + of.unit_roundoff(bits))


def test_rounding_at_the_ends_of_float32():
    info = torch.finfo(torch.float32)
    edges = torch.tensor([info.max, -info.max, info.tiny, 1.4e-45, 0.0])
    assert torch.equal(of.round_significand(edges, 24), edges)
    with pytest.raises(PyroccamError):
        of.round_significand(edges, 5)  # rounds up to a power of two that float32 has not


@pytest.mark.parametrize("bits", [0, 1, 5, 9])
def test_published_fixed_point_rounding(bits):
    step = 2.0**-bits
    w = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    rounded = of.round_fixed_point(w, bits)
    assert torch.equal(rounded, torch.floor(w.double() / step + 0.5).float() * step)
    assert (rounded.double() - w).abs().max() <= step / 2
    assert of.round_fixed_point(torch.tensor([-1.5 * step]), bits).item() == -step  # ties go up
