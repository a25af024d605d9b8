"""UCI folders with fixed splits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data.errors import PyroccamError
from strange_files import reloaded


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A set of 30 rows: features 0 and 2, target 1, column 3 unused; two splits."""
    folder = tmp_path / "uci" / "energy"
    folder.mkdir(parents=True)
    table = np.random.default_rng(0).normal(10, 3, (30, 4))
    np.savetxt(folder / "data.txt", table)
    np.savetxt(folder / "index_features.txt", [0, 2])
    np.savetxt(folder / "index_target.txt", [1])
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
    with pytest.raises(PyroccamError):
        data.load("uci/boston", data_root=root)
    with pytest.raises(PyroccamError):
        data.load("uci/boston", data_root=root / "nowhere")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("index_train_0.txt", "0\n30\n"),
        ("index_train_0.txt", "0\n1.5\n"),
        ("index_train_0.txt", "3\n3\n"),
        ("index_test_0.txt", "\n".join(map(str, range(10)))),
        ("index_target.txt", "2\n"),
        ("index_target.txt", "nan\n"),
        ("data.txt", "1 2 3 4\n1 2 3\n"),
        ("data.txt", "1 2 x 4\n"),
        ("data.txt", ""),
        ("data.txt", "1 2 3 4\n1 2 nan 4\n"),
        ("index_test_0.txt", None),
    ],
)
def test_broken_files(root: Path, file: str, text: str | None) -> None:
    path = root / "uci/energy" / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(PyroccamError):
        data.load("uci/energy", data_root=root)


@pytest.mark.parametrize("split", [2, -1, 0.5])
def test_split_out_of_range(root: Path, split: float) -> None:
    with pytest.raises(PyroccamError):
        data.load("uci/energy", data_root=root, split=split)
