"""One pass over training rows, in which they are checked, and everything else about them found."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import (
    DataError,
    Fields,
    Marginal,
    Task,
    add_rows,
    check_amounts,
    check_labels,
    check_rows,
    check_weights,
    constant_as_one,
    count_classes,
    fingerprint,
    numbered,
    refuse_classes,
    with_channel,
)
from .placed import Placed

NUMBERS = 2**20
"""Numbers of which there are copies in float64 at a time."""


class Moments:
    r"""Mean and variance along dimension 1 of rows that pass by, in float64.

    Those of n rows and of m more are put together by

    .. math:: \bar x_{n+m} = \bar x_n + \frac{m}{n+m} δ, \qquad
              S_{n+m} = S_n + S_m + \frac{nm}{n+m} δ^2, \qquad δ = \bar x_m - \bar x_n,

    with S the sum of squares about the mean. Each S is found about the mean of its own rows: a sum
    of squares less a square of the sum has no digits left where the mean is large.

    References:
        Chan, Golub, LeVeque 1979, Updating formulae and a pairwise algorithm for computing sample
        variances, Stanford STAN-CS-79-773.
    """

    def __init__(self) -> None:
        self.count = 0.0
        self.mean = self.squares = torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Take in values (B, C, ...), or (B,) as one column."""
        x = x[:, None] if x.ndim == 1 else x
        for part in x.split(max(1, NUMBERS // x[0].numel())):
            self._add(part)

    def _add(self, x: Tensor) -> None:
        over = [d for d in range(x.ndim) if d != 1]
        count = float(x.numel() / x.shape[1])
        values = x.double()
        mean = values.mean(over)
        squares = (values - mean.reshape(-1, *[1] * (x.ndim - 2))).square_().sum(over)
        if not self.count:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total, apart = self.count + count, mean - self.mean
        self.mean = self.mean + apart * (count / total)
        self.squares = self.squares + squares + apart.square() * (self.count * count / total)
        self.count = total

    def statistics(self, fields: Fields | None = None) -> tuple[Tensor, Tensor]:
        """Mean (C,) and population standard deviation (C,); 1 of what is constant. Columns of
        several inputs have those of their channel, and whole numbers and truth values what leaves
        them as they are."""
        mean, variance = self.mean, self.squares / self.count
        if fields is not None:
            mean, variance = fields.gathered(mean, variance)
        return mean, constant_as_one(mean, variance.sqrt())


@dataclass(frozen=True)
class Summary:
    """What is known of training rows after a pass over them.

    Attributes:
        rows: N.
        classes: Number of classes; None of other targets.
        x: Mean and standard deviation of inputs, a feature or channel, float64.
        y: Those of targets, in their own units; of classes zero and one.
        marginal: Of the targets, in their own units.
        digest: Fingerprint of all rows, in their order.
        weight: Sum of the weights of rows, as they are in the source; None of rows without.
        class_weight: That of the rows of each class (C,).
    """

    rows: int
    classes: int | None
    x: tuple[Tensor, Tensor]
    y: tuple[Tensor, Tensor]
    marginal: Marginal
    digest: str
    weight: float | None = None
    class_weight: Tensor | None = None


def summarise(
    reader: Placed,
    task: Task,
    *,
    classes: int | None = None,
    class_names: Sequence[str] = (),
    ids: bool = False,
) -> Summary:
    """Goes through all training rows once."""
    inputs, targets = Moments(), Moments()
    seen: Counter[int] = Counter()
    weight, weights_seen = 0.0, Counter[int]()
    # of each apart, and of bytes alone: how many rows are read at a time is no part of them
    of_x, of_y = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    kinds: set[str] = set()
    shape, rows, weighted = None, 0, False
    for numbers, x, y, *more in reader.in_order():
        places = reader.places(numbers.numpy())
        of_rows, known = None, y
        with numbered(places):
            if more:  # they stand behind the targets in the digest
                of_rows, weighted = check_weights("weights", more[0], len(y)).double(), True
                known = torch.cat([y.double().reshape(len(y), -1), more[0][:, None]], 1)
            add_rows(of_x, with_channel(x))
            add_rows(of_y, known)
            of_row = [f"{tuple(part.shape[1:])} {part.dtype}" for part in (with_channel(x), known)]
            kinds.add(" ".join(of_row))
            x = check_rows("train", x, y, ids=ids)
            kind = (x.shape[1:], y.shape[1:])
            if shape is not None and kind != shape:
                now, first = (f"{tuple(one[0])} and {tuple(one[1])}" for one in (kind, shape))
                raise DataError(f"x and y have shapes {now} in row {places[0]}", first)
            shape = kind
            inputs.add(x)
            if task == "classification":
                labels = check_labels("y", y, classes)
                each, which, counts = labels.unique(return_inverse=True, return_counts=True)
                seen.update(dict(zip(each.tolist(), counts.tolist(), strict=True)))
                if of_rows is not None:
                    sums = of_rows.new_zeros(len(each)).index_add_(0, which, of_rows)
                    weights_seen.update(dict(zip(each.tolist(), sums.tolist(), strict=True)))
            else:
                targets.add(check_amounts("y", y, task))
        if of_rows is not None:
            weight += float(of_rows.sum())
        rows += len(numbers)
    if rows < 2:
        raise DataError(f"{rows} training row(s)", "at least 2")
    if weighted and not weight > 0:
        raise DataError("weights are zero in all training rows", "some above zero")
    class_weight: Tensor | None = None
    of_targets: Any = torch.zeros(1).double(), torch.ones(1).double()
    if task == "classification":
        classes = count_classes(torch.tensor(sorted(seen)), classes, class_names)
        each = torch.tensor([seen[label] for label in range(classes)])
        marginal = Marginal(rows, each, None, None)
        if weighted:
            class_weight = torch.tensor([float(weights_seen[c]) for c in range(classes)]).double()
    else:
        refuse_classes(task, classes, class_names)
        marginal = Marginal(rows, None, targets.mean, targets.squares / (rows - 1))
        if task == "regression":
            of_targets = targets.statistics()
    digest = fingerprint(
        rows=str(rows), kinds="\n".join(sorted(kinds)), x=of_x.hexdigest(), y=of_y.hexdigest()
    )
    return Summary(
        rows, classes, inputs.statistics(reader.fields), of_targets, marginal, digest,
        weight=weight if weighted else None, class_weight=class_weight,
    )  # fmt: skip
