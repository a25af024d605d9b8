"""Data sets of the experiments, on small files in the format of the published ones."""

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyroccam import data
from strange_files import reloaded

from experiments import sets
from experiments.sets import watch
from experiments.sets.toys import polynomial_features


def goes_round(d: data.Dataset, other: data.Dataset) -> None:
    """The source gives the same rows again, and another seed others."""
    again = reloaded(d)
    assert again.source == d.source
    for split in ("train", "val", "test"):
        assert torch.equal(d.split(split)[0], again.split(split)[0])
    assert not torch.equal(d.y_train, other.y_train)


# -- toys -----------------------------------------------------------------------------------------


def looks_standard_normal(sample: torch.Tensor) -> None:
    """Mean and variance to four standard errors."""
    n = len(sample)
    assert abs(sample.mean()) < 4 / math.sqrt(n)
    assert abs(sample.square().mean() - 1) < 4 * math.sqrt(2 / n)


@pytest.mark.parametrize(("name", "rows"), [("polynomial", 40), ("regimes", 50)])
def test_rows_of_a_toy(name: str, rows: int) -> None:
    """All train by default; they depend neither on the number of test rows nor on the scale."""
    make = getattr(sets, name)
    d = data.load(f"experiments.sets:{name}", seed=3)
    assert (d.task, d.N, len(d.x_val), len(d.x_test)) == ("regression", rows, 0, 1000)
    goes_round(d, make(seed=4))
    assert len(make(val_fraction=0.1).x_val) == rows // 10
    few, many = (make(n_test=n, standardise=False) for n in (10, 500))
    assert torch.equal(few.x_train, many.x_train)
    assert torch.equal(few.x_test, many.x_test[:10])
    raw, scaled = (make(standardise=wish) for wish in (False, True))
    torch.testing.assert_close(scaled.y_test * scaled.y_std + scaled.y_mean, raw.y_test)
    close = {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(scaled.x_test * scaled.x_std + scaled.x_mean, raw.x_test, **close)
    torch.testing.assert_close(scaled.y_train.std(correction=0), torch.tensor(1.0))


def test_sides_of_a_spiral_are_its_arms() -> None:
    d = data.load("experiments.sets:spiral_sides", seed=3, standardise=False)
    goes_round(d, sets.spiral_sides(seed=4))
    assert (d.N, len(d.x_val), len(d.x_test)) == (320, 80, 1000)
    x, arm = data.spirals(1400, 0.2, seed=3)
    assert torch.equal(d.x_test, x[400:])
    assert torch.equal(d.y_test[:, 0], 2.0 * arm[400:] - 1.0)
    noisy = sets.spiral_sides(seed=3, error=0.5, n_test=4000, standardise=False)
    arm = data.spirals(4400, 0.2, seed=3)[1]
    looks_standard_normal((noisy.y_test[:, 0] - (2.0 * arm[400:] - 1.0)) / 0.5)


def test_polynomial_follows_its_formula() -> None:
    d = sets.polynomial(n_train=2, n_test=4000, noise=0.5, standardise=False)
    x = d.x_test[:, 1]
    torch.testing.assert_close(d.x_test, polynomial_features(x))
    looks_standard_normal(x)
    looks_standard_normal((d.y_test[:, 0] - x) / 0.5)
    x = torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64)
    expected = [[v**k for k in range(10)] + [math.sin(v), math.cos(v)] for v in x.tolist()]
    torch.testing.assert_close(polynomial_features(x), torch.tensor(expected, dtype=x.dtype))
    assert not sets.polynomial().x_test[:, 0].any()  # a constant is dead, standardised


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


# -- a part of CIFAR-10 ---------------------------------------------------------------------------


