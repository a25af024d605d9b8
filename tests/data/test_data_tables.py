"""A person's own .npz and .csv files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyroccam import data
from strange_files import csv, refused, reloaded


def arrays(rows: int = 20) -> dict[str, Any]:
    x, y = np.random.default_rng(0).normal(size=(rows, 3)), np.arange(rows) % 2
    return {"x_train": x, "y_train": y, "x_test": x[:6], "y_test": np.ones(6, int)}


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays(), extra=np.zeros(3))
    d = data.load(tmp_path / "mine.npz", seed=2)
    assert (d.name, d.task, d.classes, d.N) == ("mine", "classification", 2, 18)
    again = reloaded(d)
    assert torch.equal(d.x_val, again.x_val)
    assert data.load(str(tmp_path / "mine.npz"), task="regression").outputs == 1


def test_npz_without_an_array(tmp_path: Path) -> None:
    given = arrays()
    np.savez(tmp_path / "a.npz", inputs=given["x_train"], y_train=given["y_train"])
    words = "has no x_train, x_test, y_test", "only inputs, y_train", "numpy.savez"
    refused(tmp_path / "a.npz", *words)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_truncated_npz(tmp_path: Path, part: float) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **arrays(500))
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    refused(path, "not a whole .npz", "write it again")


def test_npz_with_a_spoilt_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **arrays(500))
    content = bytearray(path.read_bytes())
    content[300:310] = bytes(10)
    path.write_bytes(content)
    refused(path, "not a whole .npz")


def test_pickled_objects_are_never_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "boom",))

    given: dict[str, Any] = {**arrays(), "y_train": np.array([Bomb()] * 20, dtype=object)}
    np.savez(tmp_path / "a.npz", **given)
    refused(tmp_path / "a.npz", "object arrays")
    np.array([Bomb()], dtype=object).dump(tmp_path / "b.npz")
    refused(tmp_path / "b.npz", "plain arrays")
    assert not (tmp_path / "boom").exists()


def test_messages_name_the_file(tmp_path: Path) -> None:
    given = arrays()
    given["x_test"] = given["x_test"].copy()
    given["x_test"][4, 2] = np.nan
    np.savez(tmp_path / "a.npz", **given)
    refused(tmp_path / "a.npz", "x_test has 1 value(s)", "row 4, column 2")


def test_one_array_under_the_name_of_an_archive(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    refused(tmp_path / "a.npz", "holds one array")


def rows(count: int, last: Any) -> str:
    return "\n".join(f"{i},{i * i / 7},{last(i)}" for i in range(count)) + "\n"


def test_csv_of_text_labels(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,kind\n" + rows(40, lambda i: ["dog", "cat", "cat", "eel"][i % 4]))
    d = data.load(path, seed=1)
    assert (d.task, d.class_names, d.input_shape) == ("classification", ("cat", "dog", "eel"), (2,))
    assert (d.N, len(d.x_val), len(d.x_test)) == (29, 3, 8)
    assert d.y_test.bincount().tolist() == [4, 2, 2]  # each class keeps its share
    back = d.x_test * d.x_std + d.x_mean
    expected = [[1, 0, 0, 2][int(i) % 4] for i in back[:, 0].round()]
    assert d.y_test.tolist() == expected
    np.testing.assert_allclose(back[:, 1], back[:, 0].round() ** 2 / 7, rtol=1e-4, atol=1e-4)
    again = reloaded(d)
    assert torch.equal(d.x_test, again.x_test)
    assert not torch.equal(d.x_test, data.load(path, seed=2).x_test)


def test_csv_decides_the_task_by_the_target(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,y\n" + rows(60, lambda i: 3 + 2 * (i % 3)))
    d = data.load(path)
    assert (d.task, d.class_names) == ("classification", ("3", "5", "7"))
    assert data.load(path, task="regression").task == "regression"
    assert data.load(path, target="a").task == "regression"  # 60 distinct whole numbers
    assert data.load(path, target="b").task == "regression"  # fractions
    big = data.load(path, target="a", task="classification", test_fraction=0.1)
    assert big.classes == 60
    truth = csv(tmp_path, "a,b,y\n" + rows(20, lambda i: i % 2 == 0))
    assert data.load(truth).class_names == ("False", "True")
    large = csv(tmp_path, "a,b,y\n" + rows(20, lambda i: 10_000_000 + i % 2))
    assert data.load(large).class_names == ("10000000", "10000001")


def test_csv_regression_in_original_units(tmp_path: Path) -> None:
    d = data.load(csv(tmp_path, "a,b,y\n" + rows(50, lambda i: 2.5 * i)), test_fraction=0.4)
    assert (d.task, d.N, len(d.x_test)) == ("regression", 27, 20)
    x, y = d.x_test * d.x_std + d.x_mean, d.y_test * d.y_std + d.y_mean
    np.testing.assert_allclose(y, 2.5 * x[:, :1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,y\n1,red,2\n2,red,3\n", ["column 'b'", "'red'", "row 0", "encode"]),
        ("a,b,y\n1,2,2\n2,?,3\n", ["column 'b'", "'?'", "row 1"]),
        ("a,b,y\n1,2,2\n2,,3\n3,,1\n", ["2 value(s)", "row 1", "column 'b'"]),
        ("a,b,y\n1,2,2\n2,3,\n", ["row 1", "column 'y'"]),
        ("a,b,y\n1,2,2\n2,3\n", ["row 1", "column 'y'"]),
        ("a,b,y\n1,2,2\n2,3,4,5\n", ["line 3", "saw 4"]),
        ("a,b,y\n1,2,2,9\n2,3,4,5\n", ["more fields"]),
        ("a,b,y\n1,2,2\n2,inf,3\n", ["row 1", "column 1 ('b')", "inf"]),
        ("a,b,y\n", ["no rows"]),
        ("", ["cannot be read"]),
        ("1,2,3\n4,5,6\n", ["begins with numbers", "names of the columns"]),
        ("y\n1\n2\n", ["only the column 'y'"]),
        ("a,b,y\n1,2,x\n2,3,x\n", ["column 'y'", "only 'x'"]),
        ("a,b,y\n1,2,x\n", ["holds only"]),
        ("a,b,y\n1,2,0.5\n2,3,0.7\n", ["leaves 1 of 2 rows"]),
    ],
)
def test_csv_that_cannot_be_used(tmp_path: Path, text: str, words: list[str]) -> None:
    refused(csv(tmp_path, text), *words)


def test_csv_options_that_cannot_be(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,y\n" + rows(20, lambda i: i / 2))
    refused(path, "no column 'z'", "a, b, y", target="z")
    refused(path, "column 'y'", "0.5 in row 1", "task='regression'", task="classification")
    with pytest.raises(data.DataError, match="test_fraction=0;"):
        data.load(path, test_fraction=0)
    text = csv(tmp_path, "a,b,y\n" + rows(20, lambda i: "ab"[i % 2]))
    refused(text, "column 'y'", "'a' in row 0", task="regression")


def test_csv_that_is_not_text(tmp_path: Path) -> None:
    refused(csv(tmp_path, bytes(range(256)) * 4))
