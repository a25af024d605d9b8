"""Weights as multiples of a step that are cheap to send: rate and error, and what is refused."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from fitting import blobs, fit_weights
from pyroccam import guides, inference
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.files.packed import write
from pyroccam.inference.rounding.pricing import priced
from pyroccam.inference.training.ordinary import row_changes
from pyroccam.models import priors
from torch import nn


def numbers_of(found, step):
    return (found.double() / step).round().long()


def bits(numbers):
    """The entropy of whole numbers."""
    _, counts = numbers.unique(return_counts=True)
    p = counts.double() / counts.sum()
    return float(-(p * p.log2()).sum())


@pytest.mark.parametrize("price", [1e-4, 1e-2, 0.1, 0.4])
def test_normal_weights_cost_a_quarter_of_a_bit_more_than_they_have_to(price):
    """No code of a normal source takes fewer bits than Shannon's log2(1 / D) / 2 for a mean square
    error D; one number at a time, under its entropy, takes 0.2546 more at most, and that where the
    step is small (Gish and Pierce 1968: log2(pi e / 6) / 2)."""
    w = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, step = priced(w, torch.ones_like(w), price)
    distortion = float((w - found).square().mean())
    over = bits(numbers_of(found, step)) + 0.5 * math.log2(distortion)
    assert 0 <= over < 0.27
    if price < 1e-3:
        assert over == pytest.approx(0.5 * math.log2(math.pi * math.e / 6), abs=0.01)
        assert step == pytest.approx(math.sqrt(12 * price), rel=1e-6)
        # What the step was derived from.
        assert distortion == pytest.approx(step**2 / 12, rel=0.02)


def cost(w, variances, numbers, step, price, zeros=0):
    """J, from its definition, one weight after another."""
    sizes = [abs(k) for k in numbers] + [0] * zeros
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


def test_what_is_known_well_is_kept_and_what_is_not_is_zero():
    g = torch.Generator().manual_seed(0)
    w = torch.randn(40, 30, generator=g)
    w[:, :5] = 0.0
    variances = torch.full_like(w, 1e-4)
    variances[:20] = 25.0
    found, step = priced(w, variances, 0.1)
    assert found.shape == w.shape
    assert found.dtype == w.dtype
    assert (found[:, :5] == 0).all()
    assert (found[:20] == 0).all()
    kept = found[20:, 5:] - w[20:, 5:]
    assert kept.square().mean().sqrt() < 0.05
    assert torch.equal(found, np.float32(step) * numbers_of(found, step).float())


def test_a_higher_price_takes_fewer_bits_and_errs_more():
    g = torch.Generator().manual_seed(1)
    w = torch.randn(3000, generator=g)
    variances = torch.rand(3000, generator=g) * 0.01 + 1e-3
    rows = []
    for price in (1e-3, 1e-2, 1e-1, 1.0):
        found, step = priced(w, variances, price)
        rows.append((bits(numbers_of(found, step)), -float((w - found).square().mean())))
    assert rows == sorted(rows, reverse=True)
    # Zeros beside them make a zero cheap: more weights become zero.
    alone, _ = priced(w, variances, 1.0)
    among, _ = priced(torch.cat([w, torch.zeros(60_000)]), torch.ones(63_000) * 0.005, 1.0)
    assert (among[:3000] == 0).sum() > (alone == 0).sum()


# -- of a fit ---------------------------------------------------------------------------------


def wide():
    return nn.Sequential(
        nn.Linear(2, 60), nn.ReLU(), nn.Linear(60, 30), nn.ReLU(), nn.Linear(30, 3)
    )


def test_a_file_is_smaller_and_predicts_the_same(tmp_path):
    rows = blobs()
    fit = fit_weights(priors.Normal(), wide(), rows, epochs=40)
    sizes = {}
    for rule, code in (("relative", inference.Digits()), ("rate", inference.Steps())):
        small = inference.shrink(fit, cut=inference.Thresholds(100.0), code=code)
        write(small.net, tmp_path / f"{rule}.pocc")
        sizes[rule] = (tmp_path / f"{rule}.pocc").stat().st_size
        change = row_changes(fit.posterior.mean_network(), small.net, fit).mean()
        if rule == "rate":
            assert change <= 1e-3
            weights = [p for p in small.net.parameters() if p.dim() == 2]
            for w, one in zip(weights, small.report.bits.values(), strict=True):
                assert one.exponent == 0
                values = torch.cat([torch.zeros(1), w.detach().abs().flatten()]).unique()
                whole = values / values.diff().min()
                assert len(w.unique()) <= 2 ** (one.significand + 1) + 1
                torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-2)
    assert sizes["rate"] < sizes["relative"]


def test_a_network_that_says_nothing_keeps_a_weight():
    rows = blobs()
    rows = dataclasses.replace(rows, y_train=rows.y_train.flip(0))
    fit = fit_weights(priors.Normal(), wide(), rows, epochs=1, kl_weight=20.0)
    small = inference.shrink(fit, cut=inference.Thresholds(1e9), code=inference.Steps())
    assert small.report.rates.kept > 0
    assert any(bool(p.any()) for p in small.net.parameters() if p.dim() == 2)


def test_what_it_needs_is_said_before_anything_is_cut():
    rows = blobs()
    point = fit_weights(priors.Normal(), wide(), rows, guide=guides.Delta, epochs=1)
    with pytest.raises(PyroccamError):
        inference.Digits("rate")
    with pytest.raises(PyroccamError):
        inference.shrink(point, code=inference.Steps())
    none = fit_weights(priors.Normal(), wide(), blobs(val_fraction=0.0), epochs=1)
    with pytest.raises(PyroccamError):
        inference.shrink(none, code=inference.Steps())
