r"""Normal numbers that are the same to the last bit everywhere.

A number u below 2^16 becomes the standard normal quantile

.. math:: z_u = Φ^{-1}\Big(\frac{u + 1/2}{2^{16}}\Big),

read in a table of 65,536 floats. The prior that sender and receiver share is the uniform law on
these values; it differs from N(0, 1) in distribution function by 2^-17, and ends at ±4.32.

Why it is exact: the table is computed from integers by additions, multiplications, divisions and
square roots of doubles, one numpy call each, which IEEE 754 rounds correctly on every machine. No
``log``, ``exp`` or ``erf`` of a mathematical library is called, whose last bits differ between
machines, and nothing can be contracted into a fused multiply-add, as each call writes its result.
The last step rounds to single precision.

Deviations of priors lie on a grid, and are sent as a byte each.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...data import PyroccamError
from .counter import halves

LEVELS = 2**16
CANDIDATES = 0  # the stream of candidates

Doubles = NDArray[np.float64]

# Rational functions of Wichura's algorithm AS 241 (PPND16), lowest power first; relative error
# 1e-16. The third region, of probabilities below e^-25, is not met.
_MIDDLE = (
    3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
    1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
    3.3430575583588128105e4, 2.5090809287301226727e3,
), (
    1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
    2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
    5.2264952788528545610e3,
)  # fmt: skip
_TAIL = (
    1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
    3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
    2.27238449892691845833e-2, 7.74545014278341407640e-4,
), (
    1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)  # fmt: skip


@cache
def quantiles() -> NDArray[np.float32]:
    """The table, ``(65536,)``, in increasing order and exactly antisymmetric.

    References:
        Wichura 1988, Algorithm AS 241: The percentage points of the normal distribution.
    """
    half = np.arange(LEVELS // 2, dtype=np.float64) + 0.5  # the lower half; all of it is exact
    p = half / LEVELS
    q = p - 0.5
    middle = q * _ratio(_MIDDLE, 0.180625 - q * q)
    tail = -_ratio(_TAIL, np.sqrt(_minus_log(half)) - 1.6)
    lower = np.where(q >= -0.425, middle, tail).astype(np.float32)
    table = np.concatenate([lower, -lower[::-1]])
    table.flags.writeable = False
    return table


def candidates(seed: int, block: int, rows: range, columns: int) -> NDArray[np.float32]:
    """Candidates of a block under the prior: standard normals ``(len(rows), columns)``."""
    return quantiles()[halves(seed, CANDIDATES, block, rows, columns)]


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Doubles) -> Doubles:
    above, below = (_polynomial(c, x) for c in coefficients)
    return above / below


def _polynomial(coefficients: tuple[float, ...], x: Doubles) -> Doubles:
    found = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        found = found * x
        found = found + c
    return found


_LN2 = 0.6931471805599453


def _minus_log(half: Doubles) -> Doubles:
    """-log(half / 2^16), by the series of the inverse hyperbolic tangent."""
    m, e = np.frexp(half)  # exact
    small = m < 0.7071067811865476
    m, e = np.where(small, 2 * m, m), np.where(small, e - 1, e)
    s = (m - 1) / (m + 1)
    square = s * s
    series = _polynomial(tuple(1 / (2 * k + 1) for k in range(14)), square)
    found = 2 * s * series
    shift = (16 - e).astype(np.float64) * _LN2
    return shift - found


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
