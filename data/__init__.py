"""Data sets and toys: read, checked, split, standardised."""

from typing import TYPE_CHECKING

from .door import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__)
