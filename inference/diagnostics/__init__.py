"""Checks of a variational posterior: a fit or several in, findings in words out."""

from .between_runs import Agreement, RunsOf, agreement
from .calibration import Calibration
from .finding import Finding, Verdict
from .leave_one_out import Comparison, Loo, compare, elpd, good_khat, loo
from .overall import diagnose
from .pareto import khat
from .pareto_result import Khat, KhatBlock
from .sensitivity import Sensitivity, prior_sensitivity
from .simulation import outputs_at, vsbc
from .trend import Convergence, convergence

__all__ = [
    "Agreement",
    "Calibration",
    "Comparison",
    "Convergence",
    "Finding",
    "Khat",
    "KhatBlock",
    "Loo",
    "RunsOf",
    "Sensitivity",
    "Verdict",
    "agreement",
    "compare",
    "convergence",
    "diagnose",
    "elpd",
    "good_khat",
    "khat",
    "loo",
    "outputs_at",
    "prior_sensitivity",
    "vsbc",
]
