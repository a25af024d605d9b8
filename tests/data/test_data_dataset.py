"""Dataset.from_tensors: what it computes, and what it says of data it cannot use."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import Dataset
from pyroccam.data.errors import PyroccamError
from pyroccam.data.splits import generator
from torch import Tensor


def table(rows: int = 60, seed: int = 0) -> dict[str, Any]:
    """A table with two features of very different size and three classes, 1 : 2 : 3."""
    random = np.random.default_rng(seed)
    return {
        "x_train": random.normal([5.0, -1000.0], [2.0, 30.0], (rows, 2)),
        "y_train": random.permutation(np.resize([0, 1, 1, 2, 2, 2], rows)),
        "x_test": random.normal([50.0, 900.0], [9.0, 1.0], (12, 2)),
        "y_test": np.resize([0, 1, 2], 12),
    }


def test_shapes_types_and_counts() -> None:
    d = Dataset.from_tensors(**table())
    assert (d.task, d.classes, d.outputs, d.N, d.input_shape) == ("classification", 3, 3, 54, (2,))
    for s, rows in (("train", 54), ("val", 6), ("test", 12)):
        x, y = d.split(s)
        assert (x.shape, x.dtype) == ((rows, 2), torch.float32)
        assert (y.shape, y.dtype) == ((rows,), torch.int64)
    assert d.y_mean.tolist() == [0.0]
    assert d.y_std.tolist() == [1.0]
    assert "54 train, 6 val, 12 test" in repr(d)
    json.dumps(d.source)


@pytest.mark.parametrize("shape", [(3, 7), (3, 4, 5), (2, 3, 4, 5)])
def test_sequences_images_and_volumes(shape: tuple[int, ...]) -> None:
    """Each channel, dimension 1, has statistics of its own."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, *shape)) * 5.0 + 39.0
    y = random.integers(0, 2, 40)
    d = Dataset.from_tensors(x[:30], y[:30], x[30:], y[30:], val_fraction=0.0)
    assert d.input_shape == shape
    over = (0, *range(2, x.ndim))
    np.testing.assert_allclose(d.x_mean, x[:30].mean(over), rtol=1e-5)
    np.testing.assert_allclose(d.x_train.std(over, correction=0), np.ones(shape[0]), rtol=1e-4)
    again = d.standardised_as(d)
    torch.testing.assert_close(again.x_test, d.x_test, rtol=1e-4, atol=1e-4)


def test_double_precision() -> None:
    d = Dataset.from_tensors(**table()).to(dtype=torch.float64)
    assert (d.x_train.dtype, d.x_mean.dtype, d.y_train.dtype) == (
        torch.float64, torch.float64, torch.int64,
    )  # fmt: skip
    assert d.to("cpu").x_test.dtype == torch.float64