def test_part_of_cifar10(tmp_path: Path) -> None:
    """Two pictures of 2 x 3 for training, one for testing; labels of more images than that."""
    tiles = np.random.default_rng(0).integers(0, 256, (18, 32, 32, 3), np.uint8)
    labels, folder = np.arange(50, dtype=np.uint8) % 3, tmp_path / "CIFAR10"
    folder.mkdir()
    for name, first in (("train_00", 0), ("train_01", 6), ("test_00", 12)):
        rows = [np.concatenate(list(tiles[first + r : first + r + 3]), axis=1) for r in (0, 3)]
        Image.fromarray(np.concatenate(rows)).save(folder / f"{name}.webp", lossless=True)
    for split in ("train", "test"):
        packed = gzip.compress(struct.pack(">2I", 0x801, len(labels)) + labels.tobytes())
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(packed)
    d = data.load("experiments.sets:cifar10_part", data_root=tmp_path, val_fraction=0)
    assert (d.name, d.classes) == ("cifar10 (part: 12/6)", 10)
    assert d.class_names[:3] == ("airplane", "automobile", "bird")
    for x, own in ((d.x_train, tiles[:12]), (d.x_test, tiles[12:])):
        back = (x.permute(0, 2, 3, 1) * d.x_std + d.x_mean) * 255
        np.testing.assert_allclose(back, own, atol=1e-3)
    assert d.y_train.tolist() == labels[:12].tolist()


# -- WISDM v1.1: features of windows --------------------------------------------------------------

CLASSES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")


