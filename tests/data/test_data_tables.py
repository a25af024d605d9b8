"""A person's own .npz and .csv files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data.errors import PyroccamError
from strange_files import csv, refused, reloaded


def arrays(rows: int = 20) -> dict[str, Any]:
    x, y = np.random.default_rng(0).normal(size=(rows, 3)), np.arange(rows) % 2
    return {"x_train": x, "y_train": y, "x_test": x[:6], "y_test": np.ones(6, int)}


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())
    d = data.load(tmp_path / "mine.npz", seed=2)
    assert (d.name, d.task, d.classes, d.N) == ("mine", "classification", 2, 18)
    again = reloaded(d)
    assert torch.equal(d.x_val, again.x_val)
    assert data.load(str(tmp_path / "mine.npz"), task="regression").outputs == 1


def test_npz_without_an_array(tmp_path: Path) -> None:
    given = arrays()
    np.savez(tmp_path / "a.npz", inputs=given["x_train"], y_train=given["y_train"])
    refused(tmp_path / "a.npz")


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_truncated_npz(tmp_path: Path, part: float) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **arrays(500))
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    refused(path)


def test_npz_with_a_spoilt_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **arrays(500))
    content = bytearray(path.read_bytes())
    content[300:310] = bytes(10)
    path.write_bytes(content)
    refused(path)


def test_pickled_objects_are_never_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "boom",))

    given: dict[str, Any] = {**arrays(), "y_train": np.array([Bomb()] * 20, dtype=object)}
    np.savez(tmp_path / "a.npz", **given)
    refused(tmp_path / "a.npz")
    np.array([Bomb()], dtype=object).dump(tmp_path / "b.npz")
    refused(tmp_path / "b.npz")
    assert not (tmp_path / "boom").exists()


def test_one_array_under_the_name_of_an_archive(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    refused(tmp_path / "a.npz")


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
    "text",
    [
        "a,b,y\n1,red,2\n2,red,3\n",
        "a,b,y\n1,2,2\n2,?,3\n",
        "a,b,y\n1,2,2\n2,,3\n3,,1\n",
        "a,b,y\n1,2,2\n2,3,\n",
        "a,b,y\n1,2,2\n2,3\n",
        "a,b,y\n1,2,2\n2,3,4,5\n",
        "a,b,y\n1,2,2,9\n2,3,4,5\n",
        "a,b,y\n1,2,2\n2,inf,3\n2,1,3\n1,1,3\n1,1,2\n",
        "a,b,y\n",
        "",
        "1,2,3\n4,5,6\n",
        "y\n1\n2\n",
        "a,b,y\n1,2,x\n2,3,x\n",
        "a,b,y\n1,2,x\n",
        "a,b,y\n1,2,0.5\n2,3,0.7\n",
    ],
)
def test_csv_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    refused(csv(tmp_path, text))


def test_csv_options_that_cannot_be(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,y\n" + rows(20, lambda i: i / 2))
    refused(path, target="z")
    refused(path, task="classification")
    with pytest.raises(PyroccamError):
        data.load(path, test_fraction=0)
    text = csv(tmp_path, "a,b,y\n" + rows(20, lambda i: "ab"[i % 2]))
    refused(text, task="regression")


def test_csv_that_is_not_text(tmp_path: Path) -> None:
    refused(csv(tmp_path, bytes(range(256)) * 4))


def test_an_npz_brings_its_validation_rows_and_nothing_else(tmp_path: Path) -> None:
    given = arrays()
    x_val = given["x_train"][:5] + 1
    np.savez(tmp_path / "a.npz", **given, x_val=x_val, y_val=given["y_train"][:5])
    d = data.load(tmp_path / "a.npz")
    assert d.counts == {"train": 20, "val": 5, "test": 6}
    np.testing.assert_allclose(d.x_val * d.x_std + d.x_mean, x_val, rtol=1e-5, atol=1e-5)
    np.savez(tmp_path / "b.npz", **given, weights_train=np.ones(20))
    refused(tmp_path / "b.npz")


CITIES = ["Riga", "Oslo", "Rome"]


def cities(count: int, seed: int = 0) -> list[str]:
    r = np.random.default_rng(seed)
    rows = r.normal(size=(count, 2))
    places = r.integers(0, 3, count)
    return [f"{a},{CITIES[k]},{b},{a + b + k}" for (a, b), k in zip(rows, places, strict=True)]


def test_texts_become_columns_in_training_in_tests_and_in_new_rows(tmp_path: Path) -> None:
    head, lines = "a,city,b,y", cities(60)
    path = csv(tmp_path, "\n".join([head, *lines]))
    refused(path)
    d = data.load(path, categorical="auto")
    assert d.columns == ("a", "b", "city_Oslo", "city_Riga", "city_Rome")
    assert torch.equal(d.x_train, data.load(path, categorical="city").x_train)
    raw = d.x_train.double() * d.scaling.x_std + d.scaling.x_mean
    np.testing.assert_allclose(raw[:, 2:].sum(1), 1.0, atol=1e-6)
    assert d.record()["categories"] == {"city": ["Oslo", "Riga", "Rome"]}
    assert reloaded(d).digest == d.digest
    (tmp_path / "new.csv").write_text("city,y,b,a\nRome,1.5,0.5,1.0\n")
    new = data.new_rows(tmp_path / "new.csv", like=d)
    back = new.x_test.double() * d.scaling.x_std + d.scaling.x_mean
    np.testing.assert_allclose(back, [[1.0, 0.5, 0.0, 0.0, 1.0]], atol=1e-6)
    (tmp_path / "new.csv").write_text("a,city,b,y\n1,Rome,1,1\n1,Bonn,1,1\n")
    with pytest.raises(PyroccamError):
        data.new_rows(tmp_path / "new.csv", like=d)
    many = [f"{k},t{k % 51},{k / 7}" for k in range(102)]
    refused(csv(tmp_path, "\n".join(["a,t,y", *many])), categorical="auto")


def test_test_rows_of_a_table_of_their_own(tmp_path: Path) -> None:
    head = "a,city,b,y"
    path = csv(tmp_path, "\n".join([head, *cities(40)]))
    (tmp_path / "test.csv").write_text("\n".join([head, *cities(7, seed=1)]))
    d = data.load(path, categorical="auto", test=tmp_path / "test.csv")
    assert d.counts == {"train": 36, "val": 4, "test": 7}
    expected = [float(line.split(",")[0]) for line in cities(7, seed=1)]
    found = d.x_test[:, 0].double() * d.scaling.x_std[0] + d.scaling.x_mean[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert reloaded(d).digest == d.digest
    (tmp_path / "test.csv").write_text("a,city,b,y\n1,Riga,2,3\n1,Bonn,2,3\n")
    refused(path, categorical="auto", test=str(tmp_path / "test.csv"))
    labels = csv(tmp_path, "a,y\n" + "\n".join(f"{k},{'uv'[k % 2]}" for k in range(20)))
    (tmp_path / "test.csv").write_text("a,y\n1,u\n2,w\n")
    refused(labels, test=str(tmp_path / "test.csv"))


def test_inputs_and_columns_to_leave_out(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,c,y\n" + "\n".join(f"{k},{k % 7},,{k / 3}" for k in range(30)))
    assert data.load(path, drop="c").columns == ("a", "b")
    assert data.load(path, inputs="b, a").columns == ("b", "a")
    assert data.load(path, target="a", inputs=["y"]).columns == ("y",)
    refused(path, inputs="a,z")
    refused(path, inputs="a,y")


@pytest.mark.parametrize(
    ("head", "row", "ok"),
    [
        ("y,city_Oslo,city_Riga", lambda k: f"{k / 3},{k % 2},{1 - k % 2}", False),
        ("y,city_Oslo,city_Riga", lambda k: f"{k / 3},{k % 2 == 0},{k % 2 == 1}", False),
        ("y,city_Oslo,city_Riga", lambda k: f"{k / 3},{int(k % 3 == 0)},{int(k % 3 == 1)}", False),
        ("y,city_Oslo,home_Riga", lambda k: f"{k / 3},{int(k % 3 == 0)},{int(k % 3 == 1)}", True),
        ("x,is_old,is_ill", lambda k: f"{k / 3},{k % 2},{int(k % 3 > 0)}", True),
        ("x,n_rooms,label", lambda k: f"{k / 3},{k},{k % 2}", True),
    ],
)
def test_the_last_of_some_dummies_is_no_target(
    tmp_path: Path, head: str, row: Any, ok: bool
) -> None:
    path = csv(tmp_path, "\n".join([head, *map(row, range(30))]))
    if ok:
        assert data.load(path).target == head.rpartition(",")[2]
    else:
        refused(path)
        assert data.load(path, target="y").columns == ("city_Oslo", "city_Riga")


def test_rows_with_a_code_for_missing_values_are_left_out(tmp_path: Path) -> None:
    lines = [f"{k},{k * k / 7},{k / 3}" for k in range(40)]
    plain = data.load(csv(tmp_path, "\n".join(["a,b,y", *lines])))
    path = csv(tmp_path, "\n".join(["a,b,y", "9999,1,2", *lines, "1,-1,2"]))
    with pytest.warns(data.DataWarning, match="2 of 42 rows"):
        d = data.load(path, missing="9999,-1")
    assert d.digest == plain.digest
    assert torch.equal(d.x_train, plain.x_train)
    given = arrays()
    np.savez(tmp_path / "a.npz", **given)
    bad = {**given, "x_train": np.r_[given["x_train"], [[9999.0, 1, 1]]].astype(np.float32)}
    np.savez(tmp_path / "b.npz", **bad | {"y_train": np.r_[given["y_train"], 0]})
    with pytest.warns(data.DataWarning, match="1 of 21 rows"):
        left = data.load(tmp_path / "b.npz", missing=9999)
    np.testing.assert_allclose(left.x_train, data.load(tmp_path / "a.npz").x_train, rtol=1e-5)


def test_a_wild_cell_of_a_table_is_named_by_its_row_and_column(tmp_path: Path) -> None:
    lines = cities(60)
    lines[17] = "0.5,Riga,9999,1.0"
    path = csv(tmp_path, "\n".join(["a,city,b,y", *lines]))
    for seed in range(4):  # in training, validation or test rows
        with pytest.warns(data.DataWarning, match=r"9999 in row 17, column 1 \('b'\)"):
            data.load(path, categorical="city", seed=seed)
