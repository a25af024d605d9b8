"""What a run remembers of its data, and new rows on the scale of the run."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import Dataset, PyroccamError

ROWS = 60

COLUMNS = {
    "age": np.arange(ROWS) * 1.5,
    "height": 100 + np.sin(np.arange(ROWS)),
    "weight": np.cos(np.arange(ROWS)) * 9,
    "kind": np.array(["dog", "cat"])[np.arange(ROWS) % 2],
}


def table(folder, columns, order=slice(None), **options):
    rows = np.stack([np.asarray(v).astype(str) for v in columns.values()], 1)[order]
    lines = [",".join(row) for row in (list(columns), *rows.tolist())]
    (folder / "mine.csv").write_text("\n".join(lines))
    return data.load(folder / "mine.csv", **{"target": "kind", **options})


@pytest.fixture
def record(tmp_path):
    return json.loads(json.dumps(table(tmp_path, COLUMNS).record()))


def test_a_record_says_what_the_data_are(tmp_path, record):
    d = table(tmp_path, COLUMNS)
    assert (d.columns, d.target) == (("age", "height", "weight"), "kind")
    expected = {
        "digest": d.digest,
        "task": "classification",
        "columns": ["age", "height", "weight"],
        "target": "kind",
        "classes": 2,
        "class_names": ["cat", "dog"],
        "input_shape": [3],
        "rows": {"train": 43, "val": 5, "test": 12},
        "split": {"seed": 0, "test": None, "test_fraction": 0.2, "val_fraction": 0.1},
        "y_mean": [0.0],
        "y_std": [1.0],
    }
    assert {k: record[k] for k in expected} == expected
    np.testing.assert_allclose(record["x_mean"], d.x_mean, rtol=1e-6)
    np.testing.assert_allclose(record["x_std"], d.x_std, rtol=1e-6)
    assert {*record} == {*expected, "x_mean", "x_std"}
    assert d.differences(record) == []
    assert d.to(dtype=torch.float64).differences(record) == []


def by_names(*names):
    return {k: COLUMNS[k] for k in names}


def called(**names):
    return {names.get(k, k): v for k, v in COLUMNS.items()}


def changed(column, row, value):
    values = COLUMNS[column].copy()
    values[row] = value
    return {**COLUMNS, column: values}


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (by_names("height", "age", "weight", "kind"), {}, ["columns 0 is 'height', was 'age'"]),
        (called(age="years"), {}, ["columns 0 is 'years', was 'age'"]),
        ({**COLUMNS, "more": np.arange(ROWS)}, {}, ["columns has 4", "more", "input_shape 0 is 4"]),
        (changed("weight", 30, 77.0), {}, ["rows are not the same"]),
        (changed("kind", 30, "eel"), {}, ["classes is 3, was 2", "eel"]),
        (COLUMNS, {"order": slice(None, None, -1)}, ["rows are not the same"]),
        (COLUMNS, {"order": slice(0, 50)}, ["rows are not the same", "rows train is 36, was 43"]),
        (COLUMNS, {"seed": 1}, ["seed is 1, was 0", "rows are not the same"]),
        (COLUMNS, {"val_fraction": 0.0}, ["val_fraction is 0.0, was 0.1", "rows val is 0"]),
        (COLUMNS, {"standardise": False}, ["x_mean age is 0.0", "x_std height is 1.0"]),
        (COLUMNS, {"target": "age"}, ["target is 'age', was 'kind'"]),
        ({**COLUMNS, "kind": np.arange(ROWS) / 7}, {}, ["task is 'regression', was 'classifi"]),
    ],
)
def test_differences_are_named(tmp_path, record, columns, options, words):
    if options.get("target") == "age":
        columns = {k: v for k, v in columns.items() if k != "kind"}
    said = "; ".join(table(tmp_path, columns, **options).differences(record))
    for word in words:
        assert word in said


def test_rounding_is_no_difference(tmp_path, record):
    d = table(tmp_path, COLUMNS)
    record["x_mean"] = [v * (1 + 1e-9) for v in record["x_mean"]]
    assert d.differences(record) == []
    record["x_mean"][1] += 1e-3 * record["x_std"][1]
    (found,) = d.differences(record)
    assert found.startswith("x_mean height is ")
    record["x_mean"].append(0.0)
    assert "has 3 values, had 4" in d.differences(record)[0]


@pytest.mark.parametrize("part", list(data.load("spirals", n=60).record()))
def test_a_damaged_record_is_that_of_other_data(part):
    d = data.load("spirals", n=60)
    good = d.record()
    assert d.differences({k: v for k, v in good.items() if k != part})
    for value in (None, "x", -1, [None], ["x", 1], [1e999], {"train": 1}, [[1]]):
        assert good[part] == value or d.differences({**good, part: value})
    for wrong in (None, "x"):
        with pytest.raises(PyroccamError):
            d.differences(wrong)


def arrays():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    return {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": y[30:]}


def test_the_digest_is_of_what_was_given():
    given = arrays()
    own = Dataset.from_tensors(**given)
    for options in ({"seed": 4}, {"val_fraction": 0.3}, {"standardise": False}, {"name": "x"}):
        assert Dataset.from_tensors(**given, **options).digest == own.digest
    in_tensors = {k: torch.from_numpy(np.asfortranarray(v)) for k, v in given.items()}
    assert Dataset.from_tensors(**in_tensors).digest == own.digest
    other = {own.digest, Dataset.from_tensors(**given, groups=np.arange(30) // 5).digest}
    for part in ("x_train", "y_train", "x_test", "y_test"):
        more = copy.deepcopy(given)
        more[part][4:6] = more[part][5:3:-1]  # two rows exchanged
        other.add(Dataset.from_tensors(**more).digest)
        for change in (lambda a: a.astype(np.float32), lambda a: a + (a == a.flat[7]) * 1e-9):
            made = {**given, part: change(given[part])}
            other.add(Dataset.from_tensors(**made, task="regression").digest)
    other.add(Dataset.from_tensors(**{**given, "x_test": given["x_test"][:, [1, 0, 2]]}).digest)
    assert len(other) == 2 + 4 * 3 + 1


def test_who_keeps_a_digest_and_who_has_one_of_its_own():
    x, y = torch.rand(44, 2, 3, 3), np.arange(44) % 2
    own = Dataset.from_tensors(x[:40], y[:40], x[40:], y[40:])
    other = data.load("digits")
    assert len(own.digest) == 32
    copies = [own.flattened(), own.all_rows(), own.to(dtype=torch.float64), own.to("meta")]
    copies += [own.laid_out(torch.channels_last), replace(own, name="x")]
    for same in (*copies, other.standardised_as(data.load("digits", seed=1))):
        assert same.digest in (own.digest, other.digest)
    by_hand = {k: v for k, v in vars(own).items() if k not in ("digest", "scaling")}
    made = Dataset(**by_hand)
    assert made.digest not in ("", own.digest)
    assert made.digest == Dataset(**by_hand).digest
    assert made.digest != Dataset(**{**by_hand, "x_test": own.x_train[:4]}).digest
    torch.testing.assert_close(made.scaling.x_mean.float(), own.x_mean)


def test_another_scale_keeps_digits_that_float32_has_not():
    """Means of a million and steps of a thousandth: one after the other in float32, all is lost."""
    x = torch.arange(60.0).double()[:, None] * 1e-3 + 1e6
    one, two = (Dataset.from_tensors(x, x, x, x, seed=s, val_fraction=0.4) for s in (0, 1))
    moved = two.standardised_as(one)
    torch.testing.assert_close(moved.x_test, one.x_test, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.y_test, one.y_test, rtol=1e-4, atol=1e-4)
    assert one.standardised_as(one).x_test is one.x_test


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x, y), []),
        (lambda x, y: (x * torch.tensor([1.0, 1000.0]), y), ["column 'b' lie more than"]),
        (lambda x, y: (x[:, [1, 0]], y), ["column 'a' lie more", "column 'b' lie more"]),
        (lambda x, y: (x * torch.tensor([0.001, 1.0]), y), ["column 'a' vary by"]),
        (lambda x, y: (x, y * 1000), ["target 0 lie more than"]),
        (lambda x, y: (x[:5], y[:5]), []),
    ],
)
def test_new_rows_in_other_units_are_noticed(tmp_path, change, words):
    """Whether the data are scaled or not, half of the values have to be far off."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=stream) * torch.tensor([1.0, 3.0]) + torch.tensor([0.0, 90.0])
    y = x.sum(1) + 5
    odd = change(x[200:], y[200:])
    np.savez(tmp_path / "new.npz", x=odd[0].numpy(), y=odd[1].numpy())
    for scaled in (True, False):
        options = {"task": "regression", "columns": ("a", "b"), "standardise": scaled}
        like = Dataset.from_tensors(x[:200], y[:200], x[:9], y[:9], **options)
        found = data.far_off(data.new_rows(tmp_path / "new.npz", like=like))
        assert len(found) == len(words)
        assert all(word in sentence for word, sentence in zip(words, found, strict=True))


