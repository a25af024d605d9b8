"""The bound: from a pair and rows to one number that can be differentiated."""

from .estimator import Bound, Terms, bound
from .full_data import Evidence, evidence

__all__ = ["Bound", "Evidence", "Terms", "bound", "evidence"]