def test_statistics_are_those_of_the_training_rows_that_are_left() -> None:
    given = table()
    d = Dataset.from_tensors(**given, val_fraction=0.25, seed=3)
    raw = d.x_train.double() * d.x_std.double() + d.x_mean.double()
    # neither the test rows (50, 900) nor the validation rows went into the statistics
    kept = np.array([row for row in given["x_train"] if np.isclose(raw, row, 1e-4).all(1).any()])
    assert len(kept) == 45
    np.testing.assert_allclose(d.x_mean, kept.mean(0), rtol=1e-6)
    np.testing.assert_allclose(d.x_std, kept.std(0), rtol=1e-6)
    torch.testing.assert_close(d.x_train.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(d.x_train.std(0, correction=0), torch.ones(2))
    assert d.x_test.mean() > 10  # scaled as the training rows were, not by itself
    np.testing.assert_allclose(
        d.x_test, (given["x_test"] - kept.mean(0)) / kept.std(0), rtol=1e-4, atol=1e-4
    )


@pytest.mark.filterwarnings("ignore::pyroccam.data.DataWarning")
def test_other_test_rows_change_nothing_in_training() -> None:
    given = table()
    a = Dataset.from_tensors(**given)
    b = Dataset.from_tensors(**{**given, "x_test": given["x_test"] * 1e3})
    assert torch.equal(a.x_train, b.x_train)
    assert torch.equal(a.x_mean, b.x_mean)


def test_training_and_validation_rows_are_disjoint_and_all_there() -> None:
    given = table()
    given["x_train"] = np.arange(120.0).reshape(60, 2)
    d = Dataset.from_tensors(**given, standardise=False)
    assert set(d.x_train[:, 0].tolist()) | set(d.x_val[:, 0].tolist()) == set(range(0, 120, 2))
    assert not set(d.x_train[:, 0].tolist()) & set(d.x_val[:, 0].tolist())
    for x, y in (d.split("train"), d.split("val")):  # labels stay with their rows
        assert y.tolist() == given["y_train"][(x[:, 0] / 2).long()].tolist()
    assert d.x_train[:, 0].diff().min() > 0  # order is kept


def test_validation_keeps_the_share_of_each_class_and_a_rare_one_in_training() -> None:
    d = Dataset.from_tensors(**table(rows=120), val_fraction=0.2)
    assert d.y_val.bincount().tolist() == [4, 8, 12]
    assert d.y_train.bincount().tolist() == [16, 32, 48]
    given = table() | {"y_train": np.array([0] + [1] * 59), "y_test": np.ones(12, int)}
    for seed in range(5):
        d = Dataset.from_tensors(**given, val_fraction=0.5, seed=seed)
        assert d.y_train.bincount()[0] == 1
        assert len(d.y_val) == 30


def test_validation_takes_whole_groups() -> None:
    given = table() | {"x_train": np.arange(120.0).reshape(60, 2)}
    names = np.array([f"person {k}" for k in range(6)])
    groups = np.repeat(names, [4, 8, 9, 10, 11, 18])
    sizes = set()
    for seed in range(20):
        asked = given | {"val_fraction": 0.3, "seed": seed, "standardise": False}
        d = Dataset.from_tensors(**asked, groups=groups)
        rows = {s: (d.split(s)[0][:, 0] / 2).long().numpy() for s in ("train", "val")}
        assert sorted([*rows["train"], *rows["val"]]) == list(range(60))
        assert not set(groups[rows["train"]]) & set(groups[rows["val"]])
        assert d.x_train[:, 0].diff().min() > 0  # order is kept
        # no more than half of the largest group away from the 18 rows asked for
        assert abs(len(d.x_val) - 18) <= 9
        sizes.add(len(d.x_val))
        assert torch.equal(d.x_val, Dataset.from_tensors(**asked, groups=groups.tolist()).x_val)
    assert len(sizes) > 3


def test_groups_leave_one_for_training_and_may_be_idle() -> None:
    given = table()
    groups = torch.tensor([0] * 55 + [1] * 5)
    picked = [len(Dataset.from_tensors(**given, groups=groups, seed=s).x_val) for s in range(9)]
    assert set(picked) == {5, 55}
    assert Dataset.from_tensors(**given, groups=[7] * 60, val_fraction=0).N == 60


@pytest.mark.parametrize(
    "groups",
    [
        [7] * 60,
        [1, 2],
        np.zeros((60, 1)),
        [0] * 59 + [1],
    ],
)
def test_groups_that_cannot_be_used(groups: Any) -> None:
    # a seed with which the group of one row is the one that is left
    seed = next(s for s in range(9) if torch.randperm(2, generator=generator(s, "val"))[1] == 1)
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**table(), groups=groups, seed=seed)


def test_seed() -> None:
    state = torch.get_rng_state()
    a, b, c = (Dataset.from_tensors(**table(), seed=s) for s in (0, 0, 1))
    assert torch.equal(a.x_val, b.x_val)
    assert not torch.equal(a.x_val, c.x_val)
    assert torch.equal(state, torch.get_rng_state())


def test_no_validation_rows() -> None:
    d = Dataset.from_tensors(**table(), val_fraction=0)
    assert (d.N, d.x_val.shape, d.y_val.shape) == (60, (0, 2), (0,))


def test_regression_targets_are_standardised_and_come_back() -> None:
    given = table()
    y = np.random.default_rng(1).normal(300.0, 7.0, 60)
    x, x_test = given["x_train"], given["x_test"]
    d = Dataset.from_tensors(x, y, x_test, x_test[:, 0], val_fraction=0)
    assert (d.task, d.classes, d.outputs) == ("regression", None, 1)
    assert (d.y_train.shape, d.y_train.dtype) == ((60, 1), torch.float32)
    np.testing.assert_allclose(d.y_mean, [y.mean()], rtol=1e-6)
    np.testing.assert_allclose(d.y_std, [y.std()], rtol=1e-6)
    np.testing.assert_allclose((d.y_train * d.y_std + d.y_mean)[:, 0], y, rtol=1e-6)


