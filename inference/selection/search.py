"""The state of a selection: where θ and h are, and the moves of which its methods are made."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data import PyroccamError
from ..compilation import graph_of, lean
from .hypergradient import Tensors, adam, ascend
from .levels import Key, Objectives

if TYPE_CHECKING:
    from ...data import Dataset


Batches = Iterator[tuple[Tensor, Tensor]]
"""Minibatches of one size, without end."""


def batches(data: Dataset, split: str, size: int, seed: int = 0) -> Batches:
    """Those of rows in random order."""
    count = data.counts[split] if split in data.counts else len(data.split(split)[0])
    if not count:
        raise PyroccamError(f"split={split!r} of data without such rows", "some of them")
    if data.streamed and split == "train":
        return _streamed(data, min(size, count), seed)
    return drawn(*data.split(split), min(size, count))


def drawn(x: Tensor, y: Tensor, size: int) -> Batches:
    """Minibatches of one size without end: all rows, or some in an order that is random anew each
    time that all were seen."""
    while size == len(x):
        yield x, y
    while True:
        for rows in torch.randperm(len(x), device=x.device).split(size):
            if len(rows) == size:
                yield x[rows], y[rows]


def _streamed(data: Dataset, size: int, seed: int) -> Batches:
    bounds = [(start, start + size) for start in range(0, data.N - size + 1, size)]
    for epoch in itertools.count():
        for _, x, y in data.batches(seed, epoch, bounds):
            yield x, y


class Search:
    """Where θ and h are, with the states of their optimisers; outer steps whose linear system was
    not positive definite; and what a method keeps from one outer step to the next."""

    def __init__(
        self,
        objectives: Objectives,
        rows: list[Batches],
        steps: int,
        lr: float,
        outer_lr: float,
    ) -> None:
        self.objectives, self.rows, self.steps = objectives, rows, steps
        self.theta, self.h = objectives.theta, objectives.h
        self.move, self.move_h = adam(lr), adam(outer_lr)
        self.state: Any = None
        self.state_h: Any = None
        self.indefinite = 0
        self.kept: Any = None
        self._graphs: dict[str, Any] = {}

    def keys(self, which: int, count: int) -> list[Key]:
        """Batches and noise for L (0) or Q (1)."""
        return [self.objectives.key(*next(self.rows[which])) for _ in range(count)]

    @torch.no_grad()
    def look(self, keys: list[list[Key]]) -> dict[str, float]:
        """Q, L and the terms of L, in nats over all rows."""
        made, (inner, outer) = self.objectives, keys
        terms = torch.stack([made.terms(self.theta, self.h, k) for k in inner]).mean(0)
        # The KL is that of a posterior, whatever the rows it is divided by in L.
        values = {
            "Q": torch.stack([made.outer(self.theta, self.h, k) for k in outer]).mean(),
            "L": torch.stack([made.inner(self.theta, self.h, k) for k in inner]).mean(),
            "log_likelihood": terms[0],
            "kl": terms[1] * made.seen,
        }
        return {name: made.model.size * float(value) for name, value in values.items()}

    def traced(self, f: Callable[..., Any], *args: Any) -> Any:
        """``f(*args)`` by a graph of tensor operations, once the optimisers have a state; a
        selection repeats one ``f`` of a name."""
        if any(arg is None for arg in args):
            return f(*args)
        if f.__name__ not in self._graphs:
            self._graphs[f.__name__] = lean(graph_of(f, *args), ())
        return self._graphs[f.__name__](*args)

    def both(self, step: Callable[..., Any], *keys: list[Key]) -> None:
        """Moves of θ and h together, in steps that take the state of both and a key of each."""
        for each in zip(*keys, strict=True):
            self.theta, self.state, self.h, self.state_h = self.traced(
                step, self.theta, self.state, self.h, self.state_h, *each
            )

    def ascend(self) -> None:
        def step(theta: Tensors, h: Tensors, state: Any, key: Key) -> Any:
            return ascend(
                self.objectives.inner, theta, h, keys=[key], update=self.move, state=state
            )

        for _ in range(self.steps):  # a key at a time: the batches of many steps are large
            (key,) = self.keys(0, 1)
            self.theta, self.state = self.traced(step, self.theta, self.h, self.state, key)

    def climb(self, gradient: Tensors) -> None:
        self.h, self.state_h = self.move_h(self.h, gradient, self.state_h)
