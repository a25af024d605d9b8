"""Whether a variational posterior can be trusted, and for what."""

from .finding import Finding, Verdict
from .leave_one_out import Comparison, Loo, compare, elpd, good_khat, loo
from .overall import diagnose
from .sensitivity import Sensitivity, prior_sensitivity

__all__ = [
    "Comparison",
    "Finding",
    "Loo",
    "Sensitivity",
    "Verdict",
    "compare",
    "diagnose",
    "elpd",
    "good_khat",
    "loo",
    "prior_sensitivity",
]
