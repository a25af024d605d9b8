"""Data sets and toys: read, checked, split, standardised."""

from .checks import DataError, DataWarning
from .dataset import Dataset
from .registry import available, load
from .rows import far_off, new_rows
from .sets.toys import spirals
from .streaming.making import stream
from .streaming.streamed import Streamed
from .streaming.writing import write_rows

__all__ = [
    "DataError",
    "DataWarning",
    "Dataset",
    "Streamed",
    "available",
    "far_off",
    "load",
    "new_rows",
    "spirals",
    "stream",
    "write_rows",
]