# -- new rows -------------------------------------------------------------------------------------


RANDOM = np.random.default_rng(0)

TABLE = RANDOM.normal([5.0, 1e6, -3.0], [2.0, 1.0, 0.1], (80, 3))

KINDS = np.array(["dog", "cat", "eel", "cat"])[np.arange(80) % 4]


def write(path, columns):
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]  # noqa: B905
    path.write_text("\n".join(lines))
    return path


def animals(order=slice(None)):
    return {"a": TABLE[order, 0], "b": TABLE[order, 1], "c": TABLE[order, 2], "kind": KINDS[order]}


@pytest.fixture
def own(tmp_path):
    return data.load(write(tmp_path / "own.csv", animals()), seed=2)


def training_rows(like):
    """The raw rows that train, found by their first column."""
    raw = like.x_train[:, 0].double() * like.x_std[0] + like.x_mean[0]
    places = np.abs(TABLE[None, :, 0] - raw.numpy()[:, None]).argmin(1)
    assert len({*places}) == like.N
    return TABLE[places]


def test_all_rows_of_a_table_in_their_order_and_on_the_scale_of_the_run(own, tmp_path):
    new = data.new_rows(tmp_path / "own.csv", own)
    train = training_rows(own)
    expected = (TABLE - train.mean(0)) / train.std(0)
    np.testing.assert_allclose(new.x_test, expected, rtol=1e-5, atol=1e-5)
    assert [own.class_names[k] for k in new.y_test] == KINDS.tolist()
    assert (new.name, new.N, new.source) == ("own", own.N, own.source)
    assert torch.equal(new.x_train, own.x_train)
    assert new.digest != own.digest
    # to the bit: the rows of training and validation, and no others, are known again
    assert int(own.seen(new.x_test).sum()) == own.N + len(own.x_val) == 80 - len(own.x_test)
    assert not own.seen(own.x_test).any()


