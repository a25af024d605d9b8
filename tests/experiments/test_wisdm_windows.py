"""WISDM v1.1: features of windows, on small files in the format of the published one."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from pyroccam import data
from strange_files import reloaded

WINDOWS = "experiments.sets:wisdm_windows"
ARFF = "WISDM_ar_v1.1_transformed.arff.gz"
FEATURES = ["X0", "XAVG", "XPEAK", "RESULTANT"]
CLASSES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table, where it is looked for."""
    folder = tmp_path_factory.mktemp("data")
    write_arff(folder, table())
    return folder


def table(rows: int = 240) -> list[list[str]]:
    """Twelve persons, six classes; XAVG is constant, every seventh XPEAK is missing."""
    values = np.random.default_rng(0).normal(5, 2, (rows, 2)).round(2)
    lines = []
    for k in range(rows):
        peak = "?" if k % 7 == 0 else f"{1000 + k}"
        lines.append([str(k), str(k % 12 + 1), f"{values[k, 0]}", "0", peak])
        lines[-1] += [f"{values[k, 1]}", CLASSES[k // 12 % 6]]
    return lines


def header() -> list[str]:
    """As in the published file: blanks behind quotes, none before the last braces."""
    users = " , ".join(f'"{k}"' for k in range(1, 13))
    lines = ["% a remark", "@relation activity_recognition", "", '@attribute "UNIQUE_ID" numeric']
    lines += [f'@attribute "user" {{{users}}} '] + [f'@attribute "{f}" numeric' for f in FEATURES]
    classes = " , ".join(f'"{c}"' for c in CLASSES)
    return [*lines, f"@attribute class{{ {classes} }}", "", "@data"]


def write_arff(root: Path, rows: list[list[str]], head: list[str] | None = None) -> Path:
    """The file, packed, where it is looked for."""
    path = root / "WISDM" / ARFF
    path.parent.mkdir(exist_ok=True)
    lines = (header() if head is None else head) + [",".join(row) for row in rows]
    path.write_bytes(gzip.compress("".join(f"{line}\r\n" for line in lines).encode()))
    return path


def numbers_of(d: data.Dataset, split: str) -> np.ndarray:
    """Which rows of :func:`table` a split holds, by their two random values."""
    values = np.array([[row[2], row[5]] for row in table()]).astype(float)
    mine = (d.split(split)[0] * d.x_std + d.x_mean)[:, [0, 3]].numpy()
    gaps = np.abs(mine[:, None] - values[None]).sum(2)
    assert gaps.min(1).max() < 1e-4
    return gaps.argmin(1)


def test_features_classes_and_persons(root: Path) -> None:
    d = data.load(WINDOWS, data_root=root)
    assert (d.name, d.task, d.input_shape, d.classes) == (
        *("wisdm-windows", "classification", (4,), 6),
    )
    assert d.class_names == CLASSES
    parts = {split: numbers_of(d, split) for split in ("train", "val", "test")}
    assert sorted(np.concatenate([*parts.values()])) == list(range(240))
    for split, rows in parts.items():
        assert d.split(split)[1].tolist() == (rows // 12 % 6).tolist()
    persons = [set(rows % 12) for rows in parts.values()]
    assert sum(map(len, persons)) == len(set.union(*persons)) == 12
    assert [len(rows) for rows in parts.values()] == [180, 20, 40]  # 9, 1 and 2 persons


def test_rows_can_be_split_without_regard_to_persons(root: Path) -> None:
    d = data.load(WINDOWS, data_root=root, split_by="window")
    assert (d.N, len(d.x_val), len(d.x_test)) == (173, 19, 48)
    # a fifth of 48, 48, and four times 36
    assert d.y_test.bincount().tolist() == [10, 10, 7, 7, 7, 7]
    assert {row % 12 for row in numbers_of(d, "test")} == set(range(12))


@pytest.mark.parametrize("split_by", ["subject", "window"])
def test_missing_values_are_the_mean_of_the_training_rows(root: Path, split_by: str) -> None:
    d = data.load(WINDOWS, data_root=root, split_by=split_by, seed=2)
    train = numbers_of(d, "train")
    known = train[train % 7 != 0]
    np.testing.assert_allclose(d.x_mean[2], (1000 + known).mean(), rtol=1e-6)
    for split in ("train", "val", "test"):
        missing = numbers_of(d, split) % 7 == 0
        assert missing.any() or split == "val"
        assert not (d.split(split)[0][missing, 2].abs() > 1e-4).any()  # 0 is the mean
        raw = d.split(split)[0][:, 2] * d.x_std[2] + d.x_mean[2]
        expected = 1000 + numbers_of(d, split)[~missing]
        np.testing.assert_allclose(raw[~missing], expected, rtol=1e-5)


def test_windows_source_goes_round(root: Path) -> None:
    d = data.load(WINDOWS, data_root=root, seed=1, test_fraction=0.4)
    again = reloaded(d)
    assert torch.equal(d.x_train, again.x_train)
    assert torch.equal(d.y_test, again.y_test)
    other = data.load(WINDOWS, data_root=root, seed=2, test_fraction=0.4)
    assert set(numbers_of(d, "test")) != set(numbers_of(other, "test"))
    raw = data.load(WINDOWS, data_root=root, standardise=False)
    assert (raw.x_std == 1).all()
