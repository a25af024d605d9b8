"""Evidence of a fit by every estimator, and the bits of its message: a fit in, nats out."""

from .annealing import annealed
from .closed_form import exact
from .codes import blocks_of, prequential, switching
from .estimating import bound, evidence
from .importance_weights import importance
from .laplace_method import laplace
from .message import DescriptionLength, description_length
from .optimisers import descent, langevin
from .result import LogEvidence

__all__ = [
    "DescriptionLength",
    "LogEvidence",
    "annealed",
    "blocks_of",
    "bound",
    "descent",
    "description_length",
    "evidence",
    "exact",
    "importance",
    "langevin",
    "laplace",
    "prequential",
    "switching",
]
