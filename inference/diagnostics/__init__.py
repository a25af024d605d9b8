"""Whether a variational posterior can be trusted, and for what."""

from .finding import Finding, Verdict
from .leave_one_out import Comparison, Loo, compare, elpd, good_khat, loo

__all__ = ["Comparison", "Finding", "Loo", "Verdict", "compare", "elpd", "good_khat", "loo"]
