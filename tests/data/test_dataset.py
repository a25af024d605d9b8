"""Dataset.from_tensors: what it computes, and what it refuses."""

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import Dataset, PyroccamError
from several import of, pictured
from strange_files import reloaded


def table(rows=60, seed=0):
    """A table with two features of very different size and three classes, 1 : 2 : 3."""
    random = np.random.default_rng(seed)
    return {
        "x_train": random.normal([5.0, -1000.0], [2.0, 30.0], (rows, 2)),
        "y_train": random.permutation(np.resize([0, 1, 1, 2, 2, 2], rows)),
        "x_test": random.normal([50.0, 900.0], [9.0, 1.0], (12, 2)),
        "y_test": np.resize([0, 1, 2], 12),
    }


@pytest.mark.parametrize("shape", [(3, 7), (3, 4, 5), (2, 3, 4, 5)])
def test_sequences_images_and_volumes(shape):
    """Each channel, dimension 1, has statistics of its own."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, *shape)) * 5.0 + 39.0
    y = random.integers(0, 2, 40)
    d = Dataset.from_tensors(x[:30], y[:30], x[30:], y[30:], val_fraction=0.0)
    assert d.input_shape == shape
    over = (0, *range(2, x.ndim))
    np.testing.assert_allclose(d.x_mean, x[:30].mean(over), rtol=1e-5)
    np.testing.assert_allclose(d.x_train.std(over, correction=0), np.ones(shape[0]), rtol=1e-4)
    flat = d.flattened()
    assert flat.input_shape == (int(np.prod(shape)),)
    assert torch.equal(flat.x_train.reshape(-1, *shape), d.x_train)


def test_statistics_are_those_of_the_training_rows_that_are_left():
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


def test_training_and_validation_rows_are_disjoint_and_all_there():
    given, state = table(), torch.get_rng_state()
    given["x_train"] = np.arange(120.0).reshape(60, 2)
    d = Dataset.from_tensors(**given, standardise=False)
    assert set(d.x_train[:, 0].tolist()) | set(d.x_val[:, 0].tolist()) == set(range(0, 120, 2))
    assert not set(d.x_train[:, 0].tolist()) & set(d.x_val[:, 0].tolist())
    for x, y in (d.split("train"), d.split("val")):  # labels stay with their rows
        assert y.tolist() == given["y_train"][(x[:, 0] / 2).long()].tolist()
    assert d.x_train[:, 0].diff().min() > 0  # order is kept
    assert torch.equal(state, torch.get_rng_state())


def test_validation_keeps_the_share_of_each_class_and_a_rare_one_in_training():
    d = Dataset.from_tensors(**table(rows=120), val_fraction=0.2)
    assert d.y_val.bincount().tolist() == [4, 8, 12]
    assert d.y_train.bincount().tolist() == [16, 32, 48]
    given = table() | {"y_train": np.array([0] + [1] * 59), "y_test": np.ones(12, int)}
    for seed in range(5):
        d = Dataset.from_tensors(**given, val_fraction=0.5, seed=seed)
        assert d.y_train.bincount()[0] == 1
        assert len(d.y_val) == 30


def test_validation_takes_whole_groups():
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


@pytest.mark.parametrize("value", [0.0, 0.998, 0.1 + 0.2, -1e9])
def test_constant_features_get_std_1(value):
    x = np.full((3001, 1), value)  # enough rows for the mean to be off by rounding
    d = Dataset.from_tensors(x, np.arange(3001.0), x, np.arange(3001.0))
    assert d.x_std.tolist() == [1.0]
    assert d.x_train.abs().max() < 1e-6


def test_all_rows_are_those_of_training_and_validation_in_their_order_and_scale():
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


def test_nothing_given_is_changed_or_shared():
    x, y = torch.randn(20, 2), torch.arange(20) % 2
    before = x.clone()
    for scale in (True, False):
        d = Dataset.from_tensors(x, y, x, y, standardise=scale)
        for t in (d.x_train, d.x_test):
            t.zero_()
        d.y_test.zero_()
        assert torch.equal(x, before)
        assert y.sum() == 10


def spoilt(**change):
    """The table with arrays as something makes of them."""
    given = table()
    return given | {key: make(given[key]) for key, make in change.items()}


def put(value, *place):
    """A way to spoil one value."""

    def change(array):
        array = array.astype(np.result_type(array, type(value)))
        array[place] = value
        return array

    return change


NAMES = np.array(["ant", "bee", "cow"])


@pytest.mark.parametrize(
    "given",
    [
        spoilt(x_train=put(np.nan, 7, 1)),
        spoilt(x_test=lambda x: x * [1, 1e300]),
        spoilt(x_train=lambda x: x[:, 0]),
        spoilt(x_train=lambda x: x[:50]),
        spoilt(x_train=lambda x: x[:0]),
        spoilt(y_train=put(-1, 4)),
        spoilt(y_test=put(5, 3)),
        spoilt(y_train=put(10**12, 0)),
        spoilt(y_train=lambda y: y * 0),
        spoilt(y_train=lambda y: np.eye(3, dtype=int)[y]),
        spoilt(y_train=lambda y: y.astype(str)),
        spoilt(y_test=lambda y: y / 7),
        spoilt(x_train=lambda x: [[1.0], [1.0, 2.0]]),
        spoilt(x_train=lambda x: [*np.ma.masked_greater(x, 5.0)]),
        spoilt(y_train=lambda y: np.ma.masked_greater(NAMES[y], "b"), y_test=lambda y: NAMES[y]),
        spoilt(y_train=lambda y: NAMES[y % 2], y_test=lambda y: NAMES[y]),
        spoilt(y_train=lambda y: np.full(60, "ant"), y_test=lambda y: np.full(12, "ant")),
        spoilt(y_train=lambda y: y * 1.0) | {"task": "classification"} | {"y_test": [0.5] * 12},
        table() | {"val_fraction": 0.99},
        table() | {"class_names": ["a", "b"], "classes": 3},
        table() | {"task": "regression", "classes": 3},
        table() | {"columns": ["a"]},
        table() | {"ids": True},
        table() | {"groups": [7] * 60},
        table() | {"groups": [1, 2]},
        table() | {"x_val": np.ones((3, 5)), "y_val": [0, 1, 2]},
    ],
)
def test_what_cannot_be_used(given):
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**given)


def rows_of(n, seed):
    x = np.random.default_rng(seed).normal(size=(n, 4))
    return {"x_train": x[: n // 2], "y_train": x[: n // 2, 0], "x_test": x[n // 2 :],
            "y_test": x[n // 2 :, 0]}  # fmt: skip


@pytest.mark.parametrize("rows", [60, 2000])
@pytest.mark.parametrize(
    ("part", "cells"), [("x_train", [9999.0, -1e30]), ("x_test", [1e6]), ("y_train", [1e6])]
)
def test_cells_far_from_all_others_are_named(rows, part, cells):
    given = rows_of(rows, seed=1)
    given[part] = given[part].copy()
    given[part].reshape(len(given[part]), -1)[3 : 3 + len(cells), -1] = cells
    with pytest.warns(data.DataWarning) as said:
        Dataset.from_tensors(**given)
    for k, cell in enumerate(cells):
        assert f"{cell:g} in row {3 + k}" in str(said[0].message)


def test_columns_of_few_values_and_heavy_tails_are_healthy():
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


def test_validation_rows_of_their_own():
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


def test_rows_of_a_prediction_have_the_channels_of_training():
    x = torch.rand(9, 1, 4, 4)
    d = Dataset.from_tensors(x, torch.arange(9) % 2, x, torch.arange(9) % 2)
    assert d.packed(torch.rand(2, 1, 6, 6)).shape == (2, 1, 6, 6)
    for other in (torch.rand(2, 3, 4, 4), torch.rand(1, 4, 4)):
        with pytest.raises(PyroccamError):
            d.packed(other)


# -- names of classes, grey bytes, ids ------------------------------------------------------------


def made(x, y, **options):
    """A data set whose test rows are its training rows."""
    return Dataset.from_tensors(x, y, x, y, val_fraction=0, **options)


def saved(path, x, y):
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


def test_names_of_classes_are_numbered_in_their_order(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 3
    for labels in (NAMES[y], NAMES[y].astype(object), list(NAMES[y])):
        found = made(x, labels)
        assert (found.class_names, found.classes) == (("ant", "bee", "cow"), 3)
        assert found.y_train.tolist() == y.tolist()
    other = made(x, NAMES[y], class_names=("cow", "bee", "ant"))
    assert other.y_train.tolist() == (2 - y).tolist()
    found = data.load(saved(tmp_path / "own.npz", x, NAMES[y]))
    new = saved(tmp_path / "new.npz", x[:3], NAMES[[2, 2, 1]])
    assert data.new_rows(new, found).y_test.tolist() == [2, 2, 1]
    with pytest.raises(PyroccamError):
        data.new_rows(saved(tmp_path / "dog.npz", x[:2], np.array(["ant", "dog"])), found)


def test_bytes_of_grey_images_get_their_channel(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (30, 6, 6), np.uint8)
    labels = np.arange(30) % 3
    found = data.load(saved(tmp_path / "own.npz", grey, labels), val_fraction=0)
    assert found.input_shape == (1, 6, 6)
    wanted = (grey - grey.mean()) / grey.std()
    torch.testing.assert_close(found.x_train, torch.tensor(wanted)[:, None].float())
    new = data.new_rows(saved(tmp_path / "new.npz", grey[:3], labels[:3]), found)
    assert torch.equal(new.x_test, found.x_train[:3])
    assert made(grey.astype(np.float32), labels).input_shape == (6, 6)  # sequences, it seems


def test_ids_are_left_alone(tmp_path):
    words, labels = np.random.default_rng(0).integers(0, 50, (30, 7)), np.arange(30) % 3
    found = data.load(saved(tmp_path / "own.npz", words, labels), ids=True)
    assert found.x_train.dtype == torch.int64
    assert torch.equal(found.x_test, torch.tensor(words))
    assert data.load(**found.source).x_train.equal(found.x_train)
    assert found.to(dtype=torch.float64).x_train.dtype == torch.int64
    new = data.new_rows(saved(tmp_path / "new.npz", words[:2].astype(float), labels[:2]), found)
    assert torch.equal(new.x_test, torch.tensor(words[:2]))
    assert not data.far_off(new)


# -- several inputs -------------------------------------------------------------------------------


def test_amounts_are_scaled_by_channel_and_the_rest_comes_back_as_it_was():
    own, raw_x = of(pictured), pictured(80)[0]
    assert own.shapes == {"ids": (5,), "picture": (2, 3, 3), "mask": (5,)}
    assert own.input_shape == (5 + 18 + 5,)
    given, (x, _) = own.fields.split(own.x_test), pictured(30, seed=1)
    for name in ("ids", "mask"):
        assert torch.equal(given[name], x[name])  # the type too
    train = own.fields.split(own.x_train)
    places = [int((x_row == raw_x["ids"]).all(1).nonzero()[0]) for x_row in train["ids"]]
    raw = raw_x["picture"].double().numpy()[places]
    expected = x["picture"].double().numpy() - raw.mean((0, 2, 3))[:, None, None]
    expected /= raw.std((0, 2, 3))[:, None, None]
    np.testing.assert_allclose(given["picture"], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(own.packed(given), own.x_test)
    assert "picture (2, 3, 3) float" in repr(own)


def test_a_tuple_goes_by_place_and_a_tuple_of_rows_is_an_array():
    x, y = pictured(80)
    pair = (x["ids"], x["picture"][:, 0, 0, 0])
    own = Dataset.from_tensors(pair, y, pair, y, standardise=False)
    assert own.shapes == ((5,), ())
    assert all(map(torch.equal, own.fields.split(own.x_test), pair))
    rows = tuple(torch.randn(80, 3))
    assert Dataset.from_tensors(rows, y, rows, y).input_shape == (3,)


def arrays(key, x):
    return {f"{key}.{name}": part.numpy() for name, part in x.items()}


def test_an_archive_holds_them_by_name_and_new_rows_are_found_by_it(tmp_path):
    given = {"train": pictured(80), "test": pictured(30, seed=1)}
    parts = [arrays(f"x_{split}", x) | {f"y_{split}": y} for split, (x, y) in given.items()]
    np.savez(tmp_path / "own.npz", **parts[0], **parts[1])
    own = data.load(tmp_path / "own.npz")
    expected = of(pictured)
    assert own.digest == expected.digest
    assert torch.equal(reloaded(own).x_train, expected.x_train)
    x, y = pictured(12, seed=5)
    turned = dict(reversed(x.items()))  # the order in a file says nothing
    np.savez(tmp_path / "new.npz", y=y, **arrays("x", turned))
    new = data.new_rows(tmp_path / "new.npz", own)
    again = Dataset.from_tensors(*pictured(80), x, y)
    assert torch.equal(new.x_test, again.x_test)
    assert data.far_off(new) == []
    np.savez(tmp_path / "less.npz", y=y, **arrays("x", {"ids": x["ids"]}))
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "less.npz", own)


def test_places_of_an_archive_are_numbers(tmp_path):
    x, y = pictured(20)
    parts = {f"{key}.{k}": x["ids"].numpy() + k for key in ("x_train", "x_test") for k in range(12)}
    np.savez(tmp_path / "own.npz", y_train=y, y_test=y, **parts)
    own = data.load(tmp_path / "own.npz")
    assert [int((p - x["ids"]).max()) for p in own.fields.split(own.x_test)] == [*range(12)]


@pytest.mark.parametrize(
    "change",
    [
        {"ids": torch.full((80, 5), 2**24 + 1)},
        {"ids": torch.full((80, 5), -(2**24) - 1)},
        {"picture": torch.full((80, 2), torch.nan)},
        {"mask": torch.ones(79, 5)},
        {"a b": torch.ones(80)},
        {"mask": torch.ones(80, 0)},
    ],
)
def test_inputs_that_cannot_be_kept_are_refused(change):
    x, y = pictured(80)
    with pytest.raises(PyroccamError):
        Dataset.from_tensors({**x, **change}, y, x, y)
    with pytest.raises(PyroccamError):  # of another kind
        Dataset.from_tensors(x, y, {**x, "ids": x["ids"].float()}, y)
