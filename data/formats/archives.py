"""Arrays out of a `.npz` file of anybody: nothing is run, and memory is asked for before it is
taken, which :func:`numpy.load` does not do."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np

from .. import DataError, ask, check_numeric, listed, reading


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
        ask(sum(map(self._peak, names)), str(self.path))
        return [self._array(name) for name in names]

    def _peak(self, name: str) -> int:
        """Bytes that a data set of an array takes while it is made: the array as read, the array of
        a type that torch knows (if that is another), the rows that train and those that validate,
        copied out of it, both in float32, and what is checked on the way. Measured, it is 2 to 8 %
        more than what is taken."""
        member, where = self._members[name], f"{self.path}: {name}"
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # the others may ask for gigabytes before they give a byte
            found = f"{where} is packed by method {member.compress_type}"
            raise DataError(found, "what numpy.savez or numpy.savez_compressed write")
        with self._content.open(member) as file:
            start = io.BytesIO(file.read(2**16))
        version = np.lib.format.read_magic(start)[0]
        try:
            shape, _, dtype = getattr(np.lib.format, f"read_array_header_{version}_0")(start)
        except Exception as error:  # Python reads it, and what Python says is of its own parts
            raise DataError(f"{where} has a header that cannot be read") from error
        if dtype.kind != "U" or not name.startswith("y"):  # labels may be names
            check_numeric(where, dtype)
        count, own = prod(shape), dtype.itemsize
        if (size := start.tell() + count * own) != member.file_size:
            raise DataError(f"{where} holds {member.file_size} bytes", f"{size}")
        known = dtype in (np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_)
        each = own if known else 8
        return count * (own + each * (not known) + each + 6)

    def _array(self, name: str) -> np.ndarray:
        with self._content.open(self._members[name]) as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # at the end its checksum is looked at
        return array


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Opens a `.npz` file."""
    with (
        reading(path, "a whole .npz file of plain arrays"),
        path.open("rb") as file,
        zipfile.ZipFile(file) as content,
    ):
        yield Archive(path, content)
