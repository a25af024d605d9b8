"""new_rows: rows for a network that is there already, on its scale, under its names."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data.errors import PyroccamError

RANDOM = np.random.default_rng(0)
ROWS = 80
TABLE = RANDOM.normal([5.0, 1e6, -3.0], [2.0, 1.0, 0.1], (ROWS, 3))
KINDS = np.array(["dog", "cat", "eel", "cat"])[np.arange(ROWS) % 4]


def write(path: Path, columns: dict[str, Any]) -> Path:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]  # noqa: B905
    path.write_text("\n".join(lines))
    return path


def animals(order: Any = slice(None)) -> dict[str, Any]:
    return {"a": TABLE[order, 0], "b": TABLE[order, 1], "c": TABLE[order, 2], "kind": KINDS[order]}


@pytest.fixture
def own(tmp_path: Path) -> data.Dataset:
    return data.load(write(tmp_path / "own.csv", animals()), seed=2)


def scaled(x: np.ndarray, like: data.Dataset, training: np.ndarray) -> np.ndarray:
    """By the statistics of the raw training rows, computed here."""
    return (x - training.mean(0)) / training.std(0)


def training_rows(like: data.Dataset) -> np.ndarray:
    """The raw rows that train, found by their first column."""
    raw = like.x_train[:, 0].double() * like.x_std[0] + like.x_mean[0]
    places = np.abs(TABLE[None, :, 0] - raw.numpy()[:, None]).argmin(1)
    assert len({*places}) == like.N
    return TABLE[places]


def test_all_rows_of_a_table_in_their_order_and_on_the_scale_of_the_run(
    own: data.Dataset, tmp_path: Path
) -> None:
    new = data.new_rows(tmp_path / "own.csv", own)
    expected = scaled(TABLE, own, training_rows(own))
    np.testing.assert_allclose(new.x_test, expected, rtol=1e-5, atol=1e-5)
    assert [own.class_names[k] for k in new.y_test] == KINDS.tolist()
    assert (new.name, new.N, new.source) == ("own", own.N, own.source)
    assert torch.equal(new.x_train, own.x_train)
    assert new.digest != own.digest
    # to the bit: the rows of training and validation, and no others, are known again
    assert int(own.seen(new.x_test).sum()) == own.N + len(own.x_val) == ROWS - len(own.x_test)
    assert not own.seen(own.x_test).any()


def test_columns_go_by_name_and_others_are_left_out(own: data.Dataset, tmp_path: Path) -> None:
    columns = animals()
    mixed = {"note": ["x"] * ROWS, **{k: columns[k] for k in ("kind", "c", "a", "b")}}
    new = data.new_rows(write(tmp_path / "mixed.csv", mixed), own)
    assert torch.equal(new.x_test, data.new_rows(tmp_path / "own.csv", own).x_test)
    assert torch.equal(new.y_test, data.new_rows(tmp_path / "own.csv", own).y_test)
    other = {"species" if k == "kind" else k: v for k, v in columns.items()}
    path = write(tmp_path / "other.csv", other)
    with pytest.raises(PyroccamError):
        data.new_rows(path, own)
    assert torch.equal(data.new_rows(path, own, target="species").x_test, new.x_test)


def test_rows_with_few_of_the_classes_keep_their_numbers(own: data.Dataset, tmp_path: Path) -> None:
    place = np.flatnonzero(KINDS == "eel")[:1]
    new = data.new_rows(write(tmp_path / "eel.csv", animals(place)), own)
    assert (len(new.x_test), new.y_test.tolist()) == (1, [own.class_names.index("eel")])
    assert own.seen(new.x_test).shape == (1,)


@pytest.mark.parametrize(
    "change",
    [
        {"b": None},
        {"kind": ["cat"] * 9 + ["zebra"] * 71},
        {"a": ["1", "", *["2"] * 78]},
        {"a": ["1", "inf", *["2"] * 78]},
        {"c": ["1", "red", *["2"] * 78]},
    ],
)
def test_rows_that_do_not_fit(own: data.Dataset, tmp_path: Path, change: dict[str, Any]) -> None:
    columns = {k: v for k, v in {**animals(), **change}.items() if v is not None}
    with pytest.raises(PyroccamError):
        data.new_rows(write(tmp_path / "new.csv", columns), own)


def test_numbers_as_classes_go_by_what_they_are_called(tmp_path: Path) -> None:
    y = np.array([3, 5, 7])[np.arange(ROWS) % 3]
    columns = {**animals(), "kind": y}
    own = data.load(write(tmp_path / "own.csv", columns))
    assert own.class_names == ("3", "5", "7")
    for name, written in (("float", y * 1.0), ("text", [f"00{v}" for v in y]), ("some", y)):
        path = write(tmp_path / f"{name}.csv", {**columns, "kind": written})
        assert data.new_rows(path, own).y_test.tolist() == (np.arange(ROWS) % 3).tolist()
    np.savez(tmp_path / "a.npz", x=TABLE[:4], y=[7, 3, 3, 5])
    assert data.new_rows(tmp_path / "a.npz", own).y_test.tolist() == [2, 0, 0, 1]
    np.savez(tmp_path / "b.npz", x=TABLE[:2], y=[3, 2])
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "b.npz", own)


@pytest.mark.parametrize(
    ("words", "names", "labels"),
    [(["1.0", "a"], ("1.0", "a"), [0, 1]), (["true", "false"], ("False", "True"), [1, 0])],
)
def test_numbers_and_truth_values_among_texts(
    tmp_path: Path, words: list[str], names: tuple[str, ...], labels: list[int]
) -> None:
    columns = {**animals(), "kind": np.array(words)[np.arange(ROWS) % 2]}
    own = data.load(write(tmp_path / "own.csv", columns))
    assert own.class_names == names
    assert data.new_rows(tmp_path / "own.csv", own).y_test.tolist() == labels * 40
    first = {k: v[::2] for k, v in columns.items()}  # rows of one class
    assert data.new_rows(write(tmp_path / "a.csv", first), own).y_test.tolist() == labels[:1] * 40


def test_regression_of_a_table_and_of_arrays(tmp_path: Path) -> None:
    y = TABLE[:, 0] * 3 + 1000.5
    columns = {**animals(), "kind": y}
    own = data.load(write(tmp_path / "own.csv", columns))
    new = data.new_rows(tmp_path / "own.csv", own)
    train = training_rows(own)[:, 0] * 3 + 1000.5
    np.testing.assert_allclose(new.y_test[:, 0], (y - train.mean()) / train.std(), rtol=1e-4)
    np.savez(tmp_path / "a.npz", x=TABLE[:5], y=y[:5])
    few = data.new_rows(tmp_path / "a.npz", own)
    assert torch.equal(few.x_test, new.x_test[:5])
    assert torch.equal(few.y_test, new.y_test[:5])
    np.savez(tmp_path / "b.npz", x=TABLE[:5], y=TABLE[:5])
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "b.npz", own)


def arrays(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    x = RANDOM.normal(4.0, 3.0, (60, *shape))
    x *= np.arange(1, 1 + shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    y = np.arange(60) % 3
    return {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("given_flat", [False, True])
def test_images_are_scaled_by_channel_flat_or_not(
    tmp_path: Path, flat: bool, given_flat: bool
) -> None:
    given = arrays((3, 4, 5))
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


def test_plain_arrays_and_what_is_missing(tmp_path: Path) -> None:
    given = arrays((3,))
    own, x, y = data.Dataset.from_tensors(**given), given["x_train"], given["y_train"]
    path = tmp_path / "a.npz"
    np.savez(path, x=x, y=y)
    assert own.seen(data.new_rows(path, own).x_test).all()
    assert len(data.new_rows(path, own, data_root="/nowhere").x_test) == 40
    with pytest.raises(PyroccamError):
        data.new_rows(path, own, seed=3)
    for y_there in ({}, {"y": y + 1}, {"y": y[:5]}):
        np.savez(path, x=x, **y_there)
        with pytest.raises(PyroccamError):
            data.new_rows(path, own)
    for members in ({"x": x[:, :2], "y": y},):
        np.savez(path, **members)
        with pytest.raises(PyroccamError):
            data.new_rows(path, own)


def test_classes_without_numbers_as_names_take_places(tmp_path: Path) -> None:
    own = data.load("spirals", n=100, train_fraction=0.5)
    raw, label = data.spirals(n=100)
    np.savez(tmp_path / "a.npz", x=raw, y=label)
    new = data.new_rows(tmp_path / "a.npz", own)
    assert torch.equal(new.y_test, label)
    assert own.seen(new.x_test).tolist() == [True] * 50 + [False] * 50
    np.savez(tmp_path / "b.npz", x=raw, y=label + 1)
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "b.npz", own)


def test_named_data_are_the_own_test_rows_or_another_draw() -> None:
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


@pytest.mark.parametrize(
    ("own", "new", "options"),
    [
        ("digits", "wiggle", {}),
        ("digits", "spirals", {}),
        ("digits", "digits", {"bogus": 1}),
    ],
)
def test_named_data_of_another_kind(own: str, new: str, options: dict[str, Any]) -> None:
    loaded = data.load(own)
    with pytest.raises(PyroccamError):
        data.new_rows(new, loaded, **options)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


@pytest.mark.parametrize("flatten", [False, True])
def test_image_files_on_the_scale_of_other_images(tmp_path: Path, flatten: bool) -> None:
    raw = {}
    for folder in ("MNIST", "KMNIST"):
        (tmp_path / folder / "raw").mkdir(parents=True)
        for stem, rows in (("train", 50), ("t10k", 20)):
            images = RANDOM.integers(0, 100 if folder == "MNIST" else 256, (rows, 4, 5), np.uint8)
            raw[folder, stem] = images
            for what, array in (("images-idx3", images), ("labels-idx1", np.arange(rows) % 10)):
                path = tmp_path / folder / "raw" / f"{stem}-{what}-ubyte.gz"
                path.write_bytes(idx(array.astype(np.uint8)))
    own = data.load("mnist", data_root=tmp_path, val_fraction=0, flatten=flatten)
    other = data.load("kmnist", data_root=tmp_path, val_fraction=0)
    nameless = data.Dataset.from_tensors(
        *(t for s in ("train", "test") for t in other.split(s)), standardise=False
    )
    with pytest.raises(PyroccamError):
        data.new_rows("kmnist", own, data_root=tmp_path)
    train = raw["MNIST", "train"] / 255
    new = data.new_rows("mnist", own, data_root=tmp_path, n_test=10)
    assert len(new.x_test) == 10
    path = tmp_path / "k.npz"
    np.savez(path, x=raw["KMNIST", "t10k"][:, None] / 255, y=nameless.y_test)
    new = data.new_rows(path, own)
    expected = (raw["KMNIST", "t10k"] / 255 - train.mean()) / train.std()
    np.testing.assert_allclose(new.x_test.reshape(20, 4, 5), expected, rtol=1e-4, atol=1e-5)


def test_types_follow_those_of_the_run(tmp_path: Path) -> None:
    given = arrays((3,))
    own = data.Dataset.from_tensors(**given).to(dtype=torch.float64)
    np.savez(tmp_path / "a.npz", **given)
    new = data.new_rows(tmp_path / "a.npz", own)
    assert new.x_test.dtype == torch.float64
    assert torch.equal(new.x_test, own.x_test)


def test_seen_of_sixty_thousand_images_and_of_rows_that_differ_in_a_bit() -> None:
    x = torch.rand(30_000, 1, 28, 28)
    own = data.Dataset.from_tensors(
        x, torch.arange(30_000) % 10, x[:5], torch.arange(5), standardise=False
    )
    near = x[:100].clone()
    near[::2, 0, 27, 27] = torch.nextafter(near[::2, 0, 27, 27], torch.tensor(2.0))
    assert own.seen(near).tolist() == [False, True] * 50
    assert own.seen(x).all()
    assert own.seen(x[:3].flatten(1)).all()
    assert own.seen(x[:0]).shape == (0,)
    with pytest.raises(PyroccamError):
        own.seen(x[:3, :, :, 1:])
