"""Archives and pictures of strangers: bombs are refused before they go off, and whatever is broken
says so."""

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyroccam import data
from pyroccam.data.errors import PyroccamError, TooLarge
from pyroccam.data.limits import allowing
from pyroccam.data.roots import read_bytes
from strange_files import ARRAYS, X, gz, header, in_little_memory, mnist, npz, refused


def test_an_archive_that_unzips_to_gigabytes(tmp_path: Path) -> None:
    """As the header says: 200,000 x 2000 in float64, from 3 MB of zeros."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(npz(path), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ARRAYS:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(header((30_000, 2000)))
                for _ in range(30_000 * 2000 * 8 // 2**23 if name == "x_train" else 1):
                    file.write(bytes(2**23))
    content = path.read_bytes()
    assert len(content) < 8e6
    with in_little_memory():
        refused(path)
    path.write_bytes(content)


@pytest.mark.parametrize("shape", [(10**9, 100), (10**12,), (2**40, 2**40)])
def test_a_header_that_asks_for_more_than_there_is(tmp_path: Path, shape: Any) -> None:
    path = npz(tmp_path / "a.npz", x_train=header(shape) + bytes(800))
    with in_little_memory():
        refused(path)


def with_size_of(content: bytes, size: int) -> bytes:
    """An archive whose directory says that its first file has this size."""
    place = content.index(b"PK\x01\x02")
    return content[: place + 24] + struct.pack("<I", size) + content[place + 28 :]


def test_a_header_and_a_directory_that_both_lie(tmp_path: Path) -> None:
    """The directory's size is made to fit the header; the limit then speaks."""
    head = header((10**8, 3))
    path = npz(tmp_path / "a.npz", zipfile.ZIP_STORED, x_train=head + bytes(800))
    path.write_bytes(with_size_of(path.read_bytes(), len(head) + 10**8 * 24))
    with in_little_memory():
        refused(path, kind=TooLarge)
    with allowing("99GB"):
        refused(path)


def test_a_header_that_says_less_than_there_is(tmp_path: Path) -> None:
    head = header((5, 2))
    path = npz(tmp_path / "a.npz", x_train=head + bytes(50_000_000))
    with in_little_memory():
        refused(path)
    path.write_bytes(with_size_of(path.read_bytes(), len(head) + 80))  # in the directory, too
    with in_little_memory():
        refused(path)


def test_a_long_header_of_an_array(tmp_path: Path) -> None:
    long = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 50_000_000
    with in_little_memory():
        refused(npz(tmp_path / "a.npz", x_train=long))


def save(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


DATES = np.arange("2000-01-01", "2000-01-21", dtype="datetime64[D]")
RECORDS = np.zeros(20, dtype=[("a", "f8"), ("b", "i4")])


@pytest.mark.parametrize(
    "members",
    [
        {"y_train": save(np.array(list("ab") * 10))},
        {"y_train": save(np.array([b"a", b"b"] * 10))},
        {"y_train": save(DATES)},
        {"x_train": save(RECORDS)},
        {"x_train": save(np.ones((20, 3), complex))},
        {"x_train": save(np.array([None] * 20), allow_pickle=True)},
        {"x_train": pickle.dumps(print)},
        {"x_train": b""},
        {"x_train": b"\x93NUMPY\x09\x09" + bytes(300)},
        {"x_train": save(X)[:10] + b"{" * 100},
        {"x_train": save(X)[:10] + b"(" * 117 + b"\n"},
        {"x_train": header((-1, 3))},
        {"x_train": header((2**70, 0))},
        {"x_train": save(np.float64(3.0))},
        {"y_train": save(np.int64(3))},
        {"y_train": save(np.array([np.nan, 1.0] * 10))},
        {"y_train": save(np.arange(20) % 2 - 1)},
        {"y_train": save(np.arange(20) % 2 * 10**18)},
        {"y_test": save(np.arange(20) % 2 * 10**18)},
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, members: dict[str, bytes]) -> None:
    refused(npz(tmp_path / "a.npz", **members))


def test_an_array_that_is_there_twice(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y_test.npy", save(np.arange(20)))
    refused(path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_to_pack(tmp_path: Path, kind: int) -> None:
    refused(npz(tmp_path / "a.npz", kind))


def test_a_password_an_unknown_method_and_a_checksum(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", zipfile.ZIP_STORED)
    content = path.read_bytes()
    for offset, value in ((8, b"\x01\x00"), (10, b"\x63\x00"), (16, b"\0\0\0\0")):
        place = content.index(b"PK\x01\x02") + offset
        path.write_bytes(content[:place] + value + content[place + len(value) :])
        refused(path)


def test_order_of_memory_and_of_bytes_goes_round(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    odd = {k: np.asfortranarray(v).astype(v.dtype.newbyteorder(">")) for k, v in ARRAYS.items()}
    np.savez_compressed(tmp_path / "b.npz", **odd)
    own = data.Dataset.from_tensors(**ARRAYS)
    assert data.load(tmp_path / "a.npz").digest == own.digest
    assert data.load(tmp_path / "b.npz").digest == own.digest


@pytest.mark.parametrize("claimed", [None, 100])
def test_a_gzip_that_goes_on_is_stopped(tmp_path: Path, claimed: int | None) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gz(bytes(40_000_000), claimed))
    with allowing("20MB"), in_little_memory(), pytest.raises(TooLarge):
        read_bytes(path)
    assert path.stat().st_size < 50_000


def test_images_that_say_they_are_many(tmp_path: Path) -> None:
    mnist(tmp_path, struct.pack(">4I", 0x803, 2**32 - 1, 2**31, 2**31) + bytes(320))
    with in_little_memory(), pytest.raises(PyroccamError):
        data.load("mnist", data_root=tmp_path)


def test_images_are_asked_for(tmp_path: Path) -> None:
    mnist(tmp_path, struct.pack(">4I", 0x803, 20, 1000, 1000) + bytes(20_000_000))
    with (
        allowing("100MB"),
        in_little_memory(),
        pytest.raises(TooLarge),
    ):
        data.load("mnist", data_root=tmp_path)
