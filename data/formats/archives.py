"""Arrays out of a `.npz` file of anybody: nothing is run, and nothing is taken on trust.

:func:`numpy.load` allocates what a header asks for before it sees how much there is. Here the
memory is asked for first, and a header that says more or less than its array holds is refused.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from ..checks import check_numeric
from ..errors import DataError, listed
from ..limits import ask
from ..roots import reading

__all__ = ["Archive", "header_of", "open_archive"]

_CHUNK = 2**20

_HEADER = 2**16
"""Bytes at the beginning of an array in which its header must end."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return prod(self.shape) * self.dtype.itemsize

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
    """An open archive.

    Arguments:
        path: The file, for messages.
        content: The same, open.
    """

    def __init__(self, path: Path, content: zipfile.ZipFile) -> None:
        self.path, self._content = path, content
        self._members: dict[str, list[zipfile.ZipInfo]] = {}
        for member in content.infolist():
            self._members.setdefault(member.filename.removesuffix(".npy"), []).append(member)

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._members)

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """The arrays of these names.

        Raises:
            DataError: if one is missing, is there twice, holds no numbers or is not whole.
            TooLarge: if they ask for more memory than may be taken.
        """
        missing = [name for name in names if name not in self._members]
        if missing:
            raise DataError(
                f"{self.path} has no {', '.join(missing)}, only {listed(self.names)}",
                f"the arrays {', '.join(names)}",
            )
        headers = {name: self._header(name) for name in names}
        ask(sum(header.peak for header in headers.values()), str(self.path))
        return [self._array(name, header) for name, header in headers.items()]

    def _member(self, name: str) -> zipfile.ZipInfo:
        found, *more = self._members[name]
        if more:
            raise DataError(f"{self.path} holds {name} {1 + len(more)} times", "once")
        if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # the others may ask for gigabytes before they give a byte
            raise DataError(
                f"{self.path}: {name} is packed by method {found.compress_type}",
                "what numpy.savez or numpy.savez_compressed write",
            )
        return found

    def _header(self, name: str) -> _Header:
        member = self._member(name)
        with self._content.open(member) as file:
            header = header_of(f"{self.path}: {name}", file)
        if header.dtype.hasobject:
            raise DataError(f"{self.path}: {name} holds objects", "numbers")
        if header.dtype.kind != "U" or not name.startswith("y"):  # labels may be names
            check_numeric(f"{self.path}: {name}", header.dtype)
        if member.file_size != header.start + header.size:
            raise _of_another_size(self.path, name, header, member.file_size - header.start)
        return header

    def _array(self, name: str, header: _Header) -> np.ndarray:
        array = np.empty(prod(header.shape), header.dtype)
        content = array.view(np.uint8)
        with self._content.open(self._member(name)) as file:
            file.read(header.start)
            filled = _fill(file, content)
            # the directory, too, may say one size and the array have another; and at the end
            # the checksum is looked at
            more = len(file.read(1))
        if filled + more != header.size:
            raise _of_another_size(self.path, name, header, filled + more)
        if header.fortran:
            return array.reshape(header.shape[::-1]).T
        return array.reshape(header.shape)


def header_of(what: str, file: IO[bytes]) -> _Header:
    """What an array in the format of `.npy` says of itself; nothing else of it is read."""
    start = io.BytesIO(file.read(_HEADER))
    version = np.lib.format.read_magic(start)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{what} has a header of version {version}")
    try:
        shape, fortran, dtype = getattr(np.lib.format, f"read_array_header_{version[0]}_0")(start)
    except Exception as error:  # Python reads it, and what Python says is of its own parts
        raise DataError(f"{what} has a header that cannot be read") from error
    if min(shape, default=0) < 0:
        raise DataError(f"{what} says it has shape {shape}")
    return _Header(shape, fortran, dtype, start.tell())


def _fill(file: IO[bytes], content: np.ndarray) -> int:
    """Fills an array of bytes from a file, and says how far it came."""
    filled = 0
    while filled < len(content):
        chunk = file.read(min(_CHUNK, len(content) - filled))
        if not chunk:
            break
        content[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    return filled


def _of_another_size(path: Path, name: str, header: _Header, there: int) -> DataError:
    return DataError(
        f"{path} is not a whole .npz file: {name} holds {there} bytes",
        f"{header.size}, since its header says {header.shape} of {header.dtype}",
    )


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Opens a `.npz` file.

    Raises:
        DataError: if it cannot be read; also for what goes wrong while it is open.
    """
    with (
        reading(path, "a whole .npz file of plain arrays"),
        path.open("rb") as file,
    ):
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise DataError(f"{path} holds one array", "an archive of several")
        with zipfile.ZipFile(file) as content:
            yield Archive(path, content)
