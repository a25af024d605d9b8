"""Rows of Parquet files, read by row groups with pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import DataError, ask, number_names, numbered, reading
from .pairs import Columns
from .shuffle import Parts, Places

MOST_GROUP = 2**23
"""Bytes of a row group, at most: several have to be in memory to be shuffled."""

_NARROW = {"float", "halffloat", "bool", "int8", "uint8", "int16", "uint16"}
"""Types of columns whose numbers float32 holds exactly."""


class Tables:
    """Rows of one Parquet file, or of those in a folder in the order of their names."""

    by_piece = True

    def __init__(self, path: Path, columns: Columns, class_names: Sequence[str] = ()) -> None:
        self.name, self.class_names = path.stem, tuple(class_names)
        self.target, self.weights = columns.target, columns.weights
        self.paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        parquet = _pyarrow()
        edges, self.groups, largest, schema = [0], [], 0, None
        for number, one in enumerate(self.paths):
            with reading(one, "a Parquet file"), parquet.ParquetFile(one) as file:
                if schema is None:
                    schema = file.schema_arrow
                elif not file.schema_arrow.equals(schema):
                    raise DataError(f"{one.name} has other columns", f"those of {self.paths[0]}")
                for group in range(file.metadata.num_row_groups):
                    count = file.metadata.row_group(group).num_rows
                    if count:
                        edges.append(edges[-1] + count)
                        self.groups.append((number, group))
                        largest = max(largest, count)
        if schema is None or len(edges) == 1:
            raise DataError(f"{path} holds no rows", "Parquet files with rows")
        self.edges: Places = np.array(edges)
        self.rows = edges[-1]
        self.inputs = tuple(columns.among(self.name, schema.names))
        _refuse_other_types(schema, [*self.inputs, *filter(None, [self.weights])])
        narrow = {str(schema.field(name).type) for name in self.inputs} <= _NARROW
        self.dtype = np.dtype(np.float32 if narrow else np.float64)
        self.row_bytes = self.dtype.itemsize * len(self.inputs)
        ask(2.0 * largest * self.row_bytes, f"{path}: its largest row group")
        if largest * self.row_bytes > MOST_GROUP and len(self.groups) > 1:
            found = f"{path} has row groups of {largest:,} rows, {largest * self.row_bytes:,} bytes"
            raise DataError(found, f"at most {MOST_GROUP:,}, as several are in memory together")

    def read(self, places: Places) -> Parts:
        """Inputs (B, columns), float32 or, where a column is, float64, targets and weights of rows
        (B,); each row group of theirs is read once."""
        parquet = _pyarrow()
        groups = np.searchsorted(self.edges, places, side="right") - 1
        xs = np.empty((len(places), len(self.inputs)), self.dtype)
        others: list[np.ndarray] = []
        for group in np.unique(groups):
            number, own = self.groups[group]
            path = self.paths[number]
            with reading(path, "a Parquet file"), parquet.ParquetFile(path) as file:
                wanted = [*self.inputs, self.target, *filter(None, [self.weights])]
                table = file.read_row_group(own, columns=wanted)
            here = np.flatnonzero(groups == group)
            rows = places[here] - self.edges[group]
            columns = [_numbers(table[name]) for name in self.inputs]
            if missing := table[self.target].null_count:
                row = self.edges[group] + table[self.target].is_null().to_numpy().argmax()
                found = f"{path} lacks {self.target!r} in row {row} ({missing} in row group {own})"
                raise DataError(found, "a target for each row")
            y = table[self.target].to_numpy()
            if self.class_names and y.dtype.kind in "OUT":
                with numbered(range(int(self.edges[group]), int(self.edges[group + 1]))):
                    y = number_names(self.target, y, self.class_names)
            elif y.dtype.kind not in "biuf":
                found = f"the target {self.target!r} holds {table[self.target].type}"
                raise DataError(found, "numbers")
            given = [y, *([_numbers(table[self.weights]).astype(float)] if self.weights else [])]
            others = others or [np.empty(len(places), _plain(one.dtype)) for one in given]
            for k, column in enumerate(columns):
                xs[here, k] = column[rows]
            for part, one in zip(others, given, strict=True):
                part[here] = one[rows]
        return torch.from_numpy(xs), *map(torch.from_numpy, others)


def _refuse_other_types(schema: Any, names: Sequence[str]) -> None:
    from pyarrow import types

    for name in names:
        kind = schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise DataError(f"the column {name!r} holds {kind}", "numbers or truth values")


def is_table(path: Path) -> bool:
    """True for a Parquet file, or a folder of them."""
    return path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet")))


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A type that torch knows."""
    return np.dtype(np.int64) if dtype.kind == "u" and dtype.itemsize > 1 else dtype


def _numbers(column: Any) -> np.ndarray:
    """A column as an array; what is missing is NaN, which is refused where it is looked at."""
    found: np.ndarray = column.to_numpy()
    return found.astype(np.float64) if found.dtype.kind == "O" else found


def _pyarrow() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        expected = "pip install 'pyroccam[parquet]'"
        raise DataError("Parquet files without pyarrow", expected) from error
    return parquet
