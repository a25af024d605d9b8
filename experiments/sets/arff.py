"""The part of Weka's ARFF format that tables of numbers and categories need.

scipy's reader refuses two habits of published files: no blank before the braces of a list of
categories, and blanks behind a quoted one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pyroccam.data.errors import DataError
from pyroccam.data.roots import read_bytes

__all__ = ["Arff", "read_arff"]

_ATTRIBUTE = re.compile(r"""@attribute\s+("[^"]*"|'[^']*'|[^\s{]+)\s*(\{[^}]*\}|\w+)\s*$""", re.I)
_TIMES = 60
"""Bytes that a table takes for each of its text: a Python text for each field, twice."""

_NUMBERS = ("numeric", "real", "integer")


class Arff(NamedTuple):
    """A table.

    Arguments:
        path: Where it came from.
        attributes: The categories of each column by its name; () for a column of numbers.
        fields: (rows, columns), as written.
    """

    path: Path
    attributes: dict[str, tuple[str, ...]]
    fields: np.ndarray

    def categories(self, name: str) -> np.ndarray:
        """The category of each row (rows,), int64: its place in the list of the header.

        Raises:
            DataError: if there is no such column of categories, or a row has another one.
        """
        known = self.attributes.get(name)
        if not known:
            raise DataError(
                f"{self.path} has no attribute {name!r} with categories, "
                f"only {', '.join(self.attributes)}"
            )
        fields = self.fields[:, list(self.attributes).index(name)]
        places = np.full(len(fields), -1, np.int64)
        for place, category in enumerate(known):
            places[fields == category] = place
        if (places < 0).any():
            row = int((places < 0).argmax())
            raise DataError(
                f"{self.path} has {name}={str(fields[row])!r} in row {row}",
                f"one of {', '.join(known)}",
            )
        return places

    def numbers(self, names: list[str]) -> np.ndarray:
        """The columns `names` (rows, columns) in float64, NaN where a value is missing ("?").

        Raises:
            DataError: if a field is no number.
        """
        columns = list(self.attributes)
        fields = self.fields[:, [columns.index(name) for name in names]]
        fields = np.where(fields == "?", "nan", fields)
        try:
            return fields.astype(np.float64)
        except ValueError as error:
            for row, column in np.ndindex(*fields.shape):
                try:
                    float(fields[row, column])
                except ValueError:
                    break
            raise DataError(
                f"{self.path} has {names[column]}={str(fields[row, column])!r} in row {row}",
                "a number, or ? where it is missing",
            ) from error


def read_arff(path: Path) -> Arff:
    """Reads numeric and nominal attributes, and rows with a value for each of them.

    Sparse rows, dates, text and commas inside quotes are not understood.

    Arguments:
        path: The file; unpacked if its name ends in `.gz`.

    Returns:
        The table.

    Raises:
        DataError: naming the line that cannot be read; lines are counted from 1.
    """
    attributes: dict[str, tuple[str, ...]] = {}
    rows: list[list[str]] = []
    inside = False
    for number, line in enumerate(read_bytes(path, _TIMES).decode("latin-1").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("%"):
            continue
        if inside:
            row = [field.strip(" \t\"'") for field in line.split(",")]
            if len(row) != len(attributes):
                raise DataError(
                    f"{path}, line {number} has {len(row)} fields", f"{len(attributes)}"
                )
            rows.append(row)
        elif line.lower().startswith("@attribute"):
            name, categories = _attribute(path, number, line)
            if name in attributes:
                raise DataError(f"{path}, line {number} has a second attribute {name!r}", "one")
            attributes[name] = categories
        else:
            inside = line.lower().startswith("@data")
    if not rows:
        raise DataError(f"{path} has no rows behind @data", "a table in ARFF format")
    return Arff(path, attributes, np.array(rows))


def _attribute(path: Path, number: int, line: str) -> tuple[str, tuple[str, ...]]:
    """The name of a column, and its categories if it has any."""
    match = _ATTRIBUTE.match(line)
    kind = match[2] if match else ""
    if match is None or not (kind.startswith("{") or kind.lower() in _NUMBERS):
        raise DataError(
            f"{path}, line {number} is {line!r}", "@attribute, a name, and numeric or {categories}"
        )
    listed = kind[1:-1].split(",") if kind.startswith("{") else []
    return match[1].strip("\"'"), tuple(value.strip(" \t\"'") for value in listed)
