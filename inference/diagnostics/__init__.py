"""Checks of a variational posterior: a fit or several in, findings in words out."""

from typing import TYPE_CHECKING

from ...data.door import lazy_names

if TYPE_CHECKING:
    from .between_runs import agreement
    from .leave_one_out import compare, elpd, loo
    from .overall import diagnose
    from .pareto import khat
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
