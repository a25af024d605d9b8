"""Data sets and toys: read, checked, split, standardised."""

from .checks import DataError
from .dataset import Dataset
from .registry import available, load
from .toys import spirals

__all__ = ["DataError", "Dataset", "available", "load", "spirals"]
