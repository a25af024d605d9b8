"""Checks of data, each with an error of one sentence.

Rows and columns are counted from 0 in every message, as tensors are indexed.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import PyroccamError
from .numbering import row_number

__all__ = [
    "DataError",
    "as_tensor",
    "check_choice",
    "check_count",
    "check_finite",
    "check_fraction",
    "check_inputs",
    "check_number",
    "check_numeric",
    "check_pair",
    "check_seed",
    "check_targets",
    "check_truth",
    "listed",
    "shown",
    "with_channel",
]


_INT64 = np.iinfo(np.int64).max

_LONGEST = 800
"""Characters of a part of a message: what a file says of itself may be of any length."""


class DataError(PyroccamError, ValueError):
    """Data that cannot be used.

    What it quotes may come from anybody's file: line breaks, control characters and halves of
    characters are written as escapes, and what is too long is cut.
    """

    def __init__(self, found: str, expected: str = "", hint: str = "") -> None:
        super().__init__(*map(_printable, (found, expected, hint)))


def _printable(text: str) -> str:
    """`text` in one line that any terminal can show."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """A value as Python writes it, of any length."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write whole numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(names: Iterable[object], most: int = 8) -> str:
    """The first names of a list, of any length, as part of a message."""
    names = list(names)
    first = [text if len(text := str(name)) <= 60 else f"{text[:57]}..." for name in names[:most]]
    return ", ".join(first) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def as_tensor(name: str, value: Any) -> Tensor:
    """Turns an array, a tensor or nested lists into a CPU tensor of its own number type.

    Raises:
        DataError: if `value` does not hold real numbers.
    """
    if isinstance(value, Tensor):
        if value.is_complex() or value.layout != torch.strided or value.is_meta:
            raise DataError(
                f"{name} is a {value.dtype} tensor ({value.layout})", "dense real numbers"
            )
        return value.detach().cpu()
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


def check_numeric(name: str, dtype: np.dtype) -> None:
    """An array holds real numbers or truth values.

    Raises:
        DataError: if it holds text, dates, objects or records.
    """
    if dtype.kind not in "biuf":
        raise DataError(
            f"{name} holds {dtype} values",
            "numbers",
            "encode text as numbers first (labels: numpy.unique(y, return_inverse=True)[1])",
        )


def check_finite(name: str, x: Tensor, columns: Sequence[str] = ()) -> None:
    """Refuses NaN, infinities, and numbers that become infinite in float32.

    Arguments:
        name: What to call `x` in the message.
        x: Values (B, ...).
        columns: Names of the columns, if there are any.

    Raises:
        DataError: with how many there are and where the first one is.
    """
    if not x.is_floating_point():
        return
    bad = ~torch.isfinite(x.float())
    count = int(bad.sum())
    if count == 0:
        return
    row, *place = (int(i) for i in bad.nonzero()[0])
    value = float(x[(row, *place)])
    where = f"row {row_number(row)}"
    if len(place) == 1:
        label = f" ({columns[place[0]]!r})" if columns else ""
        where += f", column {place[0]}{label}"
    elif place:
        where += f", position {tuple(place)}"
    raise DataError(
        f"{name} has {count} value(s) that are NaN, infinite or beyond float32, "
        f"the first at {where}: {value}",
        "finite numbers only",
        "drop those rows, or fill them with a training mean",
    )


def check_inputs(name: str, x: Tensor, *, ids: bool = False) -> None:
    """Inputs are tables (B, features), or have channels in dimension 1: sequences (B, channels,
    length), images (B, channels, height, width), volumes.

    Arguments:
        ids: They are whole numbers to look up in a table.

    Raises:
        DataError: if `x` has another shape, is empty, or is not finite; for ids that are none.
    """
    shape = tuple(x.shape)
    if x.ndim < 2:
        raise DataError(
            f"{name} has {x.ndim} dimension(s), shape {shape}",
            "(rows, features), or (rows, channels, ...) such as (rows, channels, height, width)",
            f"{name}[:, None] if there is one feature",
        )
    if 0 in shape:
        raise DataError(f"{name} is empty, shape {shape}", "at least one row and one feature")
    check_finite(name, x)
    if ids:
        bad = (x < 0) | (x != x.round() if x.is_floating_point() else x.new_tensor(False).bool())
        if bool(bad.any()):
            row, *place = (int(i) for i in bad.nonzero()[0])
            value = x[(row, *place)].item()
            raise DataError(
                f"{name} holds {value} in row {row_number(row)}, for ids=True",
                "whole numbers from 0, rows of a table of embeddings",
                "without ids=, if inputs are amounts",
            )


def with_channel(x: Tensor) -> Tensor:
    """Inputs, of which bytes (B, height, width) are grey images: they get their one channel."""
    return x[:, None] if x.dtype == torch.uint8 and x.ndim == 3 else x


def check_pair(x_name: str, x: Tensor, y_name: str, y: Tensor) -> None:
    """Inputs and targets have one row each.

    Raises:
        DataError: if the numbers of rows differ.
    """
    here, rows = (len(one) if one.ndim else 0 for one in (x, y))
    if here != rows or not x.ndim:
        raise DataError(
            f"{x_name} has {here} rows (shape {tuple(x.shape)}) but {y_name} has {rows} "
            f"(shape {tuple(y.shape)})",
            "one target for each row",
        )


def check_targets(name: str, y: Tensor) -> Tensor:
    """Regression targets: (B, T), where (B,) is read as T = 1.

    Returns:
        The targets (B, T), of a floating number type.

    Raises:
        DataError: if `y` has another shape or is not finite.
    """
    if y.ndim == 1:
        y = y[:, None]
    if y.ndim != 2 or y.shape[1] == 0:
        raise DataError(
            f"{name} has shape {tuple(y.shape)}",
            "regression targets of shape (rows,) or (rows, targets)",
            f"{name}.reshape(len({name}), -1)",
        )
    y = y if y.is_floating_point() else y.double()
    check_finite(name, y)
    return y


def check_fraction(name: str, value: float, *, zero: bool = False) -> float:
    """A share of the rows: below 1, and above 0 unless `zero` is allowed.

    Raises:
        DataError: if it is not.
    """
    if not _is_finite(value) or not 0 <= value < 1 or (value == 0 and not zero):
        raise DataError(
            f"{name}={shown(value)}", f"a number with {'0 <=' if zero else '0 <'} {name} < 1"
        )
    return float(value)


def check_number(name: str, value: float) -> float:
    """A finite number.

    Raises:
        DataError: if it is not.
    """
    if not _is_finite(value):
        raise DataError(f"{name}={shown(value)}", "a finite number")
    return float(value)


def _is_finite(value: object) -> bool:
    """True if `value` is a number that a float can hold; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def check_truth(name: str, value: bool) -> bool:
    """A truth value.

    Raises:
        DataError: if it is not.
    """
    if not isinstance(value, bool | np.bool_):
        raise DataError(f"{name}={shown(value)}", "true or false")
    return bool(value)


def check_count(name: str, value: int, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most`.

    Raises:
        DataError: if it is not.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        limit = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise DataError(f"{name}={shown(value)}", f"a whole number {limit}")
    return int(value)


def check_choice(name: str, value: str, known: Sequence[str]) -> str:
    """One of the words that are known.

    Raises:
        DataError: if it is not.
    """
    if value not in known:
        raise DataError(f"{name}={shown(value)}", " or ".join(map(repr, known)))
    return value


def check_seed(seed: int) -> int:
    """A seed is a whole number, 0 or more.

    Raises:
        DataError: if it is not.
    """
    return check_count("seed", seed, 0)
