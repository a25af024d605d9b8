"""The bound: from a pair and rows to one number that can be differentiated."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .estimator import Bound, EnumMeanFieldELBO, Terms, bound
    from .full_data import evidence, summed_out
    from .non_finite import first_non_finite

__all__ = [
    "bound",
    "evidence",
]

__getattr__, __dir__ = lazy_names(__name__)
