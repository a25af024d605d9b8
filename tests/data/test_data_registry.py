"""load: names, paths, options, and sources that give the same data again."""

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import registry
from pyroccam.data.errors import PyroccamError
from strange_files import reloaded


def same(a: data.Dataset, b: data.Dataset) -> bool:
    """Whether two data sets agree in every split."""
    return all(
        torch.equal(s, t)
        for split in ("train", "val", "test")
        for s, t in zip(a.split(split), b.split(split), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("spirals", {"n": 300, "noise": 0.1, "train_fraction": 0.5}),
        ("wiggle", {"n": 50}),
        ("digits", {"flatten": True, "test_fraction": 0.5}),
    ],
)
def test_same_seed_same_data_and_source_goes_round(name: str, options: dict[str, float]) -> None:
    a = data.load(name, seed=5, **options)
    assert same(a, data.load(name, seed=5, **options))
    assert not same(a, data.load(name, seed=6, **options))
    again = reloaded(a)
    assert same(a, again)
    assert again.source == a.source
    assert a.source["name"] == name
    assert a.source["val_fraction"] == 0.1  # a default, written down


def test_numpy_numbers_in_a_source() -> None:
    source = data.load("wiggle", seed=np.int64(2), n=np.int64(40)).source
    assert json.loads(json.dumps(source))["seed"] == 2


def test_digits() -> None:
    d = data.load("digits", seed=0)
    assert (d.input_shape, d.classes) == ((1, 8, 8), 10)
    assert (d.N, len(d.x_val), len(d.x_test)) == (1294, 144, 359)
    share = torch.cat([d.y_train, d.y_val, d.y_test]).bincount() / 1797
    assert (d.y_test.bincount() - 359 * share).abs().max() < 1
    # 16 grey levels that come back after standardising
    raw = (d.x_test * d.x_std + d.x_mean) * 16
    assert (raw - raw.round()).abs().max() < 1e-4
    assert (raw.min().round(), raw.max().round()) == (0, 16)


def test_available_lists_names_that_load_knows() -> None:
    rows = data.available()
    names = [name for name, *_ in rows]
    assert {"spirals", "digits", "mnist", "cifar10", "uci/energy"} <= set(names)
    for name, task, origin, description in rows:
        assert task in ("classification", "regression")
        assert origin
        assert description
        with pytest.raises(PyroccamError):
            data.load(name, bogus=1)


def test_data_root_is_dropped_where_no_files_are_needed() -> None:
    d = data.load("wiggle", data_root="/no/such/place")
    assert "data_root" not in d.source


def test_names_ignore_case() -> None:
    assert data.load("Wiggle").source["name"] == "wiggle"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("spiral", {}),
        ("fashionmnist", {}),
        ("energy", {}),
        ("table.parquet", {}),
        ("spirals", {"size": 3}),
    ],
)
def test_unknown_names_and_options(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(PyroccamError):
        data.load(name, **options)


def test_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").touch()
    with pytest.raises(PyroccamError):
        data.load(tmp_path / "mien.csv")


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(registry) == (0, 1)
