"""One pass over training rows, in which they are checked, and everything else about them found."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import DataError, check_inputs, check_pair, with_channel
from ..fingerprint import fingerprint
from ..labels import check_labels, count_classes
from ..marginal import Marginal
from ..splits import constant_as_one
from ..tasks import Task, check_amounts
from .shuffle import Chunk

__all__ = ["Moments", "Summary", "summarise"]


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

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean (C,) and population standard deviation (C,); 1 of what is constant."""
        return self.mean, constant_as_one(self.mean, (self.squares / self.count).sqrt())


@dataclass(frozen=True)
class Summary:
    """What is known of training rows after a pass over them. It takes the place of the pass where
    a set is streamed again (`data.stream(..., summary=earlier.summary)`).

    Attributes:
        rows: N.
        classes: Number of classes; None of other targets.
        x: Mean and standard deviation of inputs, a feature or channel, float64.
        y: Those of targets, in their own units; of classes zero and one.
        marginal: Of the targets, in their own units.
        digest: Fingerprint of all rows, in their order.
    """

    rows: int
    classes: int | None
    x: tuple[Tensor, Tensor]
    y: tuple[Tensor, Tensor]
    marginal: Marginal
    digest: str


def summarise(
    chunks: Iterable[Chunk],
    task: Task,
    *,
    classes: int | None = None,
    class_names: Sequence[str] = (),
    ids: bool = False,
) -> Summary:
    """Goes through all training rows once.

    Arguments:
        chunks: Of all rows in their order.
        task: Whose targets they have.
        classes, class_names, ids: See :meth:`~pyroccam.data.Dataset.from_tensors`.

    Raises:
        DataError: naming the row that cannot be used, counted from the first row of all.
    """
    inputs, targets = Moments(), Moments()
    seen: Counter[int] = Counter()
    state, shape, rows = hashlib.blake2b(digest_size=16), None, 0
    for numbers, x, y in chunks:
        where = f" of rows {rows} to {rows + len(numbers) - 1}" if rows else ""
        check_pair(f"x{where}", x, f"y{where}", y)
        check_inputs(f"x{where}", x, ids=ids)
        x = with_channel(x)
        kind = (x.shape[1:], y.shape[1:])
        if shape is not None and kind != shape:
            raise DataError(
                f"x and y{where} have shapes {tuple(kind[0])} and {tuple(kind[1])}",
                f"{tuple(shape[0])} and {tuple(shape[1])}, as in the first rows",
            )
        shape = kind
        state.update(fingerprint(x=x, y=y).encode())
        inputs.add(x)
        if task == "classification":
            labels, counts = check_labels(f"y{where}", y, classes).unique(return_counts=True)
            seen.update(dict(zip(labels.tolist(), counts.tolist(), strict=True)))
        else:
            targets.add(check_amounts(f"y{where}", y, task))
        rows += len(numbers)
    if rows < 2:
        raise DataError(f"{rows} training row(s)", "at least 2")
    of_targets: Any = torch.zeros(1).double(), torch.ones(1).double()
    if task == "classification":
        classes = count_classes(torch.tensor(sorted(seen)), classes, class_names)
        each = torch.tensor([seen[label] for label in range(classes)])
        marginal = Marginal(rows, each, None, None)
    else:
        if classes is not None or class_names:
            raise DataError(
                f"classes={classes}, class_names={tuple(class_names)} for {task}", "neither",
                "task='classification'",
            )  # fmt: skip
        marginal = Marginal(rows, None, targets.mean, targets.squares / (rows - 1))
        if task == "regression":
            of_targets = targets.statistics()
    digest = state.hexdigest()
    return Summary(rows, classes, inputs.statistics(), of_targets, marginal, digest)
