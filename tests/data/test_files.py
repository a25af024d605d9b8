"""A person's own .npz and .csv files, and those of strangers: whatever is broken says so."""

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from pyroccam import data
from pyroccam.data import PyroccamError, TooLarge, allowing, ask, read_bytes
from pyroccam.data.limits import VARIABLE, allowed_bytes
from strange_files import (
    ARRAYS,
    X,
    csv,
    gz,
    header,
    in_little_memory,
    mnist,
    npz,
    refused,
    reloaded,
)


def arrays(rows=20):
    x, y = np.random.default_rng(0).normal(size=(rows, 3)), np.arange(rows) % 2
    return {"x_train": x, "y_train": y, "x_test": x[:6], "y_test": np.ones(6, int)}


def test_an_archive_and_its_validation_rows(tmp_path):
    given = arrays()
    np.savez(tmp_path / "mine.npz", **given)
    d = data.load(tmp_path / "mine.npz", seed=2)
    assert (d.name, d.task, d.classes, d.N) == ("mine", "classification", 2, 18)
    assert torch.equal(d.x_val, reloaded(d).x_val)
    x_val = given["x_train"][:5] + 1
    np.savez(tmp_path / "a.npz", **given, x_val=x_val, y_val=given["y_train"][:5])
    d = data.load(tmp_path / "a.npz")
    assert d.counts == {"train": 20, "val": 5, "test": 6}
    np.testing.assert_allclose(d.x_val * d.x_std + d.x_mean, x_val, rtol=1e-5, atol=1e-5)
    np.savez(tmp_path / "b.npz", **given, weights_train=np.ones(20))
    refused(tmp_path / "b.npz")


def test_pickled_objects_are_never_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "boom",))

    given = {**arrays(), "y_train": np.array([Bomb()] * 20, dtype=object)}
    np.savez(tmp_path / "a.npz", **given)
    refused(tmp_path / "a.npz")
    np.array([Bomb()], dtype=object).dump(tmp_path / "b.npz")
    refused(tmp_path / "b.npz")
    assert not (tmp_path / "boom").exists()


def rows(count, last):
    return "\n".join(f"{i},{i * i / 7},{last(i)}" for i in range(count)) + "\n"


def test_text_labels_keep_their_shares_in_the_test_rows_of_a_table(tmp_path):
    path = csv(tmp_path, "a,b,kind\n" + rows(40, lambda i: ["dog", "cat", "cat", "eel"][i % 4]))
    d = data.load(path, seed=1)
    assert d.class_names == ("cat", "dog", "eel")
    assert d.y_test.bincount().tolist() == [4, 2, 2]


def test_a_column_may_be_called_y_1(tmp_path):
    rows = b"".join(b"%d,%d,%d\n" % (k % 7, k % 5, k % 2) for k in range(40))
    d = data.load(csv(tmp_path, b'\xef\xbb\xbf"a, b", y.1 ,y\n' + rows))
    assert (d.columns, d.target) == (("a, b", "y.1"), "y")


def test_numbers_of_many_digits_are_numbers(tmp_path):
    rows = b"".join(b"%d,%d.5\n" % (10**25 + k * 10**24, k) for k in range(20))
    d = data.load(csv(tmp_path, b"a,y\n" + rows), standardise=False)
    assert d.x_train.min() >= 1e25
    d = data.load(tmp_path / "mine.csv", target="a")
    assert (d.task, d.N) == ("regression", 14)


