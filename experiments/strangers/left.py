"""Which share of the parameters is left: by ours, and by the rivals while they are as good."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

__all__ = [
    "FEW", "left_by_channels", "left_by_magnitude", "left_by_ours", "left_by_rivals", "over_seeds",
]  # fmt: skip

Cell = dict[str, Any]

FEW = 1 / 3
"""A network of which less is left has become small."""

LOST = 0.02
"""Nats of the validation rows that a rival may lose to the ordinary training."""


def left_by_ours(cell: Cell) -> float:
    """The share of the parameters that are not zero in the network that is handed back."""
    small = cell["ours"]["compressed"]
    return float(small["nonzero"] / small["parameters_before"])


def left_by_magnitude(cell: Cell) -> float | None:
    """The smallest share of the weights with which magnitude pruning is as good as the ordinary
    training; 1 if it never is, and ``None`` if it was not tried."""
    return _smallest(cell, "pruned")


def left_by_channels(cell: Cell) -> float | None:
    """The same of pruning by channels; ``None``, too, where the library cannot prune."""
    return _smallest(cell, "structured")


def left_by_rivals(cell: Cell) -> float | None:
    """The smaller of both, of what there is."""
    known = [one for f in (left_by_magnitude, left_by_channels) if (one := f(cell)) is not None]
    return min(known, default=None)


def over_seeds(left: Callable[[Cell], float | None], cells: list[Cell]) -> float | None:
    """The mean over the seeds in which it is known."""
    known = [one for cell in cells if (one := left(cell)) is not None]
    return fmean(known) if known else None


def _smallest(cell: Cell, key: str) -> float | None:
    if key not in cell:
        return None
    most = cell["ordinary"]["val_nll"] + LOST
    losses = [(one["val_nll"], one["left"]) for one in cell[key]]
    # The loss of a training that came to nothing is infinite, and null in the file.
    return min([1.0, *(left for loss, left in losses if loss is not None and loss <= most)])
