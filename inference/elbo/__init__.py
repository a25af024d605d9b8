"""The bound: from a pair and rows to one number that can be differentiated."""

from .estimator import bound
from .full_data import evidence

__all__ = ["bound", "evidence"]
