"""Hyperparameters: by optimisation at two levels, or read off the path of a fit of all weights."""

from .levels import Against, InverseGamma, Level
from .methods import Greedy, Implicit, OneLevel, Random, Unrolled
from .self_tuning import SelfTuning

__all__ = [
    "Against",
    "Greedy",
    "Implicit",
    "InverseGamma",
    "Level",
    "OneLevel",
    "Random",
    "SelfTuning",
    "Unrolled",
]
