"""From when on a checkpoint may be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ...guides.depth import CategoricalDepth

if TYPE_CHECKING:
    from .settings import Settings

__all__ = ["selectable_from"]


def selectable_from(guide: nn.Module, settings: Settings) -> float:
    """The fraction of the steps after which a checkpoint may be chosen.

    Before, q(d) is held or on its way to where it belongs, or the KL is not whole: what the depths
    count for is not yet what the data say of them.
    """
    settled = guide.settled if isinstance(guide, CategoricalDepth) else 0.0
    return max(settled, settings.kl_warmup)
