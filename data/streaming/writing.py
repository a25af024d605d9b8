"""Rows of any source, written once to files that are read faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from .. import DataError
from .making import reader_of
from .passing import Reader
from .shuffle import Chunk


def write_rows(
    source: Any,
    folder: str | Path,
    *,
    rows: int | None = None,
    inputs: str | Sequence[object] = (),
    target: str = "",
    class_names: str | Sequence[object] = (),
    workers: int | None = None,
) -> Path:
    """Write all rows of a source to `x.npy` and `y.npy`, as they are, for
    :func:`pyroccam.data.stream`, in the order of a first epoch, in which rows that lie side by side
    are parted.

    They pass once, and few are in memory at a time. Items that are decoded in Python are then read
    at the speed of the disk.

    Arguments:
        source, rows, inputs, target, class_names, workers: As for :func:`pyroccam.data.stream`.
        folder: Where to; made if it is not there.

    Raises:
        DataError: for rows that cannot be used, or a folder that holds such files already.
    """
    place = Path(folder).expanduser()
    if any(place.glob("[xy]*.npy")):
        raise DataError(f"{place} holds rows already", "another folder")
    reader = reader_of(
        source, rows=rows, inputs=inputs, target=target, class_names=class_names, workers=workers
    )
    bounds = [(i, min(i + _CHUNK, reader.rows)) for i in range(0, reader.rows, _CHUNK)]
    chunks = reader.batches(0, 0, bounds)
    place.mkdir(parents=True, exist_ok=True)
    parts = {name: place / f"{name}.part" for name in "xy"}
    try:
        for path in parts.values():
            path.unlink(missing_ok=True)  # of a write that was killed, or a link to elsewhere
        _write(chunks, reader, [*parts.values()])
        for name, path in parts.items():
            path.rename(place / f"{name}.npy")
    finally:
        for path in parts.values():
            path.unlink(missing_ok=True)
    return place


_CHUNK = 1024
"""Rows that are written at a time."""


def _write(chunks: Iterable[Chunk], reader: Reader, paths: Sequence[Path]) -> None:
    files: list[np.ndarray] = []
    count = 0
    for _, *pair in chunks:
        if reader.fields is not None:
            raise DataError(f"{reader.name} gives several inputs of a row", "one")
        arrays = [part.cpu().numpy() for part in pair]
        files = files or [
            open_memmap(path, "w+", one.dtype, (reader.rows, *one.shape[1:]))
            for path, one in zip(paths, arrays, strict=True)
        ]
        for file, one in zip(files, arrays, strict=True):
            if (file.shape[1:], file.dtype) != (one.shape[1:], one.dtype):
                raise DataError(
                    f"rows {one.shape[1:]} of {one.dtype}", f"{file.shape[1:]} of {file.dtype}"
                )
            file[count : count + len(one)] = one
        count += len(arrays[0])
