"""What is a number, of whichever library."""

from __future__ import annotations

import math
from numbers import Real

from torch import Tensor

__all__ = ["as_number"]


def as_number(value: object) -> float:
    """A number of Python's, of NumPy's or of torch's; NaN for anything else, truth values
    included, so that one comparison refuses both.

    Example:
        >>> as_number(2), as_number(True), as_number("2")
        (2.0, nan, nan)
    """
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else None
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number that is too large for one
        return -math.inf if value < 0 else math.inf
