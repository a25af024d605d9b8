"""Rows of any source, written once to files that are read faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import write_array_header_1_0
from torch import Tensor

from ..errors import DataError
from .making import reader_of
from .placed import Reader
from .shuffle import Chunk

__all__ = ["write_rows"]


def write_rows(
    source: Any,
    folder: str | Path,
    *,
    rows: int | None = None,
    inputs: str | Sequence[object] = (),
    target: str = "",
    class_names: str | Sequence[object] = (),
    shuffled: bool = True,
    seed: int = 0,
    workers: int | None = None,
) -> Path:
    """Write all rows of a source to `x.npy` and `y.npy`, as they are, for
    :func:`pyroccam.data.stream`.

    They pass once, and few are in memory at a time. Items that are decoded in Python are then read
    at the speed of the disk.

    Arguments:
        source, rows, inputs, target, class_names, workers: As for :func:`pyroccam.data.stream`.
        folder: Where to; made if it is not there.
        shuffled: Write them in the order of a first epoch, in which rows that lie side by side are
            parted, by `seed`; or as they lie.

    Returns:
        The folder.

    Raises:
        DataError: for rows that cannot be used, or a folder that holds such files already.
    """
    place = Path(folder).expanduser()
    if any(place.glob("[xy]*.npy")):
        raise DataError(f"{place} holds rows already", "another folder")
    reader = reader_of(
        source, rows=rows, inputs=inputs, target=target, class_names=class_names, workers=workers
    )
    chunks = reader.in_order()
    if shuffled:
        bounds = [(i, min(i + _CHUNK, reader.rows)) for i in range(0, reader.rows, _CHUNK)]
        chunks = reader.batches(seed, 0, bounds)
    place.mkdir(parents=True, exist_ok=True)
    parts = {name: place / f"{name}.part" for name in "xy"}
    try:
        for path in parts.values():
            path.unlink(missing_ok=True)  # of a write that was killed, or a link to elsewhere
        with parts["x"].open("xb") as xs, parts["y"].open("xb") as ys:
            _write(chunks, reader, (xs, ys))
        for name, path in parts.items():
            path.rename(place / f"{name}.npy")
    finally:
        for path in parts.values():
            path.unlink(missing_ok=True)
    return place


_CHUNK = 1024
"""Rows that are written at a time."""


def _write(chunks: Iterable[Chunk], reader: Reader, files: tuple[BinaryIO, BinaryIO]) -> None:
    kinds: list[tuple[Any, Any]] | None = None
    for _, *pair in chunks:
        if reader.fields is not None:
            raise DataError(
                f"{reader.name} gives several inputs of a row ({reader.fields})",
                "one, of which a file is made",
            )  # fmt: skip
        arrays = [_array(part) for part in pair]
        found = [(one.shape[1:], one.dtype) for one in arrays]
        if kinds is None:
            kinds = found
            for file, (shape, dtype) in zip(files, kinds, strict=True):
                header = np.lib.format.dtype_to_descr(dtype)
                write_array_header_1_0(
                    file, {"descr": header, "fortran_order": False, "shape": (reader.rows, *shape)}
                )
        if found != kinds:
            raise DataError(f"rows of {found} behind rows of {kinds}", "one shape and one type")
        for file, array in zip(files, arrays, strict=True):
            file.write(array.tobytes())


def _array(part: Tensor) -> np.ndarray:
    found: np.ndarray = part.cpu().numpy()
    return found
