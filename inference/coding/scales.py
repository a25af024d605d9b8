"""Deviations of priors on the grid on which they are sent: a byte each."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...data import PyroccamError

_STEPS = 8  # of an octave
_ONE = 128  # the byte of 1


def deviation(byte: int) -> float:
    """``2^((byte - 128) / 8)``, from 1.5e-5 to 60,000, in steps of 9 %.

    Made of square roots and products of doubles, which are rounded in the same way everywhere.
    """
    octaves, step = divmod(byte - _ONE, _STEPS)
    half = math.sqrt(2.0)
    quarter = math.sqrt(half)
    eighth = math.sqrt(quarter)
    found = 1.0
    for bit, root in ((4, half), (2, quarter), (1, eighth)):
        found *= root if step & bit else 1.0
    return math.ldexp(found, octaves)


def nearest(scale: float) -> int:
    """The byte of the deviation that is nearest in ratio."""
    byte = round(_STEPS * math.log2(scale)) + _ONE if 0 < scale < math.inf else -1
    if not 0 <= byte < 256:
        raise PyroccamError(f"A prior of the deviation {scale:.3g}", "1.5e-5 to 60,000")
    return byte


def scaled(values: NDArray[np.float32], byte: int) -> NDArray[np.float32]:
    """Weights of a layer from standard normal values: one product of doubles, then rounded."""
    product = values.astype(np.float64) * deviation(byte)
    return product.astype(np.float32)
