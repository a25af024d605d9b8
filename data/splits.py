"""Which rows go where, and how values are scaled: seeded, and by training rows only."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .checks import refuse_masked
from .errors import DataError

_BLOCK = 2048
"""Rows handled at a time: float64 arithmetic without a float64 copy of an image set."""

_CONSTANT = 1e-12
"""A standard deviation this small against the mean is rounding, not variation."""


def generator(seed: int, purpose: str) -> torch.Generator:
    """A random stream of its own for each seed and purpose.

    The global state of torch is neither read nor changed, and carving a validation set
    never reuses the numbers that chose the test set.
    """
    key = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())])
    state = int(key.generate_state(1, np.uint64)[0]) >> 1  # manual_seed takes 63 bits
    return torch.Generator().manual_seed(state)


def _quotas(counts: list[int], count: int) -> list[int]:
    """Shares `count` among classes in proportion to `counts`: largest remainder first.

    A class keeps at least one row in the rest for as long as other classes can give.
    """
    total = sum(counts)
    shares = [count * c / total for c in counts]
    caps = [max(c - 1, 0) for c in counts]
    quotas = [min(int(share), cap) for share, cap in zip(shares, caps, strict=True)]
    order = sorted(range(len(counts)), key=lambda k: int(shares[k]) - shares[k])
    left = count - sum(quotas)
    while left > 0:
        limits = caps if any(q < c for q, c in zip(quotas, caps, strict=True)) else counts
        for k in order:
            if quotas[k] < limits[k] and left > 0:
                quotas[k] += 1
                left -= 1
    return quotas


def pick(
    rows: int, count: int, stream: torch.Generator, labels: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draws `count` of `rows` rows without replacement, of each class of `labels` (rows,) its
    share: indices of the rows drawn and of the others, both in ascending order."""
    order = torch.randperm(rows, generator=stream)
    if labels is None:
        drawn = order[:count]
    else:
        # numbered without a gap: the largest label says nothing about how many classes there are
        _, number, counts = labels[order].unique(return_inverse=True, return_counts=True)
        quotas = torch.tensor(_quotas(counts.tolist(), count))
        by_class = number.argsort(stable=True)
        place = torch.arange(rows) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        drawn = order[by_class[place < quotas.repeat_interleave(counts)]]
    chosen = torch.zeros(rows, dtype=torch.bool)
    chosen[drawn] = True
    return chosen.nonzero().squeeze(1), (~chosen).nonzero().squeeze(1)


