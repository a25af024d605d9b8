"""The toys of model selection follow their formulas."""

import math

import pytest
import torch
from pyroccam import data
from strange_files import reloaded

from experiments import sets
from experiments.sets.toys import polynomial_features


def looks_standard_normal(sample: torch.Tensor) -> None:
    """Mean and variance to four standard errors."""
    n = len(sample)
    assert abs(sample.mean()) < 4 / math.sqrt(n)
    assert abs(sample.square().mean() - 1) < 4 * math.sqrt(2 / n)


@pytest.mark.parametrize(("name", "rows"), [("polynomial", 40), ("regimes", 50)])
def test_all_rows_train_by_default_and_the_source_goes_round(name: str, rows: int) -> None:
    d = data.load(f"experiments.sets:{name}", seed=3)
    assert (d.task, d.N, len(d.x_val), len(d.x_test)) == ("regression", rows, 0, 1000)
    again = reloaded(d)
    assert torch.equal(d.x_train, again.x_train)
    assert torch.equal(d.y_test, again.y_test)
    assert not torch.equal(d.y_train, getattr(sets, name)(seed=4).y_train)
    assert (len(getattr(sets, name)(val_fraction=0.1).x_val)) == rows // 10


@pytest.mark.parametrize("name", ["polynomial", "regimes"])
def test_training_rows_do_not_depend_on_the_number_of_test_rows(name: str) -> None:
    few, many = (getattr(sets, name)(n_test=n, standardise=False) for n in (10, 500))
    assert torch.equal(few.x_train, many.x_train)
    assert torch.equal(few.y_train, many.y_train)
    assert torch.equal(few.x_test, many.x_test[:10])


@pytest.mark.parametrize("name", ["polynomial", "regimes"])
def test_raw_and_standardised_are_the_same_points(name: str) -> None:
    raw, scaled = (getattr(sets, name)(standardise=wish) for wish in (False, True))
    torch.testing.assert_close(scaled.y_test * scaled.y_std + scaled.y_mean, raw.y_test)
    close = {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(scaled.x_test * scaled.x_std + scaled.x_mean, raw.x_test, **close)
    assert raw.y_mean == 0
    assert raw.y_std == 1
    torch.testing.assert_close(scaled.y_train.std(correction=0), torch.tensor(1.0))


def test_polynomial_follows_its_formula() -> None:
    d = data.load(
        "experiments.sets:polynomial", n_train=2, n_test=4000, noise=0.5, standardise=False
    )
    x = d.x_test[:, 1]
    torch.testing.assert_close(d.x_test, polynomial_features(x))
    looks_standard_normal(x)
    looks_standard_normal((d.y_test[:, 0] - x) / 0.5)


def test_polynomial_features() -> None:
    x = torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64)
    expected = [[v**k for k in range(10)] + [math.sin(v), math.cos(v)] for v in x.tolist()]
    torch.testing.assert_close(polynomial_features(x), torch.tensor(expected, dtype=x.dtype))


def test_standardised_polynomial_has_a_dead_constant() -> None:
    d = sets.polynomial()
    assert not d.x_train[:, 0].any()
    assert not d.x_test[:, 0].any()


def test_regimes_follow_their_formula() -> None:
    d = sets.regimes(n_train=3000, noise=0.25, standardise=False)
    x = d.x_train
    assert x.shape == (3000, 11)
    assert abs(x[:, 0].mean()) < 1e-6
    assert abs(x[:, 0].std(correction=0) - 1) < 1e-6
    for k in range(1, 11):
        looks_standard_normal(x[:, k])
        # four standard errors of a correlation of nothing
        assert abs((x[:, k] * d.y_train[:, 0]).mean()) < 4 * d.y_train.std() / math.sqrt(3000)
    looks_standard_normal((d.y_train[:, 0] - x[:, 0].tanh()) / 0.25)
    looks_standard_normal((d.y_test[:, 0] - d.x_test[:, 0].tanh()) / 0.25)
