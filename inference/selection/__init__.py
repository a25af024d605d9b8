"""Hyperparameters by optimisation at two levels: a pair with levels in, the selected fit out."""

from .bilevel import IndefiniteCurvature, Selection, select
from .hypergradient import NonFiniteGradient
from .levels import Against, InverseGamma, Level
from .methods import Drmad, Greedy, Implicit, OneLevel, Random, Unrolled

__all__ = [
    "Against",
    "Drmad",
    "Greedy",
    "Implicit",
    "IndefiniteCurvature",
    "InverseGamma",
    "Level",
    "NonFiniteGradient",
    "OneLevel",
    "Random",
    "Selection",
    "Unrolled",
    "select",
]