def test_two_targets_and_whole_numbers_as_regression() -> None:
    x = torch.arange(20.0)[:, None]
    y = torch.arange(40).reshape(20, 2)
    d = Dataset.from_tensors(x, y, x, torch.zeros(20, 2), task="regression")
    assert d.outputs == 2
    assert d.y_std.shape == (2,)


@pytest.mark.parametrize("value", [0.0, 0.998, 0.1 + 0.2, -1e9])
def test_constant_features_get_std_1(value: float) -> None:
    x = np.full((3001, 1), value)  # enough rows for the mean to be off by rounding
    d = Dataset.from_tensors(x, np.arange(3001.0), x, np.arange(3001.0))
    assert d.x_std.tolist() == [1.0]
    assert d.x_train.abs().max() < 1e-6


def test_images_are_scaled_by_channel() -> None:
    x = torch.randint(0, 255, (30, 3, 4, 5), dtype=torch.uint8)
    x[:, 1] = 7
    y = torch.arange(30) % 2
    d = Dataset.from_tensors(x, y, x, y, val_fraction=0)
    assert d.x_mean.shape == (3,)
    np.testing.assert_allclose(d.x_mean, x.double().mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(d.x_std[0], x[:, 0].double().std(correction=0), rtol=1e-6)
    assert d.x_std[1] == 1
    assert d.flattened().input_shape == (60,)
    assert torch.equal(d.flattened().x_train.reshape(-1, 3, 4, 5), d.x_train)


def test_all_rows_are_those_of_training_and_validation_in_their_order_and_scale() -> None:
    x = torch.randn(50, 3)
    d = Dataset.from_tensors(x, x[:, :1], x[:5], x[:5, :1], val_fraction=0.2)
    whole = d.all_rows()
    assert (d.N, whole.N, len(whole.x_val), len(whole.y_val)) == (40, 50, 0, 0)
    assert torch.equal(whole.x_train[:40], d.x_train)
    assert torch.equal(whole.x_train[40:], d.x_val)
    assert torch.equal(whole.y_train[40:], d.y_val)
    assert torch.equal(whole.x_test, d.x_test)
    assert torch.equal(whole.x_mean, d.x_mean)
    original = torch.cat([whole.x_train, whole.y_train], 1)[:, 3:] * d.y_std + d.y_mean
    torch.testing.assert_close(original.sort(0).values, x[:, :1].sort(0).values)


def test_more_rows_than_one_block() -> None:
    x = np.random.default_rng(0).normal(1e6, 1.0, (5000, 2))  # a one-pass variance would be lost
    d = Dataset.from_tensors(x, x[:, 0], x[:5], x[:5, 0], val_fraction=0)
    np.testing.assert_allclose(d.x_std, x.std(0), rtol=1e-6)
    np.testing.assert_allclose(d.x_train, (x - x.mean(0)) / x.std(0), atol=1e-6)


def test_nothing_given_is_changed_or_shared() -> None:
    x, y = torch.randn(20, 2), torch.arange(20) % 2
    before = x.clone()
    for scale in (True, False):
        d = Dataset.from_tensors(x, y, x, y, standardise=scale)
        for t in (d.x_train, d.x_test):
            t.zero_()
        d.y_test.zero_()
        assert torch.equal(x, before)
        assert y.sum() == 10


def test_numpy_oddities() -> None:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(">f8")[:, ::-2]
    x.flags.writeable = False
    y = (np.arange(20) % 2).astype(np.uint16)
    d = Dataset.from_tensors(x, y, x.tolist(), y == 1)
    assert d.classes == 2
    np.testing.assert_allclose(d.x_test * d.x_std + d.x_mean, x, rtol=1e-5, atol=1e-6)


def test_to_moves_every_tensor() -> None:
    d = Dataset.from_tensors(**table()).to("meta")
    assert {t.device.type for t in vars(d).values() if isinstance(t, torch.Tensor)} == {"meta"}
    assert d.name == "tensors"


def test_classes_may_be_declared() -> None:
    given = table()
    given["y_test"] = np.full(12, 4)
    assert Dataset.from_tensors(**given, classes=6).outputs == 6
    d = Dataset.from_tensors(**given, class_names=list("abcde"))
    assert (d.classes, d.class_names) == (5, tuple("abcde"))


def at(place: tuple[int, ...], value: float) -> Callable[[np.ndarray], np.ndarray]:
    """A way to spoil one value."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(float) if value != int(value or 0) else array.copy()
        array[place] = value
        return array

    return change


def spoilt(**change: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    """The table with arrays as something makes of them."""
    given = table()
    return given | {key: make(given[key]) for key, make in change.items()}


def two_nans(x: np.ndarray) -> np.ndarray:
    x[7, 1] = x[9, 0] = np.nan
    return x


def targets(train: Tensor, test: Tensor, x: Tensor = torch.ones(8, 2)) -> dict[str, Any]:  # noqa: B008
    return {"x_train": x, "y_train": train, "x_test": x, "y_test": test}


IMAGES, INFINITE = torch.zeros(8, 1, 3, 3), torch.zeros(8)
IMAGES[2, 0, 1, 2], INFINITE[5] = torch.nan, torch.inf


@pytest.mark.parametrize(
    "given",
    [
        spoilt(x_train=two_nans),
        spoilt(x_test=lambda x: x * [1, 1e300]),
        spoilt(x_train=lambda x: x[:, 0]),
        spoilt(x_train=lambda x: x.reshape(60, 1, 2)),
        spoilt(x_train=lambda x: x[:50]),
        spoilt(y_test=lambda y: y[:5]),
        spoilt(x_train=lambda x: x[:0]),
        spoilt(x_test=lambda x: x[:0]),
        spoilt(x_test=lambda x: x[:, :1]),
        spoilt(y_train=at((4,), -1)),
        spoilt(y_test=at((3,), 5)),
        spoilt(y_train=lambda y: y + 1),
        spoilt(y_train=at((0,), 10**12)),
        spoilt(y_train=lambda y: y * 0),
        spoilt(y_train=lambda y: np.eye(3, dtype=int)[y]),
        spoilt(y_train=lambda y: y[:, None]),
        spoilt(y_train=lambda y: y.astype(str)),
        spoilt(x_train=lambda x: x + 1j),
        spoilt(x_train=lambda x: [[1.0], [1.0, 2.0]]),
        dict(zip(table(), ([[1.0]], [1.0]) * 2, strict=True)),
        targets(torch.zeros(8, 1, 1), torch.zeros(8)),
        targets(torch.zeros(8), torch.zeros(8, 2)),
        targets(INFINITE, torch.zeros(8)),
        targets(torch.arange(8) % 2, torch.arange(8) % 2, IMAGES),
    ],
)
def test_arrays_that_cannot_be_used(given: dict[str, Any]) -> None:
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**given)


@pytest.mark.parametrize(
    "options",
    [
        {"val_fraction": 0.99},
        {"class_names": ["a", "b"]},
        {"class_names": ["a", "b"], "classes": 3},
        {"class_names": ["a"]},
        {"task": "regression", "classes": 3},
    ],
)
def test_options_that_do_not_fit_the_rows(options: dict[str, Any]) -> None:
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**table(), **options)


def test_labels_that_are_no_whole_numbers() -> None:
    given = table()
    given["y_train"] = given["y_train"].astype(float)
    assert Dataset.from_tensors(**given, task="classification").classes == 3
    given["y_train"][8] = 0.5
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**given, task="classification")


def test_what_is_no_split_and_tensors_that_cannot_be_loaded_again() -> None:
    d = Dataset.from_tensors(**table())
    with pytest.raises(PyroccamError):
        d.split("dev")
    with pytest.raises(PyroccamError):
        data.load(**d.source)


def rows_of(n: int, seed: int) -> dict[str, Any]:
    x = np.random.default_rng(seed).normal(size=(n, 4))
    return {"x_train": x[: n // 2], "y_train": x[: n // 2, 0], "x_test": x[n // 2 :],
            "y_test": x[n // 2 :, 0]}  # fmt: skip


@pytest.mark.parametrize("rows", [60, 120, 2000])
@pytest.mark.parametrize(
    ("part", "cells"),
    [("x_train", [9999.0]), ("x_train", [9999.0, -1e30]), ("x_test", [1e6]), ("y_train", [1e6]),
     ("x_train", [-99.0] * 3)],
)  # fmt: skip
def test_cells_far_from_all_others_are_named(rows: int, part: str, cells: list[float]) -> None:
    given = rows_of(rows, seed=1)
    given[part] = given[part].copy()
    given[part].reshape(len(given[part]), -1)[3 : 3 + len(cells), -1] = cells
    with pytest.warns(
        data.DataWarning, match=rf"{cells[0]:g} in row 3, .*of {part}".replace("+", r"\+")
    ) as said:
        Dataset.from_tensors(**given)
    assert str(said[0].message).count(" in row ") == len(cells)


def test_columns_of_few_values_and_heavy_tails_are_healthy() -> None:
    r = np.random.default_rng(0)
    n = 600
    x = np.stack([
        r.random(n) < 0.02,  # rare
        np.where(np.arange(n) == 5, 255, 0),  # once
        np.where(r.random(n) < 0.03, r.integers(1, 17, n), 0),  # pixels of an edge
        np.exp(1.5 * r.normal(size=n)),
        np.minimum(r.exponential(10, n), 50),  # capped
        np.where(r.random(n) < 0.3, 0, r.poisson(20, n)),
        np.full(n, 7.0),
    ], 1).astype(float)  # fmt: skip
    given = {"x_train": x[:400], "y_train": x[:400, 3], "x_test": x[400:], "y_test": x[400:, 3]}
    assert Dataset.from_tensors(**given).N == 360
    given["x_train"][7, 2] = 9999  # among mostly zeros
    with pytest.warns(data.DataWarning, match="9999 in row 7, column 2 of x_train"):
        Dataset.from_tensors(**given)


def test_masks_are_not_lost() -> None:
    given = rows_of(60, seed=0)
    for part in ("x_train", "y_test"):
        hidden = np.ma.masked_greater(given[part], 1)
        with pytest.raises(PyroccamError):
            Dataset.from_tensors(**{**given, part: hidden})
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**{**given, "x_train": [*np.ma.masked_greater(given["x_train"], 1)]})
    assert Dataset.from_tensors(**{**given, "x_train": np.ma.array(given["x_train"])}).N == 27
    names = np.ma.array(["a", "b"] * 15, mask=[True] + [False] * 29)
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**{**given, "y_train": names, "y_test": ["a"] * 30})


def test_a_class_of_test_rows_alone_is_refused_by_number_and_by_name() -> None:
    given = rows_of(60, seed=0)
    train, test = np.arange(30) % 2, np.arange(30) % 3
    for of in (np.asarray, lambda y: np.array(["u", "v", "w"])[y]):
        with pytest.raises(PyroccamError):
            Dataset.from_tensors(**{**given, "y_train": of(train), "y_test": of(test)})


def test_targets_are_of_one_kind_in_all_splits() -> None:
    given = rows_of(60, seed=0)
    given["y_train"] = np.arange(30) % 3
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**given)
    assert Dataset.from_tensors(**given, task="regression").outputs == 1


def test_validation_rows_of_their_own() -> None:
    given = rows_of(60, seed=0)
    extra = rows_of(20, seed=1)
    val = {"x_val": extra["x_train"], "y_val": extra["y_train"]}
    d = Dataset.from_tensors(**given, **val, weights=np.r_[np.ones(15), np.full(15, 3.0)])
    assert d.counts == {"train": 30, "val": 10, "test": 30}
    np.testing.assert_allclose(d.scaling.x_mean, given["x_train"].mean(0))
    assert d.val_weights is not None
    assert torch.equal(d.val_weights, torch.full((10,), 0.5))
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**given, **{**val, "x_val": val["x_val"][:, :2]})


def test_rows_of_a_prediction_have_the_channels_of_training() -> None:
    x = torch.rand(9, 1, 4, 4)
    d = Dataset.from_tensors(x, torch.arange(9) % 2, x, torch.arange(9) % 2)
    assert d.packed(torch.rand(2, 1, 6, 6)).shape == (2, 1, 6, 6)
    for other in (torch.rand(2, 3, 4, 4), torch.rand(1, 4, 4)):
        with pytest.raises(PyroccamError):
            d.packed(other)


def test_ids_of_a_type_that_numpy_has_not_are_named():
    x = torch.ones(6, 2, dtype=torch.bfloat16)
    x[3, 1] = -1.0
    with pytest.raises(data.DataError, match="holds -1 in row 3"):
        Dataset.from_tensors(x, torch.arange(6) % 2, x[:2], torch.tensor([0, 1]), ids=True)
