"""Numbers of rows in messages: of the rows of a source, where a check sees some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_places: ContextVar[Any] = ContextVar("places_of_rows", default=None)


@contextmanager
def numbered(places: Any) -> Iterator[None]:
    """Within it, checks call the rows that they are given by other numbers or names: `places`, or
    by the ends of the names of what is checked, such as "train" of "x_train", a dict of these."""
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


def row_number(row: int, name: str = "") -> Any:
    """How a message calls a row of what is checked, by its place there."""
    places = _places.get()
    if isinstance(places, dict):
        places = places.get(name.rpartition("_")[2])
    return row if places is None else places[row]
