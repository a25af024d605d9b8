"""Several inputs of a row: kept side by side, scaled where they are amounts, and given back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import Dataset
from pyroccam.data.errors import PyroccamError
from several import of, pictured
from strange_files import reloaded

PICTURED = pictured(80)[0]


def test_amounts_are_scaled_by_channel_and_the_rest_comes_back_as_it_was() -> None:
    own = of(pictured)
    assert own.shapes == {"ids": (5,), "picture": (2, 3, 3), "mask": (5,)}
    assert own.input_shape == (5 + 18 + 5,)
    given, (x, _) = own.fields.split(own.x_test), pictured(30, seed=1)
    for name in ("ids", "mask"):
        assert torch.equal(given[name], x[name])  # the type too
    train = own.fields.split(own.x_train)
    places = [int((x_row == PICTURED["ids"]).all(1).nonzero()[0]) for x_row in train["ids"]]
    raw = PICTURED["picture"].double().numpy()[places]
    expected = x["picture"].double().numpy() - raw.mean((0, 2, 3))[:, None, None]
    expected /= raw.std((0, 2, 3))[:, None, None]
    np.testing.assert_allclose(given["picture"], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(own.packed(given), own.x_test)
    assert "picture (2, 3, 3) float" in repr(own)


def test_a_tuple_goes_by_place_and_a_tuple_of_rows_is_an_array() -> None:
    x, y = pictured(80)
    pair = (x["ids"], x["picture"][:, 0, 0, 0])
    own = Dataset.from_tensors(pair, y, pair, y, standardise=False)
    assert own.shapes == ((5,), ())
    assert all(map(torch.equal, own.fields.split(own.x_test), pair))
    rows = tuple(torch.randn(80, 3))
    assert Dataset.from_tensors(rows, y, rows, y).input_shape == (3,)


def arrays(key: str, x: dict[str, Any]) -> dict[str, np.ndarray]:
    return {f"{key}.{name}": part.numpy() for name, part in x.items()}


def saved(path: Path, **more: Any) -> Path:
    (x, y), (x_test, y_test) = pictured(80), pictured(30, seed=1)
    np.savez(
        path, y_train=y, y_test=y_test, **arrays("x_train", x), **arrays("x_test", x_test), **more
    )
    return path


def test_an_archive_holds_them_by_name_and_new_rows_are_found_by_it(tmp_path: Path) -> None:
    own = data.load(saved(tmp_path / "own.npz"))
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


def test_places_of_an_archive_are_numbers(tmp_path: Path) -> None:
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
def test_what_cannot_be_kept_is_refused_by_name(change: dict[str, Any]) -> None:
    x, y = pictured(80)
    with pytest.raises(PyroccamError):
        Dataset.from_tensors({**x, **change}, y, x, y)


def test_rows_of_another_kind_are_refused() -> None:
    own, (x, y) = of(pictured), pictured(80)
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(x, y, {**x, "ids": x["ids"].float()}, y)
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(x, y, x, y, ids=True)
    with pytest.raises(PyroccamError):
        Dataset.from_tensors(x["ids"], y, x["ids"], y).packed(x)
    with pytest.raises(PyroccamError):
        own.to(dtype=torch.float16)
    assert torch.equal(own.fields.split(own.to(dtype=torch.float64).x_test)["ids"],
                       own.fields.split(own.x_test)["ids"])  # fmt: skip


def test_a_record_knows_which_input_is_which() -> None:
    own, (x, y) = of(pictured), pictured(80)
    record = json.loads(json.dumps(own.record()))
    assert own.differences(record) == []
    other = Dataset.from_tensors({"idx": x["ids"], **x}, y, {"idx": x["ids"], **x}, y)
    assert any("inputs of a row are idx (5,) int64" in said for said in other.differences(record))
    with pytest.raises(PyroccamError):
        other.refuse_another_kind(own)
