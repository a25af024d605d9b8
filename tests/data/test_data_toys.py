"""The toys follow their formulas."""

import math

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data.sets.toys import wiggle


@pytest.mark.parametrize(("arms", "turns", "start"), [(2, 720.0, 0.0), (3, 360.0, 90.0)])
def test_spiral_without_noise_turned_back_is_t_cos_t_sin_t(
    arms: int, turns: float, start: float
) -> None:
    x, y = data.spirals(n=600, noise=0.0, turns=turns, start=start, arms=arms)
    point = x.double().numpy()
    t = np.hypot(point[:, 0], point[:, 1])  # the radius is the angle
    assert math.radians(start) - 1e-5 <= t.min()
    assert t.max() <= math.radians(start + turns) + 1e-5
    angle = np.arctan2(point[:, 1], point[:, 0]) - 2 * np.pi * y.numpy() / arms
    np.testing.assert_allclose(np.cos(angle - t), 1, atol=1e-5)


def test_spiral_radius_is_the_root_of_a_uniform_number() -> None:
    x, _ = data.spirals(n=4000, noise=0.0, turns=720.0)
    v = (x.double().norm(dim=1) / math.radians(720)).square().sort().values
    gap = (v - torch.arange(0.5, 4000).double() / 4000).abs().max()
    # Kolmogorov: P(sqrt(n) gap > 2.23) < 1e-4, of a fixed seed
    assert gap < 2.23 / math.sqrt(4000)


def test_spiral_noise_is_one_sided_uniform_and_turned_with_its_arm() -> None:
    # at turns = 0 a point is its noise alone
    x, y = data.spirals(n=4000, noise=0.2, turns=0.0)
    u = torch.where(y[:, None] == 1, -x, x).double() / 0.2
    assert u.min() > -1e-6
    assert u.max() < 1 + 1e-6
    # four standard errors of the moments of a uniform number
    assert (u.mean(0) - 1 / 2).abs().max() < 4 * math.sqrt(1 / 12 / 4000)
    assert (u.square().mean(0) - 1 / 3).abs().max() < 4 * math.sqrt(4 / 45 / 4000)
    assert abs((u[:, 0] * u[:, 1]).mean() - 1 / 4) < 4 * math.sqrt(7 / 144 / 4000)


def test_spiral_points_are_shuffled_and_shared_out() -> None:
    _, y = data.spirals(n=1000)
    assert y.bincount().tolist() == [500, 500]
    changes = int((y[1:] != y[:-1]).sum())
    assert abs(changes - 500) < 4 * math.sqrt(250)
    assert data.spirals(n=7, arms=3)[1].bincount().tolist() == [3, 2, 2]


def test_spirals_split() -> None:
    d = data.load("spirals", seed=0)
    assert (d.N, len(d.x_val), len(d.x_test)) == (180, 20, 1800)
    assert d.class_names == ("arm 0", "arm 1")
    x, y = data.spirals(seed=0)
    np.testing.assert_allclose(d.x_test * d.x_std + d.x_mean, x[200:], atol=1e-5)
    assert torch.equal(d.y_test, y[200:])
    assert data.load("spirals", n=500, train_fraction=0.5, val_fraction=0).N == 250


def test_wiggle_follows_its_formula() -> None:
    x, y = wiggle(n=3000, noise=0.25, seed=4)
    clean = torch.sin(math.pi * x) + 0.2 * torch.cos(4 * math.pi * x) - 0.3 * x
    noise = (y - clean) / 0.25
    z = (x - 5) / 2.5
    for sample in (noise, z):  # standard normal, to four standard errors
        assert abs(sample.mean()) < 4 / math.sqrt(3000)
        assert abs(sample.square().mean() - 1) < 4 * math.sqrt(2 / 3000)
    torch.testing.assert_close(wiggle(50, 0.0)[0], wiggle(50, 1.0)[0])


def test_wiggle_split() -> None:
    d = data.load("wiggle")
    assert (d.task, d.N, len(d.x_val), len(d.x_test), d.outputs) == ("regression", 216, 24, 60, 1)
