"""The only module that knows ArviZ: 0.23 (the newest on Python 3.11) and 1.x (from 3.12 on).

ArviZ is imported when something of it is asked for: it takes as long as torch.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["psis"]

Floats = NDArray[np.float64]


@cache
def _arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0.23 announces 1.x at every import
        import arviz
    return arviz


def _is_one() -> bool:
    """Whether this is ArviZ 1.x. By its version: 1.x has an ``InferenceData`` too."""
    return int(_arviz().__version__.split(".")[0]) >= 1


def psis(log_ratios: ArrayLike) -> tuple[Floats, Floats]:
    r"""Pareto smoothed importance sampling.

    Arguments:
        log_ratios: log p - log q of S draws, up to a constant, ``(*, S)``.

    Returns:
        log weights ``(*, S)``, whose exponentials sum to one over the draws, and k̂ ``(*,)``.

    References:
        Vehtari, Simpson, Gelman, Yao, Gabry 2024, JMLR 25(72).
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    if _is_one():
        from arviz_stats.base import array_stats

        weights, khat = array_stats.psislw(-values)  # it takes minus the log weights
    else:
        weights, khat = _arviz().psislw(values)
    return np.asarray(weights, dtype=np.float64), np.asarray(khat, dtype=np.float64)