@pytest.mark.parametrize(
    "content",
    [
        b"a,b,y\n1,red,2\n2,red,3\n",
        b"a,b,y\n1,2,2\n2,,3\n3,,1\n",
        b"a,b,y\n1,2,2\n2,3\n",
        b"a,b,y\n1,2,2,9\n2,3,4,5\n",
        b"a,b,y\n1,2,2\n2,inf,3\n2,1,3\n1,1,3\n1,1,2\n",
        b"a,b,y\n",
        b"",
        b"1,2,3\n4,5,6\n",
        b"y\n1\n2\n",
        b"a,y , y\n1,2,2\n2,3,3\n",
        b"\xef\xbb\xbfa,b,a\n1,2,2\n2,3,3\n",
        b",a,y\n0,1,2\n1,2,3\n",
        b"a,y\n1,2\n\0,3\n",
        b'a,y\n"1,2\n',
        b"a" * 200_000 + b",y\n1,2\n",
        b"a,y\n1j,2\n1,2\n",
        b"a,y\x1b[31m\n1,x\n2,x\n",
        b",".join(b"c%d" % k for k in range(100_001)) + b"\n1\n",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_tables_that_cannot_be_used(tmp_path, content):
    refused(csv(tmp_path, content))


CITIES = ["Riga", "Oslo", "Rome"]


def cities(count, seed=0):
    r = np.random.default_rng(seed)
    rows = r.normal(size=(count, 2))
    places = r.integers(0, 3, count)
    return [f"{a},{CITIES[k]},{b},{a + b + k}" for (a, b), k in zip(rows, places, strict=True)]


def test_texts_become_columns_in_training_in_tests_and_in_new_rows(tmp_path):
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


def test_test_rows_of_a_table_of_their_own(tmp_path):
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


def test_inputs_and_columns_to_leave_out(tmp_path):
    path = csv(tmp_path, "a,b,c,y\n" + "\n".join(f"{k},{k % 7},,{k / 3}" for k in range(30)))
    assert data.load(path, drop="c").columns == ("a", "b")
    assert data.load(path, inputs="b, a").columns == ("b", "a")
    assert data.load(path, target="a", inputs=["y"]).columns == ("y",)


@pytest.mark.parametrize(
    ("head", "row", "ok"),
    [
        ("y,city_Oslo,city_Riga", lambda k: f"{k / 3},{k % 2},{1 - k % 2}", False),
        ("y,city_Oslo,city_Riga", lambda k: f"{k / 3},{int(k % 3 == 0)},{int(k % 3 == 1)}", False),
        ("y,city_Oslo,home_Riga", lambda k: f"{k / 3},{int(k % 3 == 0)},{int(k % 3 == 1)}", True),
        ("x,is_old,is_ill", lambda k: f"{k / 3},{k % 2},{int(k % 3 > 0)}", True),
    ],
)
def test_the_last_of_some_dummies_is_no_target(tmp_path, head, row, ok):
    path = csv(tmp_path, "\n".join([head, *map(row, range(30))]))
    if ok:
        assert data.load(path).target == head.rpartition(",")[2]
    else:
        refused(path)
        assert data.load(path, target="y").columns == ("city_Oslo", "city_Riga")


def test_rows_with_a_code_for_missing_values_are_left_out(tmp_path):
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


def test_a_wild_cell_of_a_table_is_named_by_its_row_and_column(tmp_path):
    lines = cities(60)
    lines[17] = "0.5,Riga,9999,1.0"
    path = csv(tmp_path, "\n".join(["a,city,b,y", *lines]))
    for seed in range(4):  # in training, validation or test rows
        with pytest.warns(data.DataWarning, match=r"9999 in row 17, column 1 \('b'\)"):
            data.load(path, categorical="city", seed=seed)


def test_a_table_takes_no_more_than_it_asks_for(tmp_path):
    # Short rows are filled up: 4 MB ask for gigabytes.
    lines = b",".join(b"c%d" % k for k in range(50_000)) + b"\n" + b"1\n" * 50_000
    with in_little_memory():
        refused(csv(tmp_path, lines), kind=TooLarge)
    values = np.random.default_rng(0).integers(0, 9, (20_000, 40))
    path = csv(tmp_path, ",".join(f"c{k}" for k in range(40)) + "\n")
    with path.open("ab") as file:
        np.savetxt(file, values, fmt="%d", delimiter=",")
    asked = 2 * path.stat().st_size + 60 * 20_002 * 40
    tracemalloc.start()
    data.load(path)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < asked
    with allowing(asked - 10**6):
        refused(path, kind=TooLarge)


# -- archives of strangers ------------------------------------------------------------------------


def test_an_archive_that_unzips_to_gigabytes(tmp_path):
    """As the header says: 200,000 x 2000 in float64, from 3 MB of zeros."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(npz(path), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ARRAYS:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(header((30_000, 2000)))
                for _ in range(30_000 * 2000 * 8 // 2**23 if name == "x_train" else 1):
                    file.write(bytes(2**23))
    with in_little_memory():
        refused(path)


def with_size_of(content, size):
    """An archive whose directory says that its first file has this size."""
    place = content.index(b"PK\x01\x02")
    return content[: place + 24] + struct.pack("<I", size) + content[place + 28 :]


def test_headers_and_directories_that_lie(tmp_path):
    """About what they ask for, or what there is."""
    path = tmp_path / "a.npz"
    for shape in ((10**9, 100), (2**40, 2**40)):
        npz(path, x_train=header(shape) + bytes(800))
        with in_little_memory():
            refused(path)
    head = header((10**8, 3))  # the directory is made to fit the header; the limit then speaks
    npz(path, zipfile.ZIP_STORED, x_train=head + bytes(800))
    path.write_bytes(with_size_of(path.read_bytes(), len(head) + 10**8 * 24))
    with in_little_memory():
        refused(path, kind=TooLarge)
    with allowing("99GB"):
        refused(path)
    head = header((5, 2))
    npz(path, x_train=head + bytes(50_000_000))
    with in_little_memory():
        refused(path)
    path.write_bytes(with_size_of(path.read_bytes(), len(head) + 80))
    with in_little_memory():
        refused(path)
    npz(path, x_train=b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 50_000_000)
    with in_little_memory():
        refused(path)


def save(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        {"y_train": save(np.array([b"a", b"b"] * 10))},
        {"x_train": save(np.array([None] * 20), allow_pickle=True)},
        {"x_train": pickle.dumps(print)},
        {"x_train": save(X)[:10] + b"(" * 117 + b"\n"},
        {"x_train": header((-1, 3))},
        {"x_train": header((2**70, 0))},
        {"x_train": save(np.float64(3.0))},
        {"y_train": save(np.array([np.nan, 1.0] * 10))},
        {"y_test": save(np.arange(20) % 2 * 10**18)},
    ],
)
def test_arrays_that_cannot_be_used(tmp_path, members):
    refused(npz(tmp_path / "a.npz", **members))


def test_archives_that_cannot_be_used(tmp_path):
    path = tmp_path / "a.npz"
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        refused(npz(path, kind))
    content = npz(path, zipfile.ZIP_STORED).read_bytes()
    # A password, an unknown method and a checksum.
    for offset, value in ((8, b"\x01\x00"), (10, b"\x63\x00"), (16, b"\0\0\0\0")):
        place = content.index(b"PK\x01\x02") + offset
        path.write_bytes(content[:place] + value + content[place + len(value) :])
        refused(path)
    for part in (0.0, 0.3, 0.9):
        path.write_bytes(content[: int(part * len(content))])
        refused(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    refused(path)
    np.savez(path, inputs=X, y_train=ARRAYS["y_train"])
    refused(path)
    npz(path)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y_test.npy", save(np.arange(20)))
    refused(path)


@pytest.mark.parametrize("claimed", [None, 100])
def test_a_gzip_that_goes_on_is_stopped(tmp_path, claimed):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gz(bytes(40_000_000), claimed))
    with allowing("20MB"), in_little_memory(), pytest.raises(TooLarge):
        read_bytes(path)


@pytest.mark.parametrize("shape", [(2**32 - 1, 2**31, 2**31), (20, 1000, 1000)])
def test_images_are_asked_for(tmp_path, shape):
    mnist(tmp_path, struct.pack(">4I", 0x803, *shape) + bytes(20_000_000))
    with allowing("100MB"), in_little_memory(), pytest.raises(PyroccamError):
        data.load("mnist", data_root=tmp_path)


# -- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_paths_that_are_no_files(tmp_path, suffix):
    (tmp_path / f"folder{suffix}").mkdir()
    refused(tmp_path / f"folder{suffix}")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    refused(tmp_path / f"pipe{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    refused(tmp_path / f"zero{suffix}")
    loop = tmp_path / f"loop{suffix}"
    loop.symlink_to(loop)
    odd = (f"\0{suffix}", f"{'x' * 5000}{suffix}", f"~nobody-has-this-name/a{suffix}", loop)
    for path in (*odd, tmp_path / f"\udcff{suffix}"):
        with pytest.raises(data.DataError) as error:
            data.load(path)
        str(error.value).encode()  # can be shown


def test_what_may_not_be_read_or_entered(tmp_path, monkeypatch):
    def forbid(*args, **options):
        raise PermissionError(13, "Permission denied")

    for name in ("a.csv", "a.npz"):
        (tmp_path / name).write_bytes(b"a,y\n1,2\n")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", forbid)
            refused(tmp_path / name)
    monkeypatch.setattr(Path, "is_file", forbid)
    for name in ("mnist", "uci/energy", "cifar10"):
        with pytest.raises(PyroccamError):
            data.load(name, data_root=tmp_path, download=False)


# -- the limit on memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("8GB", 2**33), ("3 mib", 3 * 2**20), ("1k", 1024)]
)
def test_the_environment_and_a_context_raise_the_limit(monkeypatch, text, size):
    monkeypatch.setenv(VARIABLE, text)
    assert allowed_bytes() == size
    with allowing(5):
        assert allowed_bytes() == 5
        with pytest.raises(TooLarge):
            ask(6, "it")
    assert allowed_bytes() == size


@pytest.mark.parametrize("text", ["0", "-1", "a lot", "1e9", "GB", "9" * 40])
def test_what_is_no_size_is_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(PyroccamError):
        allowed_bytes()
