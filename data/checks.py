"""Checks of data, each with an error of one sentence.

Rows and columns are counted from 0 in every message, as tensors are indexed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import DataError, DataWarning, shown
from .numbering import row_number
from .ranges import Finite

Missing = str | Finite | Sequence[Finite] | None
"""Numbers that stand for a missing value: one, a list, or a text with commas."""

_INT64 = np.iinfo(np.int64).max

_FAR = 30.0
"""Ranges of the other values of a column, that a cell lies off its median."""

_ALONE = 3.0
"""Ranges of the other values of a column, that a value which repeats lies off the next one."""

_JUDGED = 2**22
"""Numbers of training rows by which others are judged, at most, about."""


def named(names: Any) -> list[str]:
    """Names that are given as a list, or in a text with commas; none of None."""
    if isinstance(names, str | int):
        names = [name for one in str(names).split(",") if (name := one.strip())]
    return [*map(str, () if names is None else names)]


def as_tensor(name: str, value: Any) -> Tensor:
    """Turns an array, a tensor or nested lists into a CPU tensor of its own number type."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.layout != torch.strided or value.is_meta:
            raise DataError(
                f"{name} is a {value.dtype} tensor ({value.layout})", "dense real numbers"
            )
        return value.detach().cpu()
    refuse_masked(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:  # ragged nested lists
        raise DataError(f"{name} is not an array ({error})", "rows of equal length") from error
    check_numeric(name, array.dtype)
    # torch knows neither wide unsigned integers, nor long doubles, nor foreign byte orders
    if array.dtype == np.uint64 and array.size and array.max() > _INT64:
        array = array.astype(np.float64)
    elif array.dtype.kind in "iu" and array.dtype != np.uint8:
        array = array.astype(np.int64, copy=False)
    elif array.dtype.kind == "f" and array.dtype not in (np.float16, np.float32):
        with np.errstate(over="ignore"):  # an infinity is refused where it is looked at
            array = array.astype(np.float64, copy=False)
    # not ascontiguousarray, which makes a row of a single number
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    # torch warns when it has to share memory that may not be written to
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def refuse_rows(name: str, values: Any, bad: Any, expected: str) -> None:
    """Refuse rows with values (B, ...) that are `bad`."""
    bad = np.asarray(bad)
    if bad.any():
        first = tuple(np.argwhere(bad)[0])
        value = (values if isinstance(values, Tensor) else np.asarray(values))[first].item()
        value = f"{value:g}" if isinstance(value, float) else shown(value)
        count = int(bad.reshape(len(bad), -1).any(1).sum())
        found = f"{name} holds {value} in row {row_number(first[0], name)} ({count} such row(s))"
        raise DataError(found, expected)


def refuse_masked(name: str, value: Any) -> None:
    """Refuse an array, or a list of them, of which some values are masked: they are numbers that
    nobody means."""
    if any(map(np.ma.is_masked, value if isinstance(value, list | tuple) else [value])):
        raise DataError(f"{name} has masked values")


def check_numeric(name: str, dtype: np.dtype) -> None:
    """An array holds real numbers or truth values."""
    if dtype.kind not in "biuf":
        raise DataError(f"{name} holds {dtype} values", "numbers")


def check_finite(name: str, x: Tensor, columns: Sequence[str] = ()) -> None:
    """Refuses NaN, infinities, and numbers that become infinite in float32, in values (B, ...)."""
    if not x.is_floating_point():
        return
    bad = ~torch.isfinite(x.float())
    count = int(bad.sum())
    if count == 0:
        return
    row, *place = (int(i) for i in bad.nonzero()[0])
    value = float(x[(row, *place)])
    where = _where(name, row, place, columns)
    found = f"{name} has {count} value(s) that are NaN, infinite or beyond float32"
    raise DataError(f"{found}, the first at {where}: {value}", "finite numbers only")


def _where(name: str, row: int, place: Sequence[int], columns: Sequence[str]) -> str:
    """How a message calls the place of a cell."""
    where = f"row {row_number(row, name)}"
    if len(place) != 1:
        return f"{where}, position {tuple(place)}" if place else where
    return f"{where}, column {place[0]}" + (f" ({columns[place[0]]!r})" if columns else "")


def rows_without(missing: Missing, where: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Which rows of arrays (B, ...) hold no number that stands for a missing value (B,), with a
    warning of how many do; texts are not looked at."""
    codes = _codes(missing)
    kept = np.ones(arrays[0].shape[:1], bool)
    for array in arrays:
        if array.dtype.kind in "iuf":
            with np.errstate(over="ignore"):  # of one that a short float cannot hold
                exact = np.array(codes).astype(array.dtype if array.dtype.kind == "f" else float)
            kept &= ~np.isin(array, exact).any(tuple(range(1, array.ndim)))
    if kept.size and not kept.any():
        raise DataError(f"missing={shown(missing)} stands in all rows of {where}", "some without")
    if count := int((~kept).sum()):
        said = f"{count} of {kept.size} rows of {where} are left out, for missing={codes}."
        warnings.warn(said, DataWarning, stacklevel=2)
    return kept


def _codes(missing: Missing) -> list[float]:
    """Numbers that are given as one, a list, or a text with commas."""
    given: Any = missing.split(",") if isinstance(missing, str) else missing
    given = given if isinstance(given, Sequence) else [given]
    try:
        return [float(code) for code in given]
    except ValueError as error:
        raise DataError(f"missing={missing!r}", "numbers") from error


def warn_of_wild_cells(
    title: str, train: Tensor, given: Mapping[str, Tensor], columns: Sequence[str] = ()
) -> None:
    """Names cells of all rows (B, C, ...), tables or sequences, that would set the scale of their
    column alone, judged by training rows (N, C, ...).

    They lie farther from the median than 30 times the range of the other values, from the 0.5 to
    the 99.5 percentile and without two at each end at least; values that are the median are not
    among them, as most of a column may be zeros. Or they repeat a value that lies 3 times the range
    of all others off the next, as codes for missing values do.
    """
    if train.ndim > 3 or not train.numel():
        return
    tables = {name: x.movedim(1, -1).flatten(0, -2) for name, x in given.items()}
    step = train.numel() // _JUDGED + 1
    ranked = np.sort(train[::step].movedim(1, -1).flatten(0, -2).double().numpy(), 0)
    middle, last = ranked[len(ranked) // 2], len(ranked) - 1
    others = np.sort(np.where(ranked == middle, np.nan, ranked), 0)  # which puts NaN at the end
    count = np.isfinite(others).sum(0)
    out = np.maximum(2, count // 200)
    low, high = (_at(others, places) for places in (out, count - 1 - out))
    off = np.where(count < 10, np.inf, _FAR * (np.fmax(high, middle) - np.fmin(low, middle)))
    several = (np.diff(ranked, axis=0) != 0).sum(0) > 10
    codes = []
    for ends in (ranked, ranked[::-1]):
        times = (ends == ends[0]).sum(0)
        near = _at(ends, times)
        alone = abs(near - ends[0]) > _ALONE * abs(ends[last] - near)
        codes.append(torch.from_numpy(np.where((times > 1) & several & alone, ends[0], np.nan)))
    lowest, highest = torch.from_numpy(middle - off), torch.from_numpy(middle + off)
    found = 0
    first: list[str] = []
    for name, x in tables.items():
        bad = (x < lowest) | (x > highest) | (x == codes[0]) | (x == codes[1])
        found += int(bad.sum())
        for place, column in bad.nonzero()[: 3 - len(first)].tolist():
            where = _where(name, place * len(given[name]) // len(x), [column], columns)
            first.append(f"{x[place, column].item():g} in {where} of {name}")
    if found:
        more = f" and {found - 3} more" if found > 3 else ""
        said = f"{title} has cells far from all others of their column: {'; '.join(first)}{more}."
        warnings.warn(f"{said} To leave out missing values: missing=.", DataWarning, stacklevel=2)


def _at(ranked: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The value of each column (C,) at a place of its own."""
    return np.take_along_axis(ranked, places.clip(0, len(ranked) - 1)[None], 0)[0]


def check_inputs(name: str, x: Tensor, *, ids: bool = False, columns: Sequence[str] = ()) -> None:
    """Inputs are tables (B, features), or have channels in dimension 1: sequences (B, channels,
    length), images (B, channels, height, width), volumes; `ids` are whole numbers."""
    shape = tuple(x.shape)
    if x.ndim < 2:
        raise DataError(f"{name} has shape {shape}", "(rows, features) or (rows, channels, ...)")
    if 0 in shape:
        raise DataError(f"{name} is empty, shape {shape}", "at least one row and one feature")
    check_finite(name, x, columns if x.ndim == 2 and len(columns) == x.shape[1] else ())
    if ids:
        bad = (x < 0) | (x != x.round() if x.is_floating_point() else x.new_tensor(False).bool())
        expected = "whole numbers from 0, rows of a table of embeddings, for ids=True"
        refuse_rows(name, x, bad, expected)


def with_channel(x: Tensor) -> Tensor:
    """Inputs, of which bytes (B, height, width) are grey images: they get their one channel."""
    return x[:, None] if x.dtype == torch.uint8 and x.ndim == 3 else x


def check_pair(x_name: str, x: Tensor, y_name: str, y: Tensor) -> None:
    """Inputs and targets have one row each."""
    here, rows = (len(one) if one.ndim else 0 for one in (x, y))
    if here != rows or not x.ndim:
        found = f"{x_name} has shape {tuple(x.shape)} but {y_name} {tuple(y.shape)}"
        raise DataError(found, "one target for each row")
