"""Hyperparameters: by optimisation at two levels, or read off the path of a fit of all weights."""

from .bilevel import IndefiniteCurvature, Selection, select
from .hypergradient import NonFiniteGradient
from .levels import Against, InverseGamma, Level
from .methods import Greedy, Implicit, OneLevel, Random, Unrolled
from .self_tuning import SelfTuning
from .weight_path import Path, PathPoint, path

__all__ = [
    "Against",
    "Greedy",
    "Implicit",
    "IndefiniteCurvature",
    "InverseGamma",
    "Level",
    "NonFiniteGradient",
    "OneLevel",
    "Path",
    "PathPoint",
    "Random",
    "Selection",
    "SelfTuning",
    "Unrolled",
    "path",
    "select",
]