def table() -> list[list[str]]:
    """Twelve persons, six classes; XAVG is constant, every seventh XPEAK is missing."""
    values = np.random.default_rng(0).normal(5, 2, (240, 2)).round(2)
    lines = []
    for k, (first, last) in enumerate(values):
        peak = "?" if k % 7 == 0 else f"{1000 + k}"
        kind = CLASSES[k // 12 % 6]
        lines.append([str(k), str(k % 12 + 1), f"{first}", "0", peak, f"{last}", kind])
    return lines


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As in the published file: blanks behind quotes, none before the last braces."""
    users = " , ".join(f'"{k}"' for k in range(1, 13))
    lines = ["% a remark", "@relation activity_recognition", "", '@attribute "UNIQUE_ID" numeric']
    lines += [f'@attribute "user" {{{users}}} ']
    lines += [f'@attribute "{f}" numeric' for f in ("X0", "XAVG", "XPEAK", "RESULTANT")]
    classes = " , ".join(f'"{c}"' for c in CLASSES)
    lines += [f"@attribute class{{ {classes} }}", "", "@data", *map(",".join, table())]
    path = tmp_path_factory.mktemp("data") / "WISDM" / "WISDM_ar_v1.1_transformed.arff.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress("".join(f"{line}\r\n" for line in lines).encode()))
    return path.parents[1]


def numbers_of(d: data.Dataset, split: str) -> np.ndarray:
    """Which rows of :func:`table` a split holds, by their two random values."""
    values = np.array([[row[2], row[5]] for row in table()]).astype(float)
    mine = (d.split(split)[0] * d.x_std + d.x_mean)[:, [0, 3]].numpy()
    gaps = np.abs(mine[:, None] - values[None]).sum(2)
    assert gaps.min(1).max() < 1e-4
    return gaps.argmin(1)


def load_windows(root: Path, **options: object) -> data.Dataset:
    return data.load("experiments.sets:wisdm_windows", data_root=root, **options)


def test_features_classes_and_persons(windows: Path) -> None:
    d = load_windows(windows)
    assert (d.name, d.task, d.input_shape) == ("wisdm-windows", "classification", (4,))
    assert d.class_names == CLASSES
    parts = {split: numbers_of(d, split) for split in ("train", "val", "test")}
    assert sorted(np.concatenate([*parts.values()])) == list(range(240))
    for split, rows in parts.items():
        assert d.split(split)[1].tolist() == (rows // 12 % 6).tolist()
    persons = [set(rows % 12) for rows in parts.values()]
    assert sum(map(len, persons)) == len(set.union(*persons)) == 12
    assert [len(rows) for rows in parts.values()] == [180, 20, 40]  # 9, 1 and 2 persons
    goes_round(load_windows(windows, seed=1, test_fraction=0.4), load_windows(windows, seed=2))
    assert (load_windows(windows, standardise=False).x_std == 1).all()


@pytest.mark.parametrize("split_by", ["subject", "window"])
def test_missing_values_are_the_mean_of_the_training_rows(windows: Path, split_by: str) -> None:
    d = load_windows(windows, split_by=split_by, seed=2)
    train = numbers_of(d, "train")
    np.testing.assert_allclose(d.x_mean[2], (1000 + train[train % 7 != 0]).mean(), rtol=1e-6)
    for split in ("train", "val", "test"):
        missing = numbers_of(d, split) % 7 == 0
        assert missing.any() or split == "val"
        assert not (d.split(split)[0][missing, 2].abs() > 1e-4).any()  # 0 is the mean
        raw = d.split(split)[0][:, 2] * d.x_std[2] + d.x_mean[2]
        expected = 1000 + numbers_of(d, split)[~missing]
        np.testing.assert_allclose(raw[~missing], expected, rtol=1e-5)
    if split_by == "window":  # without regard to persons: a fifth of 48, 48, and four times 36
        assert d.y_test.bincount().tolist() == [10, 10, 7, 7, 7, 7]
        assert {row % 12 for row in numbers_of(d, "test")} == set(range(12))


# -- WISDM 2019: windows of a series --------------------------------------------------------------


def recording(
    subject: int, activity: str, count: int = 230, steps: Sequence[tuple[int, float]] = ()
) -> list[str]:
    """Lines of one recording; `steps` are (record, milliseconds before it) unlike 50.

    The axes say where a record comes from: x is its number within the recording, y the
    subject (from 0), z the activity, both small enough to leave the numbers their digits.
    """
    wait = np.full(count, 50.0)
    for record, milliseconds in steps:
        wait[record] = milliseconds
    # half a millisecond of jitter, as watches have
    jitter = np.random.default_rng(subject).uniform(-0.4, 0.4, count)
    time = (10**14 + (wait.cumsum() + jitter) * 1e6).astype(np.int64)
    axes = f"{subject - 1600},{'ABCDEFGH'.index(activity) / 10:E};"
    return [f"{subject},{activity},{time[k]},{k / 1000},{axes}" for k in range(count)]


def write_series(root: Path, lines: Sequence[str]) -> Path:
    """The file, packed, where it is looked for."""
    path = root / "WISDM" / "WISDM_2019_raw_watch_accel_A-E.txt.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return path


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten subjects, five activities, 31 windows each."""
    folder = tmp_path_factory.mktemp("data")
    people = range(1600, 1610)
    write_series(folder, [line for s in people for a in "ABCDE" for line in recording(s, a)])
    return folder


def load_series(root: Path, **options: object) -> data.Dataset:
    """A few windows on their own scale."""
    chosen = {"n_train": 102, "n_test": 50, "standardise": False, "data_root": root, **options}
    return data.load("experiments.sets:wisdm_series", **chosen)


def origin(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers (windows, 199), subject and activity (windows,) of windows of three axes."""
    axes = x.reshape(len(x), 199, 3).double().numpy()
    assert (axes[:, :, 1:] == axes[:, :1, 1:]).all()  # one subject, one activity
    return axes[:, :, 0] * 1000, axes[:, 0, 1], np.round(axes[:, 0, 2] * 10)


def test_windows_are_199_records_and_the_norm_of_the_next(series: Path) -> None:
    d = load_series(series)
    assert (d.name, d.task, d.input_shape, d.outputs) == ("wisdm-series", "regression", (597,), 1)
    for split in ("train", "val", "test"):
        x, y = d.split(split)
        numbers, subject, activity = origin(x)
        np.testing.assert_allclose(np.diff(numbers), 1, atol=1e-3)
        last = (numbers[:, -1] + 1) / 1000
        expected = np.sqrt(last**2 + subject**2 + (activity / 10) ** 2)
        np.testing.assert_allclose(y[:, 0], expected, rtol=1e-5)
    norms = load_series(series, channels="norm")
    torch.testing.assert_close(d.x_train.reshape(-1, 199, 3).norm(dim=2), norms.x_train)
    assert torch.equal(d.y_train, norms.y_train)
    goes_round(d, load_series(series, seed=4))
    scaled = load_series(series, standardise=True)
    assert scaled.x_train.mean(0).abs().max() < 1e-4
    torch.testing.assert_close(scaled.y_test * scaled.y_std + scaled.y_mean, d.y_test)


def test_subjects_are_in_one_split_only_and_activities_even(series: Path) -> None:
    d = load_series(series)
    people = [set(origin(d.split(split)[0])[1]) for split in ("train", "val", "test")]
    assert sum(map(len, people)) == len(set.union(*people)) == 10
    assert [len(p) for p in people] == [6, 1, 3]
    drawn = torch.cat([d.x_train, d.x_val])
    assert np.bincount(origin(drawn)[2].astype(int)).tolist() == [21, 21, 20, 20, 20]
    assert np.bincount(origin(d.x_test)[2].astype(int)).tolist() == [10] * 5
    rows = np.stack((*origin(drawn)[1:], origin(drawn)[0][:, 0].round()), 1)
    assert len(np.unique(rows, axis=0)) == 102  # no window twice
    d = load_series(series, split_by="window", n_train=1000, n_test=500, val_fraction=0.2)
    assert (d.N, len(d.x_val), len(d.x_test)) == (800, 200, 500)
    assert set(origin(d.x_train)[1]) == set(origin(d.x_test)[1])
    assert len(torch.cat([d.x_train, d.x_val, d.x_test]).unique(dim=0)) == 1500


def ends(root: Path, lines: Sequence[str]) -> list[int]:
    """Rows of the last records of all windows."""
    return watch._window_ends(watch._read([write_series(root, lines)])).tolist()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], [*range(199, 450)]),
        ([(210, 250.0)], [*range(199, 210), *range(409, 450)]),  # a gap
        ([(210, 0.0)], [*range(199, 210), *range(409, 450)]),  # a clock that stands still
        ([(210, -900.0)], [*range(199, 210), *range(409, 450)]),  # and one that runs back
        ([(k, 10.0) for k in range(205, 230)], [*range(199, 205), *range(428, 450)]),  # 100 Hz
        ([(210, 53.0)], [*range(199, 450)]),  # no more than uneven
        ([(150, 250.0), (300, 250.0), (449, 250.0)], []),
    ],
)
def test_no_window_over_a_step_of_another_length(
    tmp_path: Path, steps: list[tuple[int, float]], expected: list[int]
) -> None:
    assert ends(tmp_path, recording(1600, "A", 450, steps)) == expected


def test_no_window_over_a_change_of_activity_or_subject(tmp_path: Path) -> None:
    # times go on as if nothing had happened
    whole = recording(1600, "A", 600)
    lines = [line.replace("1600,A", "1600,B") for line in whole[210:415]]
    lines = whole[:210] + lines + [line.replace("1600", "1601") for line in whole[415:]]
    assert ends(tmp_path, lines) == [*range(199, 210), *range(409, 415)]
    # an activity that is not looked at parts two records of one that is
    other = [line.replace("A", "F") for line in whole[300:302]]
    assert ends(tmp_path, whole[:300] + other + whole[302:402]) == [*range(199, 300)]


@pytest.mark.parametrize(
    "broken",
    [
        "1600,A,100000000000000,1.0,2.0",
        "1600,A,100000000000000,1.0,nan,3.0;",
        "1600,A,1OO000000000000,1.0,2.0,3.0;",
        "x,A,100000000000000,1.0,2.0,3.0;",
        "1600,,100000000000000,1.0,2.0,3.0;",
        "1600,A,100000000000000,1.0,2.0,3.0;1600,A,100000050000000,1.0,2.0,3.0;",
        "",
    ],
)
def test_a_line_that_is_no_record_is_left_out_and_ends_windows(tmp_path: Path, broken: str) -> None:
    lines = recording(1600, "A", 450)
    lines[210] = broken
    # one record less from there on
    assert ends(tmp_path, lines) == [*range(199, 210), *range(409, 449)]
