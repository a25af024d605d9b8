"""Parameters as functions of one number u in [0, 1]: broken lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """A place among pivots.

    Attributes:
        left: the pivot on its left, ``()``, a whole number.
        share: of the pivot on its right, ``()``; the left one has the rest. Within [0, 1], but
            beyond the first and the last pivot.
    """

    left: Tensor
    share: Tensor


def place(u: Tensor, pivots: int) -> Place:
    """The place of ``u``, ``()``, among pivots that are equally spaced from 0 to 1; outside of
    these, on the line through the nearest two."""
    t = u * (pivots - 1)
    left = t.detach().floor().clamp(0, pivots - 2)
    return Place(left.long(), t - left)


def between_pivots(rows: Tensor, u: Tensor) -> Tensor:
    """The value at ``u`` of a broken line through rows ``(pivots, *)``."""
    where = place(u, len(rows))
    # Not by a product with weights, which a step may find in less than single precision.
    left, right = rows.index_select(0, torch.stack([where.left, where.left + 1]))
    return (1.0 - where.share) * left + where.share * right


class Form:
    """How a parameter depends on u."""

    def __init__(self, pivots: int) -> None:
        self.pivots = pivots

    def begin(self, p: Tensor) -> dict[str, Tensor]:
        """Tensors that are trained, of which the value is ``p`` at every u; one is named
        ``own``."""
        raise NotImplementedError

    def value(self, name: str, trained: Mapping[str, Tensor], u: Tensor) -> Tensor:
        """The parameter at u, ``()``, from what :meth:`begin` gave, as it is by now; the name of a
        logarithm begins with ``log``."""
        raise NotImplementedError


class Piecewise(Form):
    """A broken line through values at equally spaced pivots, ``(pivots, *)``."""

    def begin(self, p: Tensor) -> dict[str, Tensor]:
        return {"own": p.expand(self.pivots, *p.shape).clone()}

    def value(self, name: str, trained: Mapping[str, Tensor], u: Tensor) -> Tensor:
        return between_pivots(trained["own"], u)
