"""Evidence of a fit by every estimator, and the bits of its message: a fit in, nats out."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .annealing import Annealed
    from .closed_form import Exact
    from .codes import Prequential
    from .estimator import Estimator
    from .estimators import Bound, evidence
    from .importance_weights import Importance
    from .joint import numbers_of, refuse_improper
    from .laplace_method import Laplace
    from .message import description_length, refuse_points
    from .optimisers import Descent, Langevin

__all__ = [
    "Annealed",
    "Bound",
    "Descent",
    "Estimator",
    "Exact",
    "Importance",
    "Langevin",
    "Laplace",
    "Prequential",
]

__getattr__, __dir__ = lazy_names(__name__)
