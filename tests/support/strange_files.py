"""Files as strangers make them, and how they are refused."""

import gzip
import io
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyroccam import data
from pyroccam.data import PyroccamError

X = np.random.default_rng(0).normal(size=(20, 3))
ARRAYS: dict[str, Any] = {"x_train": X, "y_train": np.arange(20) % 2, "x_test": X,
                          "y_test": np.arange(20) % 2}  # fmt: skip


@contextmanager
def in_little_memory(most: int = 80 * 2**20) -> Iterator[None]:
    """Nothing within may take more."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def refused(path: Path, kind: type[PyroccamError] = PyroccamError, **options: Any) -> None:
    with pytest.raises(kind) as error:
        data.load(path, **options)
    assert "\n" not in str(error.value)


def reloaded(d: data.Dataset) -> data.Dataset:
    """By its source, as a file has it."""
    return data.load(**json.loads(json.dumps(d.source)))


def header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    file = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


def npz(path: Path, kind: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    """An archive of good arrays, but for the `members` that are given."""
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, array in ARRAYS.items():
            file = io.BytesIO()
            np.save(file, array)
            archive.writestr(f"{name}.npy", members.get(name, file.getvalue()))
    return path


def csv(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "mine.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def gz(content: bytes, claimed: int | None = None) -> bytes:
    packed = gzip.compress(content)
    return packed if claimed is None else packed[:-4] + struct.pack("<I", claimed)


def mnist(folder: Path, train: bytes) -> Path:
    folder = folder / "MNIST/raw"
    folder.mkdir(parents=True)
    labels = struct.pack(">2I", 0x801, 20) + bytes(range(10)) * 2
    images = struct.pack(">4I", 0x803, 20, 4, 4) + bytes(320)
    for stem, content in (
        ("train-images-idx3-ubyte", train),
        ("train-labels-idx1-ubyte", labels),
        ("t10k-images-idx3-ubyte", images),
        ("t10k-labels-idx1-ubyte", labels),
    ):
        (folder / f"{stem}.gz").write_bytes(gz(content))
    return folder
