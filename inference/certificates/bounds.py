"""Upper limits of an error that hold with a stated certainty: shares of rows in, a share out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_HALVINGS = 60


def binomial_limit(wrong: int, rows: int, log_delta: float) -> float:
    r"""The largest error under which so few wrong rows are not too improbable.

    .. math:: \sup \{p : P[\mathrm{Bin}(n, p) \le k] \ge δ\}

    Of a network that was fixed before the rows were seen it is above the error with a probability
    of at least ``1 - δ``. The tail is summed in logarithms, as ``δ = 2^{-L} δ'`` of a file of L
    bits is far below the smallest number of double precision.

    Arguments:
        wrong: k of the rows.
        rows: n, drawn independently.
        log_delta: ``ln δ``.

    References:
        Langford 2005, Tutorial on practical prediction theory for classification, JMLR 6.

    Example:
        >>> round(binomial_limit(0, 100, math.log(0.05)), 4)  # 1 - 0.05^(1/100)
        0.0295
    """
    k = np.arange(wrong + 1, dtype=np.float64)
    # ln C(n, k), by the ratio of each to the one before.
    ratios = np.log(np.maximum(rows - k[1:] + 1.0, 0.5)) - np.log(np.maximum(k[1:], 1.0))
    ways = np.concatenate([[0.0], np.cumsum(ratios)])

    def tail(p: float) -> float:
        each = ways + k * math.log(p) + (rows - k) * math.log1p(-p)
        return float(np.logaddexp.reduce(each))

    if wrong >= rows:
        return 1.0
    return _last(wrong / rows, lambda p: tail(p) >= log_delta)


def kl_of_shares(a: float, b: float) -> float:
    """``a ln(a / b) + (1 - a) ln((1 - a) / (1 - b))``, of two shares, in nats."""
    if b <= 0.0 < a or a < 1.0 <= b:
        return math.inf
    one = a * math.log(a / b) if a > 0.0 else 0.0
    return one + ((1.0 - a) * math.log((1.0 - a) / (1.0 - b)) if a < 1.0 else 0.0)


def kl_limit(share: float, nats: float) -> float:
    """``kl^-1``: the largest b with ``kl(share || b) <= nats``.

    Example:
        >>> round(kl_limit(0.0, 0.1), 4)  # 1 - exp(-0.1)
        0.0952
    """
    return 1.0 if share >= 1.0 else _last(share, lambda b: kl_of_shares(share, b) <= nats)


def sum_limit(total: float, sizes: list[int], log_delta: float) -> float:
    r"""An upper limit of the mean of ``Σ_c Y_c / Σ_c m_c``, where the ``Y_c`` in ``[0, m_c]`` are
    independent, with certainty ``1 - δ``.

    ``Y_c / max m`` are in ``[0, 1]``, and their mean Z over S parts has ``kl(Z || E Z) <= ln(1/δ) /
    S`` where it is below ``E Z``, but for a probability δ: Chernoff's inequality, for which
    variables that are 0 or 1 and alike are the worst (Hoeffding 1963).

    Arguments:
        total: ``Σ_c Y_c`` that was seen.
        sizes: ``m_c``.
        log_delta: ``ln δ``.
    """
    whole, parts = max(sizes), len(sizes)
    scale = whole * parts / sum(sizes)
    return min(1.0, scale * kl_limit(total / (whole * parts), -log_delta / parts))


def seeger_limit(share: float, rows: int, kl: float, log_delta: float) -> float:
    r"""The error of networks that are drawn from a posterior, of any q at once.

    .. math:: E_q[e] \le kl^{-1}\left(E_q[k/n], \frac{KL(q \| p) + \ln(2 \sqrt n / δ)}{n}\right)

    Arguments:
        share: ``E_q[k / n]``.
        rows: n, of at least 8.
        kl: ``KL(q || p)`` in nats, p fixed before the rows were seen.
        log_delta: ``ln δ``.

    References:
        Seeger 2002, PAC-Bayesian generalisation error bounds for Gaussian process classification;
        Maurer 2004, A note on the PAC Bayesian theorem, arXiv:cs/0411099.
    """
    cost = kl + math.log(2.0 * math.sqrt(rows)) - log_delta
    return 1.0 if rows < 8 else kl_limit(share, cost / rows)


def _last(low: float, holds: Callable[[float], bool]) -> float:
    """The end of what holds from ``low`` on, below 1, from above."""
    high = 1.0
    low = max(low, 1e-300)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle < 1.0 and holds(middle) else (low, middle)
    return high
