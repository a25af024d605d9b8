"""UCI folders with fixed splits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pyroccam import data
from strange_files import reloaded, saying


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A set of 30 rows: features 0 and 2, target 1, column 3 unused; two splits."""
    folder = tmp_path / "uci" / "energy"
    folder.mkdir(parents=True)
    table = np.random.default_rng(0).normal(10, 3, (30, 4))
    np.savetxt(folder / "data.txt", table)
    np.savetxt(folder / "index_features.txt", [0, 2])
    np.savetxt(folder / "index_target.txt", [1])
    np.savetxt(folder / "n_splits.txt", [2])
    for split in range(2):
        order = np.random.default_rng(split).permutation(30)
        np.savetxt(folder / f"index_train_{split}.txt", order[:24])
        np.savetxt(folder / f"index_test_{split}.txt", order[24:])
    return tmp_path


def test_columns_rows_and_split(root: Path) -> None:
    d = data.load("uci/energy", data_root=root, split=1, seed=0)
    assert (d.name, d.task, d.N, len(d.x_val)) == ("uci/energy", "regression", 22, 2)
    table = np.loadtxt(root / "uci/energy/data.txt")
    test = table[np.random.default_rng(1).permutation(30)[24:]]
    np.testing.assert_allclose(d.x_test * d.x_std + d.x_mean, test[:, [0, 2]], rtol=1e-5)
    np.testing.assert_allclose(d.y_test * d.y_std + d.y_mean, test[:, [1]], rtol=1e-5)
    other = data.load("uci/energy", data_root=root, split=0)
    assert not torch.equal(d.x_test, other.x_test)
    again = reloaded(d)
    assert torch.equal(d.x_train, again.x_train)
    assert again.source == d.source


def test_ways_to_name_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = data.load("uci/energy", data_root=root).x_train
    assert torch.equal(data.load("uci/energy", data_root=str(root / "uci")).x_train, expected)
    monkeypatch.setenv("PYROCCAM_DATA", str(root))
    d = data.load("uci/energy")
    assert torch.equal(d.x_train, expected)
    assert "data_root" not in d.source
    (root / "uci/energy").rename(root / "uci/wine-quality-red")
    assert data.load("uci/wine").N == data.load("uci/wine-quality-red").N == 22


def test_missing_set_lists_those_that_are_there(root: Path) -> None:
    with pytest.raises(data.DataError, match=r"uci/bostonHousing; .* there: uci/energy;"):
        data.load("uci/boston", data_root=root)
    with pytest.raises(data.DataError, match="data_root="):
        data.load("uci/boston", data_root=root / "nowhere")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("index_train_0.txt", "0\n30\n", ["index_train_0.txt", "30 as number 1", "0 to 29"]),
        ("index_train_0.txt", "0\n1.5\n", ["1.5 as number 1"]),
        ("index_train_0.txt", "3\n3\n", ["twice"]),
        ("index_test_0.txt", "\n".join(map(str, range(10))), ["share", "index_train_0.txt"]),
        ("index_target.txt", "2\n", ["share 1", "2 first"]),
        ("index_target.txt", "nan\n", ["nan as number 0"]),
        ("data.txt", "1 2 3 4\n1 2 3\n", ["data.txt", "not a table"]),
        ("data.txt", "1 2 x 4\n", ["data.txt", "'x'"]),
        ("data.txt", "", ["data.txt is empty"]),
        ("data.txt", "1 2 3 4\n1 2 nan 4\n", ["data.txt", "row 1, column 2"]),
        ("n_splits.txt", None, ["n_splits.txt is missing"]),
        ("index_test_0.txt", None, ["index_test_0.txt is missing"]),
    ],
)
def test_broken_files(root: Path, file: str, text: str | None, words: list[str]) -> None:
    path = root / "uci/energy" / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with saying(*words):
        data.load("uci/energy", data_root=root)


@pytest.mark.parametrize("split", [2, -1, 0.5])
def test_split_out_of_range(root: Path, split: float) -> None:
    with pytest.raises(data.DataError, match=f"uci/energy: split={split}; .* from 0 to 1"):
        data.load("uci/energy", data_root=root, split=split)
