"""Hyperparameters: by optimisation at two levels, or read off the path of a fit of all weights."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .bilevel import select
    from .levels import Against, Level
    from .methods import Greedy, Implicit, OneLevel, Random, Unrolled
    from .self_tuning import SelfTuning

__all__ = [
    "Against",
    "Greedy",
    "Implicit",
    "Level",
    "OneLevel",
    "Random",
    "SelfTuning",
    "Unrolled",
]

__getattr__, __dir__ = lazy_names(__name__)
