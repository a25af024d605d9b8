"""Groups cut out of a plain network: smaller, faster, and the same function as with zeros."""

from .cost import compare_speed, count_parameters, seconds_per_batch
from .masks import Mask, apply_masks, masked
from .report import CutReport, LayerCut
from .surgery import Alignment, Cut, cut, groups

__all__ = [
    "Alignment",
    "Cut",
    "CutReport",
    "LayerCut",
    "Mask",
    "apply_masks",
    "compare_speed",
    "count_parameters",
    "cut",
    "groups",
    "masked",
    "seconds_per_batch",
]
