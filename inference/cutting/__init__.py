"""Groups cut out of a plain network: smaller, faster, and the same function as with zeros."""

from .cost import count_parameters, seconds_per_batch
from .masks import Mask, masked
from .surgery import cut, groups

__all__ = [
    "Mask",
    "count_parameters",
    "cut",
    "groups",
    "masked",
    "seconds_per_batch",
]
