"""Modules of torch that keep several weights in one tensor, made of linear layers instead."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .attention import AttentionWeights, Heads
    from .recurrent import GATES, Cell, Matrix
    from .unpacking import copied, folded, refuse_pretrained, unpacked, untransposed, unwrapped

__getattr__, __dir__ = lazy_names(__name__)
