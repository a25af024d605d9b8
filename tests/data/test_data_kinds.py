"""Inputs and labels as people have them: names of classes, grey bytes, ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import Dataset
from pyroccam.data.errors import PyroccamError

RNG = np.random.default_rng(0)
NAMES = np.array(["ant", "bee", "cow"])
LABELS = np.arange(30) % 3


def made(x: Any = None, y: Any = None, **options: Any) -> Dataset:
    """A data set whose test rows are its training rows."""
    x = RNG.normal(size=(30, 4)) if x is None else x
    y = LABELS if y is None else y
    return Dataset.from_tensors(x, y, x, y, val_fraction=0, **options)


def saved(folder: Path, x: np.ndarray, y: np.ndarray, name: str = "own.npz") -> Path:
    path = folder / name
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


@pytest.mark.parametrize(
    "labels", [NAMES[LABELS], NAMES[LABELS].astype(object), list(NAMES[LABELS])]
)
def test_names_of_classes_are_numbered_in_their_order(labels: Any) -> None:
    found = made(y=labels)
    assert found.class_names == ("ant", "bee", "cow")
    assert found.classes == 3
    assert found.y_train.tolist() == LABELS.tolist()
    other = made(y=labels, class_names=("cow", "bee", "ant"))
    assert other.y_train.tolist() == (2 - LABELS).tolist()


def test_names_in_a_file_and_in_one_of_new_rows(tmp_path: Path) -> None:
    x = RNG.normal(size=(30, 4))
    path = saved(tmp_path, x, NAMES[LABELS])
    found = data.load(path)
    assert found.class_names == ("ant", "bee", "cow")
    new = saved(tmp_path, x[:3], NAMES[[2, 2, 1]], "new.npz")
    assert data.new_rows(new, found).y_test.tolist() == [2, 2, 1]
    with pytest.raises(PyroccamError):
        data.new_rows(saved(tmp_path, x[:2], np.array(["ant", "dog"]), "dog.npz"), found)


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (NAMES[LABELS], {"task": "regression"}),
        (NAMES[LABELS], {"class_names": ("ant", "bee")}),
        (NAMES[LABELS][:, None], {}),
        (np.full(30, "ant"), {}),
    ],
)
def test_names_that_cannot_be_used(labels: Any, options: dict[str, Any]) -> None:
    with pytest.raises(PyroccamError):
        made(y=labels, **options)


def test_inputs_stay_numbers_where_they_are_text(tmp_path: Path) -> None:
    text = RNG.normal(size=(30, 4)).astype(str)
    with pytest.raises(PyroccamError):
        data.load(saved(tmp_path, text, LABELS))


def test_bytes_of_grey_images_get_their_channel(tmp_path: Path) -> None:
    grey = RNG.integers(0, 256, (30, 6, 6), np.uint8)
    found = data.load(saved(tmp_path, grey, LABELS), val_fraction=0)
    assert found.input_shape == (1, 6, 6)
    wanted = (grey - grey.mean()) / grey.std()
    torch.testing.assert_close(found.x_train, torch.tensor(wanted)[:, None].float())
    new = data.new_rows(saved(tmp_path, grey[:3], LABELS[:3], "new.npz"), found)
    assert torch.equal(new.x_test, found.x_train[:3])
    assert made(x=grey.astype(np.float32)).input_shape == (6, 6)  # sequences, as far as one can see


def test_ids_are_left_alone(tmp_path: Path) -> None:
    words = RNG.integers(0, 50, (30, 7))
    path = saved(tmp_path, words, LABELS)
    found = data.load(path, ids=True)
    assert found.x_train.dtype == torch.int64
    assert torch.equal(found.x_test, torch.tensor(words))
    assert data.load(**found.source).x_train.equal(found.x_train)
    assert found.to(dtype=torch.float64).x_train.dtype == torch.int64
    new = data.new_rows(saved(tmp_path, words[:2].astype(float), LABELS[:2], "new.npz"), found)
    assert torch.equal(new.x_test, torch.tensor(words[:2]))
    assert not data.far_off(new)
    for bad in (-1.0, 0.5):
        with pytest.raises(PyroccamError):
            made(x=np.where(np.arange(30)[:, None] == 3, bad, words), ids=True)
