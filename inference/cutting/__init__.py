"""Groups cut out of a plain network: smaller, faster, and the same function as with zeros."""

from .cut import Alignment, Cut, cut, groups
from .masks import Mask, apply_masks, masked
from .report import CutReport, LayerCut

__all__ = [
    "Alignment",
    "Cut",
    "CutReport",
    "LayerCut",
    "Mask",
    "apply_masks",
    "cut",
    "groups",
    "masked",
]