def test_columns_go_by_name_and_others_are_left_out(own, tmp_path):
    columns = animals()
    mixed = {"note": ["x"] * 80, **{k: columns[k] for k in ("kind", "c", "a", "b")}}
    new = data.new_rows(write(tmp_path / "mixed.csv", mixed), own)
    assert torch.equal(new.x_test, data.new_rows(tmp_path / "own.csv", own).x_test)
    assert torch.equal(new.y_test, data.new_rows(tmp_path / "own.csv", own).y_test)
    other = {"species" if k == "kind" else k: v for k, v in columns.items()}
    path = write(tmp_path / "other.csv", other)
    with pytest.raises(PyroccamError):
        data.new_rows(path, own)
    assert torch.equal(data.new_rows(path, own, target="species").x_test, new.x_test)


def test_numbers_as_classes_go_by_what_they_are_called(tmp_path):
    y = np.array([3, 5, 7])[np.arange(80) % 3]
    columns = {**animals(), "kind": y}
    own = data.load(write(tmp_path / "own.csv", columns))
    assert own.class_names == ("3", "5", "7")
    for name, written in (("float", y * 1.0), ("text", [f"00{v}" for v in y]), ("some", y)):
        path = write(tmp_path / f"{name}.csv", {**columns, "kind": written})
        assert data.new_rows(path, own).y_test.tolist() == (np.arange(80) % 3).tolist()
    np.savez(tmp_path / "a.npz", x=TABLE[:4], y=[7, 3, 3, 5])
    assert data.new_rows(tmp_path / "a.npz", own).y_test.tolist() == [2, 0, 0, 1]
    np.savez(tmp_path / "b.npz", x=TABLE[:2], y=[3, 2])
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "b.npz", own)


def test_rows_of_arrays_beside_a_regression_of_a_table(tmp_path):
    y = TABLE[:, 0] * 3 + 1000.5
    own = data.load(write(tmp_path / "own.csv", {**animals(), "kind": y}))
    new = data.new_rows(tmp_path / "own.csv", own)
    np.savez(tmp_path / "a.npz", x=TABLE[:5], y=y[:5])
    few = data.new_rows(tmp_path / "a.npz", own)
    assert torch.equal(few.x_test, new.x_test[:5])
    assert torch.equal(few.y_test, new.y_test[:5])
    np.savez(tmp_path / "b.npz", x=TABLE[:5], y=TABLE[:5])
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "b.npz", own)


