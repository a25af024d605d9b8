"""Data sets and toys: read, checked, split, standardised."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import Dataset
    from .errors import DataError, DataWarning, PyroccamError
    from .registry import available, load
    from .rows import far_off, new_rows
    from .sets.toys import spirals
    from .streaming.making import stream
    from .streaming.writing import write_rows

__all__ = [
    "DataError",
    "DataWarning",
    "Dataset",
    "PyroccamError",
    "available",
    "far_off",
    "load",
    "new_rows",
    "spirals",
    "stream",
    "write_rows",
]

_PLACES = {
    "DataError": "errors",
    "DataWarning": "errors",
    "Dataset": "dataset",
    "PyroccamError": "errors",
    "available": "registry",
    "far_off": "rows",
    "load": "registry",
    "new_rows": "rows",
    "spirals": "sets.toys",
    "stream": "streaming.making",
    "write_rows": "streaming.writing",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are asked for: errors and ranges need no torch."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