def pick_groups(groups: Tensor, count: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws whole groups, as many, in random order, as come nearest to `count` rows, one at least,
    and leaves one: indices of rows drawn and of the others, both ascending. Groups (rows,) are
    numbered 0, 1, ... without a gap."""
    sizes = torch.bincount(groups)
    order = torch.randperm(len(sizes), generator=stream)
    drawn = int((sizes[order].cumsum(0)[:-1] - count).abs().argmin()) + 1
    chosen = torch.isin(groups, order[:drawn])
    return chosen.nonzero().squeeze(1), (~chosen).nonzero().squeeze(1)


def carve(
    rows: int,
    fraction: float,
    seed: int,
    *,
    purpose: str = "val",
    labels: Tensor | None = None,
    groups: Any = None,
) -> tuple[Tensor, Tensor]:
    """Sets a share of the rows aside, at least one unless `fraction` is 0: indices of these and of
    those that stay, in ascending order.

    Each class of `labels` (rows,) keeps its share; or rows of the same one of `groups` (rows,) stay
    together, and the share is met as nearly as whole groups can. `purpose`, "val" or "test", names
    the option in messages, and the random stream.
    """
    name = f"{purpose}_fraction"
    count = max(1, round(fraction * rows)) if fraction else 0
    numbered = None if groups is None else number_groups(groups, rows)
    if numbered is None or not count:
        aside, stay = pick(rows, count, generator(seed, purpose), labels)
    elif int(numbered.max()) == 0:
        raise DataError(f"{name}={fraction} of rows that are all of one group", "at least 2 groups")
    else:
        aside, stay = pick_groups(numbered, count, generator(seed, purpose))
    if len(stay) < 2:
        found = f"{name}={fraction} leaves {len(stay)} of {rows} rows for training"
        raise DataError(found, "at least 2 training rows")
    return aside, stay


def number_groups(groups: Any, rows: int) -> Tensor:
    """The groups (rows,) numbered 0, 1, ... without a gap."""
    refuse_masked("groups", groups)
    names = np.asarray(groups)
    if names.shape != (rows,):
        raise DataError(f"groups has shape {names.shape}", f"one group a row, shape ({rows},)")
    return torch.from_numpy(np.unique(names, return_inverse=True)[1])


class Scaling(NamedTuple):
    """Means and standard deviations in float64, by which rows are scaled.

    Their float32 roundings are not enough to scale other rows alike: of a feature around a
    million, the rounded mean is off by several hundredths.
    """

    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor


_asked: ContextVar[Scaling | None] = ContextVar("scale_of_rows", default=None)


@contextmanager
def scaled_by(scaling: Scaling) -> Iterator[None]:
    """Within it, data sets are made on this scale if it fits them: rows that were scaled otherwise
    cannot be brought to it to the bit, and a row can only be recognised by its bits."""
    token = _asked.set(scaling)
    try:
        yield
    finally:
        _asked.reset(token)


def scaling_in_force(own: Scaling) -> Scaling:
    """The scale of a data set whose statistics are these: they, or that of :func:`scaled_by`."""
    asked = _asked.get()
    fits = asked is not None and [*map(len, asked)] == [*map(len, own)]
    return asked if asked is not None and fits else own


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (C,) and population standard deviation (C,) of values (B, C, ...) along dimension 1,
    over all others, in float64; 1 where they are constant."""
    over = [d for d in range(x.ndim) if d != 1]
    each = x.numel() / x.shape[1]
    zero = torch.zeros(x.shape[1], dtype=torch.float64)
    mean = sum((b.double().sum(over) for b in x.split(_BLOCK)), zero) / each
    column = mean.reshape(-1, *[1] * (x.ndim - 2))
    # two passes: the one-pass formula loses all digits where the mean is large
    square = sum(((b.double() - column).square_().sum(over) for b in x.split(_BLOCK)), zero)
    return mean, constant_as_one(mean, (square / each).sqrt())


def constant_as_one(mean: Tensor, std: Tensor) -> Tensor:
    """Standard deviations by which values may be divided: 1 where they are constant."""
    return torch.where(std <= _CONSTANT * mean.abs(), torch.ones_like(std), std)


def standardise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(x - mean) / std along dimension 1, in float32, of values (B, C, ...), or (B, C * m) of
    flattened images; by statistics (C,) in float64."""
    mean, std = along(mean, x), along(std, x)
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    for block, target in zip(x.split(_BLOCK), out.split(_BLOCK), strict=True):
        target.copy_((block.double() - mean) / std)
    return out


def rescale(x: Tensor, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
    """Values (B, C, ...), or (B, C * m), on the scale of one mean and standard deviation (C,), put
    on that of another; `x` itself if the scale is the same."""
    if all(torch.equal(a, b) for a, b in zip(old, new, strict=True)):
        return x
    mean, std, new_mean, new_std = (along(statistic, x) for statistic in (*old, *new))
    out = torch.empty_like(x)
    for block, target in zip(x.split(_BLOCK), out.split(_BLOCK), strict=True):
        target.copy_((block.double() * std + mean - new_mean) / new_std)
    return out


def along(statistic: Tensor, x: Tensor) -> Tensor:
    """A statistic (C,) for each feature or channel, in the shape that acts on values `x`."""
    statistic = statistic.to(x.device)
    if x.ndim == 2 and x.shape[1] != len(statistic):  # flattened images keep channel statistics
        return statistic.repeat_interleave(x.shape[1] // len(statistic))
    return statistic.view(-1, *[1] * (x.ndim - 2))
