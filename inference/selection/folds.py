"""Cross-validation: one h for posteriors of all folds, each judged by the rows it has not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data import PyroccamError
from .hypergradient import NonFiniteGradient, Tensors
from .levels import Key, Objectives
from .search import Batches, Search, batches, drawn

if TYPE_CHECKING:
    from ...data import Dataset

CHECKS = 20  # draws of L that say whether the last training went well


def fold_rows(data: Dataset, folds: int, size: int) -> list[Batches]:
    """Batches for L, of all but a fold, and for Q, of that fold, of all random folds of the
    training rows at once, stacked: ``(K, B, *)``."""
    x, y = data.split("train")
    if folds > len(x):
        raise PyroccamError(f"folds={folds} of {len(x)} rows", "no more folds than rows")
    own = list(torch.randperm(len(x), device=x.device).tensor_split(folds))
    others = [torch.cat(own[:k] + own[k + 1 :]) for k in range(folds)]
    return [stacked(x, y, parts, size) for parts in (others, own)]


def stacked(x: Tensor, y: Tensor, parts: list[Tensor], size: int) -> Batches:
    size = min(size, *map(len, parts))  # folds differ by a row at most
    for each in zip(*(drawn(x[part], y[part], size) for part in parts), strict=True):
        xs, ys = zip(*each, strict=True)
        yield torch.stack(xs), torch.stack(ys)


@dataclass
class Folds(Objectives):
    r"""L and Q as means over K folds, of which each has a θ of its own; h is that of all.

    .. math:: L = \frac1K \sum_k L_{-k}(θ_k, h), \qquad Q = \frac1K \sum_k Q_k(θ_k, h)

    θ is stacked, ``(K, *)``. All are per observation, with the KL over the rows that a fold trains
    with, K - 1 of K parts of those of the model.
    """

    stacked = 1

    @property
    def folds(self) -> int:
        count = self.levels[1].folds
        assert count is not None
        return count

    @property
    def seen(self) -> float:
        return (self.folds - 1) / self.folds

    @property
    def theta(self) -> dict[str, Tensor]:
        """A copy of θ as it is for each fold."""
        return {n: torch.stack([t] * self.folds) for n, t in super().theta.items()}

    def put(self, theta: Tensors, h: Tensors) -> None:
        """Write h into the modules; θ stays where it was, for none of the folds has all rows."""
        super().put({}, h)

    def key(self, x: Tensor, y: Tensor) -> Key:
        """Batches ``(K, B, *)``, and fresh noise for each."""
        each = [super(Folds, self).key(*one) for one in zip(x, y, strict=True)]
        noise = [torch.stack(parts) for parts in zip(*(k.noise for k in each), strict=True)]
        return Key(x, y, noise, each[0].structure)

    def terms(self, theta: Tensors, h: Tensors, key: Key) -> Tensor:
        def of_fold(theta: dict[str, Tensor], x: Tensor, y: Tensor, noise: list[Tensor]) -> Tensor:
            return super(Folds, self).terms(theta, h, Key(x, y, noise, key.structure))

        self._graph(key.x[0], key.y[0])  # which is traced outside of the map
        each = torch.vmap(of_fold)(dict(theta), key.x, key.y, list(key.noise))
        log_likelihood, kl = each.mean(0)
        return torch.stack([log_likelihood, kl / self.seen])

    def finish(self, data: Dataset, size: int, steps: int, lr: float, least: float) -> None:
        """Train θ by L on all training rows, from where it began, with h as it is now."""
        L, _ = self.levels
        whole = Objectives(self.model, self.guide, (L, L), self.particles)
        whole.put({}, self.h)
        rows = batches(data, "train", size)
        search = Search(whole, [rows, rows], steps, lr, lr)
        first = search.theta
        search.ascend()
        keys = search.keys(0, CHECKS)
        with torch.no_grad():
            before, now = (
                float(torch.stack([whole.inner(theta, search.h, key) for key in keys]).mean())
                for theta in (first, search.theta)
            )
        if not math.isfinite(now) or now < min(before, least) - 1.0:
            given = f"L of {now:g} per observation after {steps} steps on all rows"
            raise NonFiniteGradient(given, f"about {least:g}, as folds had", "a smaller lr")
        whole.put(search.theta, search.h)
