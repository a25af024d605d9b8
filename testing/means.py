"""Comparisons by chance, of means over draws."""

from __future__ import annotations

import torch
from torch import Tensor

FALSE_ALARM = 1e-6  # of a whole comparison, under another seed


def limit(comparisons: int, rate: float = FALSE_ALARM) -> float:
    """The largest of several ``|z|`` that chance leaves, by Bonferroni."""
    share = torch.tensor(1.0 - rate / (2 * comparisons), dtype=torch.float64)
    return float(torch.special.ndtri(share))


def assert_same_means(one: Tensor, other: Tensor) -> float:
    """Assert that two samples ``(S, *)`` and ``(T, *)`` have means that differ by chance only, with
    a false alarm in a million; returns the largest ``|z|``.

    A number that is known is a sample of two that are equal, ``known.expand(2, ...)``.
    """
    one, other = (t.detach().double().flatten(1) for t in (one, other))
    variance = one.var(0) / len(one) + other.var(0) / len(other)
    difference = one.mean(0) - other.mean(0)
    z = torch.where(variance > 1e-24, difference / variance.sqrt(), difference * 1e9)
    largest = float(z.abs().max())
    assert largest < limit(z.numel()), largest
    return largest
