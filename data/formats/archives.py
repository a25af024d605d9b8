"""Arrays out of a `.npz` file of anybody: nothing is run, and memory is asked for before it is
taken, which :func:`numpy.load` does not do."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from .. import DataError, ask, check_numeric, listed, reading


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int

    @property
    def size(self) -> int:
        """Bytes of the header and the values."""
        return self.start + prod(self.shape) * self.dtype.itemsize

    @property
    def peak(self) -> int:
        """Bytes that a data set of them takes while it is made: the array as read, the array of
        a type that torch knows (if that is another), the rows that train and those that
        validate, copied out of it, both in float32, and what is checked on the way. Measured, it
        is 2 to 8 % more than what is taken."""
        known = self.dtype in (np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_)
        each = self.dtype.itemsize if known else 8
        return prod(self.shape) * (self.dtype.itemsize + each * (not known) + each + 6)


class Archive:
    """An open archive, and its path for messages."""

    def __init__(self, path: Path, content: zipfile.ZipFile) -> None:
        self.path, self._content = path, content
        members = content.infolist()
        self._members = {one.filename.removesuffix(".npy"): one for one in members}
        if len(self._members) < len(members):
            raise DataError(f"{path} holds an array twice", "each once")

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._members)

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """The arrays of these names, whole and of numbers."""
        if missing := [name for name in names if name not in self._members]:
            found = f"{self.path} has no {listed(missing)}, only {listed(self.names)}"
            raise DataError(found, f"the arrays {listed(names)}")
        headers = {name: self._header(name) for name in names}
        ask(sum(header.peak for header in headers.values()), str(self.path))
        return [self._array(name, header) for name, header in headers.items()]

    def _header(self, name: str) -> _Header:
        member, where = self._members[name], f"{self.path}: {name}"
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # the others may ask for gigabytes before they give a byte
            found = f"{where} is packed by method {member.compress_type}"
            raise DataError(found, "what numpy.savez or numpy.savez_compressed write")
        with self._content.open(member) as file:
            header = _header_of(where, file)
        if header.dtype.kind != "U" or not name.startswith("y"):  # labels may be names
            check_numeric(where, header.dtype)
        if header.size != member.file_size:
            raise DataError(f"{where} holds {member.file_size} bytes", f"{header.size}")
        return header

    def _array(self, name: str, header: _Header) -> np.ndarray:
        # as a file in memory, whose bytes may be written to; its checksum is looked at
        content = io.BytesIO(self._content.read(self._members[name])).getbuffer()
        array = np.frombuffer(content, header.dtype, prod(header.shape), header.start)
        return array.reshape(header.shape, order="F" if header.fortran else "C")


def _header_of(what: str, file: IO[bytes]) -> _Header:
    """What an array in the format of `.npy` says of itself."""
    start = io.BytesIO(file.read(2**16))
    version = np.lib.format.read_magic(start)
    try:
        shape, fortran, dtype = getattr(np.lib.format, f"read_array_header_{version[0]}_0")(start)
    except Exception as error:  # Python reads it, and what Python says is of its own parts
        raise DataError(f"{what} has a header that cannot be read") from error
    if min(shape, default=0) < 0:
        raise DataError(f"{what} says it has shape {shape}")
    return _Header(shape, fortran, dtype, start.tell())


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Opens a `.npz` file."""
    with (
        reading(path, "a whole .npz file of plain arrays"),
        path.open("rb") as file,
        zipfile.ZipFile(file) as content,
    ):
        yield Archive(path, content)
