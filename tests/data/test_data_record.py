"""What a run remembers of its data, and what it says of data that are no longer the same."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import Dataset
from pyroccam.data.errors import PyroccamError
from pyroccam.data.fingerprints import fingerprint

ROWS = 60
COLUMNS = {
    "age": np.arange(ROWS) * 1.5,
    "height": 100 + np.sin(np.arange(ROWS)),
    "weight": np.cos(np.arange(ROWS)) * 9,
    "kind": np.array(["dog", "cat"])[np.arange(ROWS) % 2],
}


def table(
    folder: Path, columns: dict[str, Any], order: Any = slice(None), **options: Any
) -> Dataset:
    rows = np.stack([np.asarray(v).astype(str) for v in columns.values()], 1)[order]
    lines = [",".join(row) for row in (list(columns), *rows.tolist())]
    (folder / "mine.csv").write_text("\n".join(lines))
    return data.load(folder / "mine.csv", **{"target": "kind", **options})


@pytest.fixture
def record(tmp_path: Path) -> dict[str, Any]:
    return json.loads(json.dumps(table(tmp_path, COLUMNS).record()))


def test_a_record_says_what_the_data_are(tmp_path: Path, record: dict[str, Any]) -> None:
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


def by_names(*names: str) -> dict[str, Any]:
    return {k: COLUMNS[k] for k in names}


def called(**names: str) -> dict[str, Any]:
    return {names.get(k, k): v for k, v in COLUMNS.items()}


def changed(column: str, row: int, value: Any) -> dict[str, Any]:
    values = COLUMNS[column].copy()
    values[row] = value
    return {**COLUMNS, column: values}


SWAPPED = by_names("height", "age", "weight", "kind")
COWS = {**COLUMNS, "kind": np.array(["dog", "cow"])[np.arange(ROWS) % 2]}


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (SWAPPED, {}, ["column names are in another order", "'height' stands where 'age' was"]),
        (called(age="height", height="age"), {}, ["column names are in another order"]),
        (called(age="years"), {}, ["'age' is now 'yea"]),
        ({**COLUMNS, "more": np.arange(ROWS)}, {}, ["4 column names, were 3 (new: more)", "shape"]),
        (changed("weight", 30, 77.0), {}, ["rows are not the same"]),
        (changed("kind", 30, "eel"), {}, ["classes is 3, was 2", "new: eel"]),
        (COWS, {}, ["class 'cat' is now 'cow'"]),
        (COLUMNS, {"order": slice(None, None, -1)}, ["rows are not the same"]),
        (COLUMNS, {"order": slice(0, 50)}, ["rows are not the same", "36 train", "were 43 train"]),
        (COLUMNS, {"seed": 1}, ["seed is 1, was 0", "rows are not the same"]),
        (COLUMNS, {"val_fraction": 0.0}, ["val_fraction is 0.0, was 0.1", "48 train, 0 val"]),
        (COLUMNS, {"standardise": False}, ["inputs are scaled otherwise: 'age', 'height'"]),
        (COLUMNS, {"target": "age"}, ["target is 'age', was 'kind'"]),
        ({**COLUMNS, "kind": np.arange(ROWS) / 7}, {}, ["task is 'regression', was 'classifi"]),
    ],
)
def test_differences_are_named(
    tmp_path: Path,
    record: dict[str, Any],
    columns: dict[str, Any],
    options: dict[str, Any],
    words: list[str],
) -> None:
    if options.get("target") == "age":
        columns = {k: v for k, v in columns.items() if k != "kind"}
    said = "; ".join(table(tmp_path, columns, **options).differences(record))
    for word in words:
        assert word in said


def test_rounding_is_no_difference(tmp_path: Path, record: dict[str, Any]) -> None:
    d = table(tmp_path, COLUMNS)
    record["x_mean"] = [v * (1 + 1e-9) for v in record["x_mean"]]
    assert d.differences(record) == []
    record["x_mean"][1] += 1e-3 * record["x_std"][1]
    assert d.differences(record) == ["inputs are scaled otherwise: 'height'"]
    record["x_mean"].append(0.0)
    assert "has 3 values, had 4" in d.differences(record)[0]


DAMAGE: list[Any] = [None, "x", -1, True, [None], ["x", 1], [1e999], {}, {"train": 1}, [[1]]]


@pytest.mark.parametrize("part", list(data.load("spirals", n=60).record()))
def test_a_damaged_record_is_said_to_be_damaged(part: str) -> None:
    d = data.load("spirals", n=60)
    good = d.record()
    lacking = {k: v for k, v in good.items() if k != part}
    with pytest.raises(PyroccamError):
        d.differences(lacking)
    for value in DAMAGE:
        damaged, said = differences_or_damage(d, {**good, part: value})
        assert damaged or said
    assert differences_or_damage(d, {**good, part: [[1]]})[0]


def differences_or_damage(d: Dataset, record: Any) -> tuple[str, list[str]]:
    try:
        return "", d.differences(record)
    except data.DataError as error:
        return str(error), []


@pytest.mark.parametrize("whole", [None, [], "x", 3, {}])
def test_what_is_no_record_at_all(whole: Any) -> None:
    with pytest.raises(PyroccamError):
        data.load("spirals", n=60).differences(whole)


def arrays() -> dict[str, Any]:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    return {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": y[30:]}


def test_the_digest_is_of_what_was_given() -> None:
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


def test_a_feature_and_a_dimension_are_not_the_same() -> None:
    x = torch.arange(12.0)
    marks = {fingerprint(x=x.reshape(s)) for s in [(12,), (3, 4), (4, 3), (3, 2, 2)]}
    marks |= {fingerprint(y=x), fingerprint(x=x.int()), fingerprint(x=x, y=x), fingerprint(x="12")}
    assert len(marks) == 8
    assert fingerprint(x=x.reshape(3, 4).T.contiguous()) == fingerprint(x=x.reshape(3, 4).T)


def test_who_keeps_a_digest_and_who_has_one_of_its_own() -> None:
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


def test_another_scale_keeps_digits_that_float32_has_not() -> None:
    """Means of a million and steps of a thousandth: one after the other in float32, all is lost."""
    x = torch.arange(60.0).double()[:, None] * 1e-3 + 1e6
    one, two = (Dataset.from_tensors(x, x, x, x, seed=s, val_fraction=0.4) for s in (0, 1))
    moved = two.standardised_as(one)
    torch.testing.assert_close(moved.x_test, one.x_test, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.y_test, one.y_test, rtol=1e-4, atol=1e-4)
    assert one.standardised_as(one).x_test is one.x_test


@pytest.mark.parametrize("columns", [["a"], ["a", "b", "c", "d"]])
def test_columns_are_as_many_as_features(columns: list[str]) -> None:
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(**arrays(), columns=columns)


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
def test_new_rows_in_other_units_are_noticed(tmp_path: Path, change: Any, words: list[str]) -> None:
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


def test_images_on_another_scale_are_noticed(tmp_path: Path) -> None:
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60, 1, 4, 4), generator=stream).float()
    y = torch.arange(60) % 2
    like = Dataset.from_tensors(x, y, x[:5], y[:5])
    np.savez(tmp_path / "new.npz", x=x.numpy() / 255, y=y.numpy())
    for own in (like, like.flattened()):
        shape = (60, *own.input_shape)
        np.savez(tmp_path / "new.npz", x=(x.numpy() / 255).reshape(shape), y=y.numpy())
        (said,) = data.far_off(data.new_rows(tmp_path / "new.npz", like=own))
        assert "channel 0 vary by 0.0039" in said
