"""Tables of strangers: whatever is broken says so."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from pyroccam import data
from pyroccam.data.errors import TooLarge
from pyroccam.data.limits import allowing
from strange_files import csv, in_little_memory, refused


@pytest.mark.parametrize(
    "content",
    [
        b"a,y,y\n1,2,2\n2,3,3\n",
        b"a,y , y\n1,2,2\n2,3,3\n",
        b'a,"y",y\n1,2,2\n2,3,3\n',
        b"\xef\xbb\xbfa,b,a\n1,2,2\n2,3,3\n",
        b"b,c,b,c,y\n1,2,2,3,4\n",
        b",a,y\n0,1,2\n1,2,3\n",
        b"a,y\n1,2\n\0,3\n",
        "a,y\n1,2\n".encode("utf-16"),
        b"a,y\n1,caf\xe9\n2,b\n",
        b"a,y\n\xff\xfe,1\n2,2\n",
        b'"a,y\n1,2\n',
        b'a,y\n"1,2\n',
        b"a" * 200_000 + b",y\n1,2\n",
        b"x,y\n" + b"9" * 400 + b",1\n2,2\n",
        b"\n\n\n",
        b"a\rb\r",
        b"a,y\n1,2\n1,2\n\x1a",
        b"a,y\n1j,2\n1,2\n",
        b"a,y\n" + b"[" * 5000 + b",1\n1,2\n",
        b"a,y\x1b[31m\n1,x\n2,x\n",
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, content: bytes) -> None:
    refused(csv(tmp_path, content))


def test_a_column_may_be_called_y_1(tmp_path: Path) -> None:
    rows = b"".join(b"%d,%d,%d\n" % (k % 7, k % 5, k % 2) for k in range(40))
    d = data.load(csv(tmp_path, b'\xef\xbb\xbf"a, b", y.1 ,y\n' + rows))
    assert (d.columns, d.target) == (("a, b", "y.1"), "y")


def test_numbers_of_many_digits_are_numbers(tmp_path: Path) -> None:
    rows = b"".join(b"%d,%d.5\n" % (10**25 + k * 10**24, k) for k in range(20))
    d = data.load(csv(tmp_path, b"a,y\n" + rows), standardise=False)
    assert d.x_train.min() >= 1e25
    d = data.load(tmp_path / "mine.csv", target="a")
    assert (d.task, d.N) == ("regression", 14)


def test_wide_tables(tmp_path: Path) -> None:
    wide = csv(tmp_path, b",".join(b"c%d" % k for k in range(100_001)) + b"\n1\n")
    refused(wide)
    # short rows are filled up: 4 MB ask for gigabytes
    lines = b",".join(b"c%d" % k for k in range(50_000)) + b"\n" + b"1\n" * 50_000
    with in_little_memory():
        refused(csv(tmp_path, lines), kind=TooLarge)


def test_a_long_field_is_asked_for(tmp_path: Path) -> None:
    path = csv(tmp_path, b"a,y\n" + b"x" * 4_000_000 + b",1\n2,2\n")
    with allowing("6MB"), in_little_memory():
        refused(path, kind=TooLarge)


def test_a_table_takes_no_more_than_it_asks_for(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 9, (20_000, 40))
    names = ",".join(f"c{k}" for k in range(40))
    path = csv(tmp_path, names.encode() + b"\n")
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
