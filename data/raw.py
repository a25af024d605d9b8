"""Test rows as they were before they were scaled, for whoever wants them on another scale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Pair = tuple[Tensor, Tensor]

_kept: ContextVar[list[Pair] | None] = ContextVar("raw_test_rows", default=None)


@contextmanager
def keeping_raw() -> Iterator[list[Pair]]:
    """Collects inputs and targets of the test rows of every data set made within.

    Scaled rows cannot be scaled back to the bit, and a row can only be recognised by its bits.
    """
    found: list[Pair] = []
    token = _kept.set(found)
    try:
        yield found
    finally:
        _kept.reset(token)


def keep_raw(x_test: Tensor, y_test: Tensor) -> None:
    """Test rows for :func:`keeping_raw`, if somebody is collecting."""
    found = _kept.get()
    if found is not None:
        found.append((x_test, y_test))
