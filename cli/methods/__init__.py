"""Methods by name: each takes options, makes the pairs of a run, and reports on it in the end."""

from .base import Method
from .table import METHODS, find

__all__ = ["METHODS", "Method", "find"]
