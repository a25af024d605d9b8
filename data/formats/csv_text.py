"""Tables written as text with commas: the names in the first line, and the fields below."""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import DataError, ask, listed, read_bytes, reading, rows_without, shown

if TYPE_CHECKING:
    import pandas as pd

_MOST_COLUMNS = 100_000
"""A table has a Python object for each column: with more, arrays are the better form."""

_MOST_VALUES = 50
"""Of a column of text, that become columns of 0 and 1."""

_FIELD = 60
"""Bytes that a field takes at the peak: 34 of a number and 58 of a text were measured, in pandas'
words and columns, in float64 as a whole and in rows that train, in float32."""

_BYTE = 2
"""Bytes for each byte of the text: the file, and what pandas copies of it."""


def read_table(path: Path, as_text: Sequence[str] = ()) -> pd.DataFrame:
    """Reads a table, in which fields without a value are NaN; columns `as_text` stay texts, and
    names lose the blanks around them."""
    content = read_bytes(path, _BYTE)
    if b"\0" in content:
        raise DataError(f"{path} is no text: it holds zero bytes", "a table in UTF-8")
    with reading(path, "a table"):
        columns = _header(path, content)
        # short rows are filled up: a file may have many more fields than it has commas
        lines = content.count(b"\n") + content.count(b"\r") + 1
        ask(_BYTE * len(content) + _FIELD * lines * len(columns), str(path))
        frame = _parse(path, content, {columns.index(n): str for n in as_text if n in columns})
    if len(frame.columns) != len(columns):
        found = f"{path} has {len(columns)} names in its first line, {len(frame.columns)} columns"
        raise DataError(found, "as many")
    if len(frame) == 0:
        raise DataError(f"{path} has no rows below its first line", "a header line and rows")
    frame.columns = columns
    return frame


def _header(path: Path, content: bytes) -> list[str]:
    """The names of the columns.

    pandas tells two columns of one name apart by a number (`y`, `y.1`), and the second one could
    then pass for a feature: so the line is read here.
    """
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    lines = csv.reader(text, skipinitialspace=True)
    names = next(([name.strip() for name in line] for line in lines if any(line)), [])
    if not names:
        raise DataError(f"{path} cannot be read as csv: it is empty", "text with a header")
    if len(names) > _MOST_COLUMNS:
        raise DataError(f"{path} has {len(names)} columns", f"at most {_MOST_COLUMNS}")
    if all(map(_is_number, names)):
        raise DataError(f"{path} begins with {listed(names, 3)}", "the names of the columns")
    if "" in names:
        raise DataError(f"{path}: column {names.index('')} has no name", "a name for each column")
    twice = [repr(name) for name, times in Counter(names).items() if times > 1]
    if twice:
        raise DataError(f"{path} has several columns called {listed(twice)}", "one of each name")
    return names


def _parse(path: Path, content: bytes, types: dict[int, type]) -> pd.DataFrame:
    import pandas as pd  # a second that only this needs

    # the number that is written, to the bit: newer versions read nothing else
    older = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
    exact: dict[str, Any] = {"float_precision": "round_trip"} if older else {}
    try:
        with warnings.catch_warnings():
            # pandas would drop the surplus fields of long rows with no more than a warning
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                io.BytesIO(content),
                index_col=False,
                low_memory=False,
                **exact,
                skipinitialspace=True,
                encoding="utf-8-sig",
                dtype=types,
            )
    except pd.errors.ParserWarning as error:
        raise DataError(f"{path} has rows with more fields than names", "as many") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def selected(
    path: Path, frame: pd.DataFrame, names: Sequence[str], missing: Any = None
) -> pd.DataFrame:
    """Columns of a table, without rows in which a number stands for a missing value."""
    frame = frame[[*names]]
    if missing is not None:
        columns = [frame[name].to_numpy() for name in names]
        frame = frame[rows_without(missing, path.name, columns)]
    empty = frame.isna().to_numpy()
    if empty.any():
        row, column = (int(i) for i in np.argwhere(empty)[0])
        first = f"row {frame.index[row]}, column {frame.columns[column]!r}"
        found = f"{path} lacks {int(empty.sum())} value(s), the first in {first}"
        raise DataError(found, "a value in each field")
    return frame


def encoded(
    path: Path, frame: pd.DataFrame, texts: Sequence[str], known: Mapping[str, list[str]]
) -> tuple[np.ndarray, list[str], dict[str, list[str]]]:
    """Inputs of a table (rows, columns) in float64: its numbers, and behind them 0 or 1 for each
    value of a text, those `known` from training if there are; the names of the columns; and the
    values of texts."""
    words = {name: frame[name].astype(str).str.strip() for name in texts}
    values = {name: known.get(name) or sorted(words[name].unique()) for name in texts}
    for name in texts:
        if len(values[name]) > _MOST_VALUES:
            found = f"{path}, column {name!r} holds {len(values[name])} texts"
            raise DataError(found, f"at most {_MOST_VALUES}")
        if (other := ~words[name].isin(values[name])).any():
            found = f"{shown(words[name][other].iloc[0])} in row {other.idxmax()}"
            expected = f"one of {listed(map(repr, values[name]))}, as in training"
            raise DataError(f"{path}, column {name!r} holds {found}", expected)
    names = [name for name in frame.columns if name not in values]
    ask(_FIELD * len(frame) * (len(names) + sum(map(len, values.values()))), str(path))
    parts = [numbers(path, frame[name], "numbers, or categorical=")[:, None] for name in names]
    if texts:
        from sklearn.preprocessing import OneHotEncoder  # half a second that only texts need

        encoder = OneHotEncoder(categories=[*values.values()], sparse_output=False)
        parts.append(encoder.fit_transform(np.column_stack([*words.values()])))
        names += encoder.get_feature_names_out([*words]).tolist()
    if not parts:
        raise DataError(f"{path} has no inputs", "features beside the target")
    return np.concatenate(parts, 1), names, values


def numbers(path: Path, column: pd.Series, expected: str = "numbers") -> np.ndarray:
    """The values of a column (rows,) in float64."""
    values = as_numbers(column)
    bad = np.isnan(values)
    if bad.any():
        row = int(bad.argmax())
        found = f"{shown(column.iloc[row])} in row {column.index[row]}"
        raise DataError(f"{path}, column {column.name!r} holds {found}", expected)
    return values


def as_numbers(column: pd.Series) -> np.ndarray:
    """The values of a column (rows,) in float64, NaN for texts."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64)
    # whole numbers of more digits than a machine's number has come as texts
    return np.array([_as_number(field) for field in column])


def _as_number(field: object) -> float:
    text = str(field)
    return float(text) if "_" not in text and _is_number(text) else math.nan