def shaped(shape):
    x = RANDOM.normal(4.0, 3.0, (60, *shape))
    x *= np.arange(1, 1 + shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    y = np.arange(60) % 3
    return {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("given_flat", [False, True])
def test_images_are_scaled_by_channel_flat_or_not(tmp_path, flat, given_flat):
    given = shaped((3, 4, 5))
    own = data.Dataset.from_tensors(**given, val_fraction=0)
    own = own.flattened() if flat else own
    other = {**given, "x_test": given["x_test"].reshape(20, -1)} if given_flat else given
    path = tmp_path / "a.npz"
    np.savez(path, **other)
    if given_flat and not flat:
        with pytest.raises(PyroccamError):
            data.new_rows(path, own)
        return
    new = data.new_rows(path, own)
    train = given["x_train"]
    mean, std = (moment((0, 2, 3), keepdims=True) for moment in (train.mean, train.std))
    expected = (given["x_test"] - mean) / std
    np.testing.assert_allclose(new.x_test.reshape(20, 3, 4, 5), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(new.x_test, own.x_test)
    assert torch.equal(new.y_test, own.y_test)


def test_plain_arrays_and_what_is_missing(tmp_path):
    given = shaped((3,))
    own = data.Dataset.from_tensors(**given).to(dtype=torch.float64)
    x, y = given["x_train"], given["y_train"]
    path = tmp_path / "a.npz"
    np.savez(path, x=x, y=y)
    assert own.seen(data.new_rows(path, own).x_test).all()
    assert data.new_rows(path, own).x_test.dtype == torch.float64
    assert len(data.new_rows(path, own, data_root="/nowhere").x_test) == 40
    with pytest.raises(PyroccamError):
        data.new_rows(path, own, seed=3)
    for wrong in ({"x": x}, {"x": x, "y": y + 1}, {"x": x, "y": y[:5]}, {"x": x[:, :2], "y": y}):
        np.savez(path, **wrong)
        with pytest.raises(PyroccamError):
            data.new_rows(path, own)


def test_classes_without_numbers_as_names_take_places(tmp_path):
    own = data.load("spirals", n=100, train_fraction=0.5)
    raw, label = data.spirals(n=100)
    np.savez(tmp_path / "a.npz", x=raw, y=label)
    new = data.new_rows(tmp_path / "a.npz", own)
    assert torch.equal(new.y_test, label)
    assert own.seen(new.x_test).tolist() == [True] * 50 + [False] * 50
    np.savez(tmp_path / "b.npz", x=raw, y=label + 1)
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "b.npz", own)


def test_named_data_are_the_own_test_rows_or_another_draw():
    own = data.load("digits", seed=3)
    same = data.new_rows("digits", own)
    assert torch.equal(same.x_test, own.x_test)
    assert torch.equal(same.y_test, own.y_test)
    assert not own.seen(same.x_test).any()
    # the test rows of another draw are rows of training here, and are known by their bits
    other = data.new_rows("digits", own, seed=0)
    expected = len(other.x_test) * (1 - len(own.x_test) / 1797)
    assert abs(int(own.seen(other.x_test).sum()) - expected) < 40
    flat = data.load("digits", seed=3, flatten=True)
    assert torch.equal(data.new_rows("digits", flat, seed=0).x_test, other.x_test.flatten(1))


def test_seen_of_many_images_and_of_rows_that_differ_in_a_bit():
    x = torch.rand(5_000, 1, 28, 28)
    own = data.Dataset.from_tensors(
        x, torch.arange(5_000) % 10, x[:5], torch.arange(5), standardise=False
    )
    near = x[:100].clone()
    near[::2, 0, 27, 27] = torch.nextafter(near[::2, 0, 27, 27], torch.tensor(2.0))
    assert own.seen(near).tolist() == [False, True] * 50
    assert own.seen(x).all()
    assert own.seen(x[:3].flatten(1)).all()
    assert own.seen(x[:0]).shape == (0,)
    with pytest.raises(PyroccamError):
        own.seen(x[:3, :, :, 1:])
