"""Whether a variational posterior can be trusted, and for what."""

from .agreement import Agreement, RunsOf, agreement
from .calibration import Calibration
from .convergence import Convergence, convergence
from .finding import Finding, Verdict
from .khat import khat
from .khat_result import Khat, KhatBlock
from .leave_one_out import Comparison, Loo, compare, elpd, good_khat, loo
from .overall import diagnose
from .sensitivity import Sensitivity, prior_sensitivity
from .vsbc import outputs_at, vsbc

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
