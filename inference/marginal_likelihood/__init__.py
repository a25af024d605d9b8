"""Evidence of a fit by every estimator, and the bits of its message: a fit in, nats out."""

from .annealing import Annealed
from .closed_form import Exact
from .codes import ChainRule, Prequential, blocks_of, switching
from .estimator import Estimator, LogEvidence
from .estimators import Bound, evidence
from .importance_weights import Importance
from .laplace_method import Laplace
from .message import DescriptionLength, description_length
from .optimisers import Descent, Langevin

__all__ = [
    "Annealed",
    "Bound",
    "ChainRule",
    "Descent",
    "DescriptionLength",
    "Estimator",
    "Exact",
    "Importance",
    "Langevin",
    "Laplace",
    "LogEvidence",
    "Prequential",
    "blocks_of",
    "description_length",
    "evidence",
    "switching",
]
