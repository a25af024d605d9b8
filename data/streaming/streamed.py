"""A data set whose training rows are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import (
    AtLeastTwo,
    DataError,
    Dataset,
    Marginal,
    along,
    checked,
    known_rows,
    of_classes,
    scaled,
    with_channel,
)
from .placed import Placed
from .summary import Summary

PART = 2**13
"""Rows that are scaled at once, and that a network is given at once, where all are gone through."""


def _streamed_away(data: Dataset, what: str) -> DataError:
    return DataError(
        f"{what} of {data.name}, whose {data.N:,} training rows are streamed",
        "what takes rows in parts, or data.sample(rows)",
    )


def _not_held(what: str) -> property:
    """What is asked of training rows in memory, and refused."""

    def refuse(self: Dataset) -> Tensor:
        raise _streamed_away(self, what)

    return property(refuse, doc="Not there: training rows are streamed.")


class Streamed(Dataset):
    r"""A data set whose training rows stay in their source, made by :func:`pyroccam.data.stream`.

    Validation and test rows, and a few training rows as examples, are in memory. The others come in
    minibatches, and go: the memory that they take does not grow with N. What needs all training
    rows at once, and cannot take them in parts, is refused by a :class:`DataError`, which
    :meth:`sample` answers.

    The random transformations of `batch_transform` act on minibatches of a fit, and on nothing
    else: neither on validation and test rows, nor where the training rows are gone through for a
    posterior of the depth, an evidence or metrics. They make no data. The objective of a fit stays

    .. math:: E_q \sum_{n=1}^{N} E_t \log p(y_n \mid t(x_n), w) - β \, KL(q \| p),

    with the rows counted N times and β the `kl_weight` of the fit, 1 if nobody changes it: no
    likelihood is tempered behind a person's back. By Jensen's inequality it is a bound on that of
    the network whose probabilities are averaged over the transformations t. Whoever holds that
    transformed rows are more data than N, or fewer, says so by `kl_weight`.

    Attributes:
        summary: What a pass over the training rows has found.

    References:
        Nabarro, Ganev, Garriga-Alonso, Fortuin, van der Wilk, Aitchison 2021, arXiv:2106.05586, for
        likelihoods of augmented rows; Kapoor, Maddox, Izmailov, Wilson 2022, arXiv:2203.16481, for
        augmentation and tempering.
    """

    streamed = True

    def __init__(
        self,
        held: Dataset,
        reader: Placed,
        summary: Summary,
        *,
        batch_transform: Callable[[Any], Any] | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        class_weights: Tensor | None = None,
    ) -> None:
        values = {one.name: getattr(held, one.name) for one in fields(held)}
        for name in ("x_train", "y_train", "weights"):
            del values[name]
        values |= {
            "held": held,
            "reader": reader,
            "summary": summary,
            "batch_transform": batch_transform,
            "memory_format": memory_format,
            "class_weights": class_weights,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    held: Dataset
    reader: Placed
    summary: Summary
    batch_transform: Callable[[Any], Any] | None
    memory_format: torch.memory_format
    class_weights: Tensor | None

    x_train: Any = _not_held("x_train")
    y_train: Any = _not_held("y_train")

    @property
    def weights(self) -> Tensor | None:
        """Not there, if rows have weights: they are streamed with the targets."""
        if self.weighted:
            raise _streamed_away(self, "weights")
        return None

    def order(self, seed: int, epoch: int) -> Tensor:
        """Not there: no order of all rows is in memory."""
        raise _streamed_away(self, "the order")

    # -- what is known ----------------------------------------------------------------------------

    def with_class_weights(self, class_weights: Any = "balanced") -> Streamed:
        each = of_classes(self, class_weights, self._class_totals).double()
        totals = self._class_totals()
        mean = float((each * totals).sum()) / self.N
        if not mean > 0:
            raise DataError("weights are zero in all training rows", "some above zero")
        each = each / mean
        held, changes = self.held, {}
        for name, y in (("weights", held.y_train), ("val_weights", held.y_val)):
            own = getattr(held, name)
            own = held.x_val.new_ones(len(y)) if own is None else own
            changes[name] = own * each.to(own)[y]
        before = 1.0 if self.class_weights is None else self.class_weights
        return self._with(held.but(**changes), class_weights=before * each)

    def _class_totals(self) -> Tensor:
        """Sums of the weights that training rows of each class have so far (C,), on the CPU."""
        found, own = self.summary.marginal.counts, self.summary.class_weight
        assert found is not None
        found = found.double()
        if own is not None and self.summary.weight is not None:
            found = own * (self.N / self.summary.weight)
        return found if self.class_weights is None else found * self.class_weights

    @property
    def _examples(self) -> Dataset:
        return self.held

    @property
    def N(self) -> int:
        return self.reader.rows

    @property
    def marginal(self) -> Marginal:
        known, where = self.summary.marginal, self.device
        if known.mean is None or known.variance is None:
            assert known.counts is not None
            return known._replace(counts=known.counts.to(where))
        mean, std = (s.to(where) for s in self.scaling[2:])
        return known._replace(
            mean=(known.mean.to(where) - mean) / std,
            variance=known.variance.to(where) / std.square(),
        )

    @property
    def edges(self) -> Tensor | None:
        edges = torch.from_numpy(self.reader.edges)
        return None if len(edges) == self.N + 1 else edges

    @property
    def marks(self) -> tuple[Tensor, ...]:
        digest = torch.frombuffer(bytearray(self.digest.encode()), dtype=torch.uint8)
        scaling = [one.cpu().double() for one in self.scaling]
        each = self.class_weights
        each = torch.ones(0) if each is None else each.cpu()  # rows in memory have them in targets
        transformed = torch.tensor([self.batch_transform is not None])
        return digest, self.x_val, self.y_val, *scaling, each, transformed

    # -- rows -------------------------------------------------------------------------------------

    def batches(
        self, seed: int, epoch: int, bounds: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for rows, x, *y in self.reader.batches(seed, epoch, bounds):
            batch = rows.to(self.device), self._inputs(x, training=True), self._targets(*y)
            del rows, x, y  # parts of what is held, which goes before the next is read
            yield batch

    def parts(self, split: str, *, weighted: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        if split != "train":
            yield self.split(split)
            return
        for _, *chunk in self.reader.in_order():
            for x, *y in zip(*(part.split(PART) for part in chunk), strict=True):
                yield self._inputs(x), self._targets(*y, weighted=weighted)

    def take(self, split: str, places: Tensor) -> tuple[Tensor, Tensor]:
        if split != "train":
            return super().take(split, places)
        x, *y = self.reader.take(places.cpu().numpy())
        return self._inputs(x), self._targets(*y, weighted=False)

    @checked
    def sample(self, rows: AtLeastTwo) -> Dataset:
        """The same data with some of the training rows, evenly spread, all in memory.

        Validation and test rows, and the scale of all, stay as they are.
        """
        count = min(rows, self.N)
        places = np.linspace(0, self.N - 1, count).round().astype(np.int64)
        x, *y = self.reader.take(places)
        targets, weights = self._targets(*y, weighted=False), self._weights(*y)
        own, val_weights = {}, self.held.val_weights
        if weights is not None and val_weights is not None:
            own = scaled(weights, val_weights)
        return self.held.but(x_train=self._inputs(x), y_train=targets, **own)

    def seen(self, x: Tensor) -> Tensor:
        found = known_rows(x, [self.x_val])
        for part, _ in self.parts("train"):
            found |= known_rows(x, [part])
        return found

    def _inputs(self, x: Tensor, *, training: bool = False) -> Tensor:
        """Inputs as a network takes them, on the device."""
        x = x.to(self.device, non_blocking=True)
        if training and self.batch_transform is not None:
            rows = len(x)
            if self.fields is None:
                x = self.batch_transform(x)
            else:
                given = self.batch_transform(self.fields.split(x))
                x = self.fields.pack("what batch_transform gives", given).to(x)
            if not isinstance(x, Tensor) or x.ndim == 0 or len(x) != rows:
                gives = f"{len(x)} rows" if isinstance(x, Tensor) and x.ndim else type(x).__name__
                raise DataError(f"batch_transform gives {gives}", f"a tensor of the {rows} rows")
        x = with_channel(x if x.dtype != torch.bool else x.float())
        x = x.flatten(1) if len(self.input_shape) == 1 else x
        if x.shape[1:] != self.input_shape:
            found = f"batch_transform gives inputs of shape {tuple(x.shape[1:])}"
            raise DataError(found, f"{self.input_shape}, as those of {self.name}")
        if self.ids:
            return x.long()
        if (scale := self._scales["x"]) is not None:  # in float64, as rows in memory were scaled
            x = (x - scale[0]).div_(scale[1])
        x = x.float().to(self.held.x_train.dtype)
        return x.to(memory_format=self.memory_format) if x.ndim == 4 else x

    def _targets(self, y: Tensor, *of_rows: Tensor, weighted: bool = True) -> Tensor:
        """Targets as a fit takes them, with weights behind them if rows have some, or without."""
        weights = self._weights(y, *of_rows) if weighted else None
        own = y.to(self.device, non_blocking=True)
        if self.classes is not None:
            own = own.long()
        else:
            own = own.float() if own.dtype == torch.bool else own
            own = own[:, None] if own.ndim == 1 else own
            if (scale := self._scales["y"]) is not None:
                own = (own - scale[0]) / scale[1]
            own = own.float().to(self.held.y_train.dtype)
        if weights is None:
            return own
        return torch.cat([own.to(weights).reshape(len(own), -1), weights[:, None]], 1)

    def _weights(self, y: Tensor, *of_rows: Tensor) -> Tensor | None:
        """Weights of rows by a mean of one, of targets and weights as they are in the source."""
        found = None
        if of_rows and self.summary.weight is not None:
            found = of_rows[0] * (self.N / self.summary.weight)
        if self.class_weights is not None:
            each = self.class_weights[y.long()].double()
            found = each if found is None else found * each
        return None if found is None else found.to(self.device, self.held.x_train.dtype)

    @cached_property
    def _scales(self) -> dict[str, tuple[Tensor, Tensor] | None]:
        """Means and standard deviations in float64 that act on values; none if they do nothing."""
        found: dict[str, tuple[Tensor, Tensor] | None] = {}
        for part, like in (("x", self.held.x_train), ("y", self.held.y_train)):
            mean, std = self.scaling[:2] if part == "x" else self.scaling[2:]
            idle = not bool(mean.any()) and bool((std == 1).all())
            found[part] = None if idle else (along(mean, like), along(std, like))
        return found

    # -- the same data, otherwise -----------------------------------------------------------------

    def _with(self, held: Dataset, **options: Any) -> Streamed:
        names = ("batch_transform", "memory_format", "class_weights")
        kept = {name: getattr(self, name) for name in names}
        return Streamed(held, self.reader, self.summary, **{**kept, **options})

    def but(self, **changes: Any) -> Streamed:
        return self._with(self.held.but(**changes))

    def laid_out(self, memory_format: torch.memory_format) -> Streamed:
        return self._with(self.held.laid_out(memory_format), memory_format=memory_format)
