"""Groups cut out of a plain network: smaller, faster, and the same function as with zeros."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .cost import compare_speed, count_parameters, multiply_adds, seconds_per_batch
    from .masks import Mask, masked
    from .recording import Example, Inputs, ValuesDecide, recorded
    from .report import CutReport
    from .surgery import ROWS, cut, inside
    from .units import units_of

__all__ = [
    "Mask",
    "count_parameters",
    "cut",
    "masked",
    "seconds_per_batch",
]

__getattr__, __dir__ = lazy_names(__name__)
