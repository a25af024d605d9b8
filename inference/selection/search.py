"""Where a two-level problem stands, and one outer step of it by every method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..compilation.graphs import graph_of
from ..compilation.passes import lean
from .hypergradient import (
    IndefiniteCurvature,
    Tensors,
    Update,
    adam,
    ascend,
    drmad,
    gradient_ascent,
    implicit,
    unrolled,
)
from .levels import Key, Objectives, of_likelihood

__all__ = ["Rows", "Search", "word_of"]


class Rows:
    """Minibatches of one size, of rows in random order."""

    def __init__(self, x: Tensor, y: Tensor, size: int, split: str) -> None:
        if not len(x):
            raise ValueError(
                f"Level(split={split!r}): the data has no such rows. Make it with "
                "val_fraction=, or use the training rows."
            )
        self.x, self.y, self.size = x, y, min(size, len(x))
        self.order: Iterator[Tensor] = iter(())

    def batch(self) -> tuple[Tensor, Tensor]:
        """The next."""
        if self.size == len(self.x):
            return self.x, self.y
        for rows in self.order:
            if len(rows) == self.size:
                return self.x[rows], self.y[rows]
        order = torch.randperm(len(self.x), device=self.x.device)
        self.order = iter(order.split(self.size))
        return self.batch()


class Search:
    """The state of a selection, and an outer step of every method.

    Arguments:
        objectives: of L and Q.
        rows: of the two.
        steps: of the inner optimisation, in each of the outer.
        lr, outer_lr: of the two.
        inner: its optimiser.

    Attributes:
        restart: begin each inner optimisation anew.
        options: of the method.
        count: inner steps done.
        indefinite: outer steps whose linear system was not positive definite.
    """

    def __init__(
        self,
        objectives: Objectives,
        rows: list[Rows],
        steps: int,
        lr: float,
        outer_lr: float,
        inner: str,
    ) -> None:
        self.objectives, self.rows, self.steps, self.lr = objectives, rows, steps, lr
        self.theta, self.h = objectives.theta, objectives.h
        self.first = self.theta
        self.move: Update = adam(lr) if inner == "adam" else gradient_ascent(lr)
        self.move_h = adam(outer_lr)
        self.state: Any = None  # of the optimiser of θ
        self.state_h: Any = None
        self.restart = False
        self.options: dict[str, Any] = {}
        self.count = 0
        self.indefinite = 0
        self._graphs: dict[str, Any] = {}

    def keys(self, which: int, count: int) -> list[Key]:
        """Batches and noise for L (0) or Q (1)."""
        return [self.objectives.key(*self.rows[which].batch()) for _ in range(count)]

    @torch.no_grad()
    def look(self, keys: list[list[Key]]) -> dict[str, float]:
        """Q, L and the terms of L, in nats over all rows."""
        size = self.objectives.model.size
        inner, outer = keys
        terms = torch.stack([self.objectives.terms(self.theta, self.h, k) for k in inner]).mean(0)
        values = {
            "Q": torch.stack([self.objectives.outer(self.theta, self.h, k) for k in outer]).mean(),
            "L": torch.stack([self.objectives.inner(self.theta, self.h, k) for k in inner]).mean(),
            "log_likelihood": terms[0],
            "kl": terms[1],
        }
        return {name: size * float(value) for name, value in values.items()}

    # -- a step as a graph -------------------------------------------------------------------------

    def traced(self, name: str, f: Callable[..., Any], *args: Any) -> Any:
        """``f(*args)`` by a graph of tensor operations, once the optimisers have a state."""
        keys = [a for a in args if isinstance(a, Key)]
        flat = [a for a in args if not isinstance(a, Key)]
        flat += [[k.x, k.y, k.noise, k.structure] for k in keys]

        def call(*parts: Any) -> Any:
            made = [Key(*p) for p in parts[len(parts) - len(keys) :]]
            return f(*parts[: len(parts) - len(keys)], *made)

        if any(part is None for part in flat):
            return call(*flat)
        if name not in self._graphs:
            self._graphs[name] = lean(graph_of(call, *flat), ())
        return self._graphs[name](*flat)

    def ascend(self) -> None:
        """The inner steps."""

        def step(theta: Tensors, h: Tensors, state: Any, key: Key) -> Any:
            return ascend(
                self.objectives.inner, theta, h, steps=1, update=self.move, state=state, key=key,
                check=False,
            )  # fmt: skip

        for key in self.keys(0, self.steps):
            self.theta, self.state = self.traced("inner", step, self.theta, self.h, self.state, key)
            self.count += 1

    def climb(self, gradient: Tensors) -> None:
        """A step of h."""
        self.h, self.state_h = self.move_h(self.h, gradient, self.state_h)

    def again(self) -> None:
        """Back to the first θ, where that is asked for."""
        if self.restart:
            self.theta, self.state = self.first, None

    # -- the methods -------------------------------------------------------------------------------

    def one_level(self) -> None:
        """θ and h ascend the same objective."""

        def step(theta: Tensors, h: Tensors, s: Any, s_h: Any, key: Key) -> Any:
            slope = torch.func.grad(self.objectives.inner)(theta, h, key)
            slope_h = torch.func.grad(self.objectives.outer, argnums=1)(theta, h, key)
            return *self.move(theta, slope, s), *self.move_h(h, slope_h, s_h)

        for key in self.keys(0, self.steps):
            self.theta, self.state, self.h, self.state_h = self.traced(
                "one-level", step, self.theta, self.h, self.state, self.state_h, key
            )
            self.count += 1

    def greedy(self) -> None:
        """After every inner step the hypergradient through it."""

        def step(theta: Tensors, h: Tensors, s: Any, s_h: Any, key: Key, key_q: Key) -> Any:
            gradient, moved, s = unrolled(
                self.objectives.inner, self.objectives.outer, theta, h, steps=1, update=self.move,
                state=s, keys=[key], key=key_q, check=False,
            )  # fmt: skip
            return moved, s, *self.move_h(h, gradient, s_h)

        for key, key_q in zip(self.keys(0, self.steps), self.keys(1, self.steps), strict=True):
            self.theta, self.state, self.h, self.state_h = self.traced(
                "greedy", step, self.theta, self.h, self.state, self.state_h, key, key_q
            )
            self.count += 1

    def unrolled(self) -> None:
        """The hypergradient through all inner steps."""
        self.again()
        gradient, self.theta, self.state = unrolled(
            self.objectives.inner, self.objectives.outer, self.theta, self.h, steps=self.steps,
            update=self.move, state=self.state, keys=self.keys(0, self.steps),
            key=self.keys(1, 1)[0],
        )  # fmt: skip
        self.count += self.steps
        self.climb(gradient)

    def implicit(self) -> None:
        """The hypergradient where the inner steps end, as if that were the maximum."""
        self.again()
        self.ascend()
        (key,), (key_q,) = self.keys(0, 1), self.keys(1, 1)
        with warnings.catch_warnings():  # said once, when all steps are done
            warnings.simplefilter("ignore", IndefiniteCurvature)
            found = implicit(
                lambda theta, h, _: self.objectives.inner(theta, h, key),
                lambda theta, h, _: self.objectives.outer(theta, h, key_q),
                self.theta,
                self.h,
                **self.options,
            )
        self.indefinite += found.solution.indefinite
        self.climb(found.gradient)

    def drmad(self) -> None:
        """The hypergradient through all inner steps, on a straight line."""
        self.again()
        before, keys = self.theta, self.keys(0, self.steps)
        self.theta, _ = ascend(
            self.objectives.inner, before, self.h, steps=self.steps, update=self.move, keys=keys
        )
        self.count += self.steps
        gradient = drmad(
            self.objectives.inner, self.objectives.outer, before, self.theta, self.h,
            steps=self.steps, lr=self.lr, keys=keys, key=self.keys(1, 1)[0], **self.options,
        )  # fmt: skip
        self.climb(gradient)

    def random(self) -> None:
        """Another h, and inner steps from the first θ."""
        self.h = {
            name: torch.empty_like(t).uniform_(*self._range(name)) for name, t in self.h.items()
        }
        self.theta, self.state = self.first, None
        self.ascend()

    def _range(self, name: str) -> tuple[float, float]:
        word = word_of(name)
        if word not in self.options:
            raise ValueError(
                f"method='random' has no range for {name!r}: give ranges={{{word!r}: (low, high)}}."
            )
        found: tuple[float, float] = self.options[word]
        return found


def word_of(name: str) -> str:
    """For a hyperparameter in ``ranges``."""
    return "likelihood" if of_likelihood(name) else name.rpartition(".")[2]
