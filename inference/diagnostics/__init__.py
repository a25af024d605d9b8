"""Checks of a variational posterior: a fit or several in, findings in words out."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .between_runs import agreement
    from .comparison import side_by_side, swap
    from .finding import Finding, Verdict
    from .leave_one_out import compare, elpd, good_khat, loo
    from .log_joint import is_discrete, is_improper
    from .overall import diagnose
    from .pareto import khat, khat_of
    from .sensitivity import prior_sensitivity
    from .simulation import outputs_at, vsbc
    from .trend import convergence

__all__ = [
    "agreement",
    "compare",
    "convergence",
    "diagnose",
    "elpd",
    "khat",
    "loo",
    "outputs_at",
    "prior_sensitivity",
    "vsbc",
]

__getattr__, __dir__ = lazy_names(__name__)
