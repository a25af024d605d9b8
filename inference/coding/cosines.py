"""Smooth kernels: the cosine transform with a prior that expects less of higher frequencies."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_LEFT = 0.4  # the deviation at the frequency of the grid, of that at 0
_DIGITS = 2.0**20


@cache
def cosine_waves(n: int) -> NDArray[np.float64]:
    r"""The waves of which n neighbours are made, ``(n, n)``, one in each row:

    .. math:: b_{ui} = 0.4^{u/n} \sqrt{\frac{2 - [u = 0]}{n}} \cos\frac{π u (2 i + 1)}{2 n}.

    They are orthogonal (DCT-II), and the lengths fall as deviations do of the frequencies of
    kernels that are trained, by about 16 % of one to the next where n is 5 (LeNet-5 on MNIST;
    Fortuin et al. 2022, arXiv:2102.06571, have found kernels to be smooth). So for independent
    standard normal z, ``z @ b`` are correlated. Rounded to multiples of 2^-20, which are the same
    wherever cosines are right to 15 digits.

    References:
        Ahmed, Natarajan, Rao 1974, Discrete cosine transform, IEEE Transactions on Computers 23.
    """
    u, i = np.arange(n)[:, None], np.arange(n)
    waves = np.sqrt((2.0 - (u == 0)) / n) * np.cos(np.pi * u * (2 * i + 1) / (2 * n))
    return np.asarray(np.round(_DIGITS * _LEFT ** (u / n) * waves) / _DIGITS)


def from_frequencies(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Kernels ``(..., H, W)`` from what they have of each pair of waves, of the same shape.

    One addition and one product of doubles at a time, so that all machines have the same.
    """
    found = values.astype(np.float64)
    for _ in range(2):  # along W, then along H, each of which comes to stand first of both
        waves, parts = cosine_waves(found.shape[-1]), found[..., None]
        found = sum(parts[..., u, :] * waves[u] for u in range(len(waves)))
        found = np.ascontiguousarray(found.swapaxes(-1, -2))
    return found.astype(np.float32)
