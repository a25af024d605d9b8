import math
from itertools import product

import numpy as np
import pytest
from pyroccam.inference.diagnostics.calibration import (
    Calibration,
    dispersion,
    holm,
    symmetry,
)
from scipy import stats


def uniform(n, columns, seed=0, dependence=0.0):
    """Uniform p whose columns depend on each other."""
    rng = np.random.default_rng(seed)
    z = math.sqrt(dependence) * rng.normal(size=(n, 1))
    return stats.norm.cdf(z + math.sqrt(1 - dependence) * rng.normal(size=(n, columns)))


def of_a_normal(n, factor=1.0, shift=0.0, columns=1, seed=0):
    """p of normal posteriors whose deviation is off by a factor, and whose mean by a shift."""
    z = np.random.default_rng(seed).normal(size=(n, columns))
    return stats.norm.cdf((z - shift) / factor)


def test_the_statistic_of_symmetry_is_a_distance_of_distribution_functions():
    p = of_a_normal(37, 0.8, 0.3, columns=2)
    found, _ = symmetry(p, flips=10)
    grid = np.sort(np.concatenate([p.ravel(), 1 - p.ravel(), np.linspace(0, 1, 2001)]))
    grid = grid[grid < 0.5] + 1e-13
    for k in range(2):
        below = (p[:, k, None] <= grid).mean(0)
        mirrored = (1 - p[:, k, None] <= grid).mean(0)
        assert found[k] == pytest.approx(np.abs(below - mirrored).max())


def test_the_p_value_of_symmetry_is_that_of_all_patterns_of_flips():
    p = np.array([[0.9], [0.8], [0.99], [0.3], [0.7], [0.6], [0.95], [0.55]])
    statistic, p_value = symmetry(p, flips=40_000)
    order = np.argsort(-np.abs(p[:, 0] - 0.5))
    observed = np.abs(np.cumsum(np.sign(p[order, 0] - 0.5))).max() / 8
    each = [np.abs(np.cumsum(flips)).max() / 8 for flips in product((-1, 1), repeat=8)]
    exact = np.mean([value >= observed - 1e-12 for value in each])
    assert statistic[0] == pytest.approx(observed)
    assert p_value[0] == pytest.approx(exact, abs=4 * math.sqrt(exact / 40_000))


@pytest.mark.parametrize("dependence", [0.0, 0.95])
def test_false_alarms_of_both_tests_are_as_rare_as_they_are_said_to_be(dependence):
    """Of any of four columns, at 5 %, however they depend on each other."""
    trials = 80
    biased = wrong = either = 0
    for seed in range(trials):
        p = uniform(40, 4, seed, dependence)
        bias = symmetry(p, flips=99, seed=seed)[1].min() <= 0.05
        width = holm(dispersion(p)[1]).min() <= 0.05
        biased, wrong, either = biased + bias, wrong + width, either + (bias or width)
    for count, rate in ((biased, 0.05), (wrong, 0.05), (either, 0.10)):
        assert stats.binom.sf(count - 1, trials, rate) > 1e-5, count / trials
    # the flips of a whole simulation keep the dependence, so that the level is used, not wasted
    assert stats.binom.cdf(biased, trials, 0.05) > 1e-4


def test_bias_and_width_are_told_apart():
    names = ("exact", "low", "high", "narrow", "wide")
    faults = [(1.0, 0.0), (1.0, -0.5), (1.0, 0.5), (0.6, 0.0), (1.7, 0.0)]
    columns = [of_a_normal(300, *fault, seed=k) for k, fault in enumerate(faults)]
    found = Calibration.of(names, np.concatenate(columns, 1))
    assert found.biased == [1, 2]
    assert found.misjudged[-2:] == [3, 4]  # and perhaps those with a bias, whose p are far from ½
    assert found.finding().verdict == "poor"
    assert Calibration.of(["a"], of_a_normal(300)).finding().verdict == "good"


def test_few_simulations_of_many_quantities_are_coarse():
    found = Calibration.of([f"w[{k}]" for k in range(20)], uniform(20, 20))
    assert found.finding().verdict == "doubtful"
