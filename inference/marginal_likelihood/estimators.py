"""The one call: the evidence of a fit by the estimator that is asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated

from ...data import Between, PyroccamError, Seed, checked, nearest
from ...guides import sums_out
from ..elbo import evidence as lower_bound
from ..posterior import refuse_undecided
from ..training import Fit
from .annealing import Annealed
from .closed_form import Exact
from .codes import Prequential
from .estimator import Estimator, LogEvidence
from .importance_weights import Importance
from .joint import improper_site
from .laplace_method import Laplace
from .message import refuse_points
from .optimisers import Descent, Langevin


@dataclass(frozen=True, kw_only=True)
class Bound(Estimator):
    """The evidence lower bound over all rows, see :func:`pyroccam.inference.elbo.evidence`: of a
    guide with a density, or over depth.

    Arguments:
        passes: through all rows, each with fresh noise.
        seed: of the noise.
    """

    name = "bound"

    passes: Annotated[int, Between(2)] = 20
    seed: Seed = 0

    def estimate(self, fit: Fit) -> LogEvidence:
        refuse_points(fit, "a bound")
        found = lower_bound(fit.model, fit.guide, fit.data, passes=self.passes, seed=self.seed)
        site = improper_site(fit.model, given=True)
        return LogEvidence(
            value=found.elbo,
            error=found.error,
            direction="exact" if sums_out(fit.guide) else "below",
            passes=float(self.passes),
            doubt=None
            if site is None
            else f"The prior of site {site!r} has no finite integral: the value is known up to a "
            "constant, and fits of this model alone can be compared by it.",
            details={"log likelihood": found.log_likelihood, "kl": found.kl},
        )


ESTIMATORS: dict[str, type[Estimator]] = {
    one.name: one
    for one in (
        Bound, Importance, Laplace, Annealed, Descent, Langevin, Prequential, Exact,
    )
}  # fmt: skip
"""By the word that asks for them."""


@checked
def evidence(fit: Fit, *, by: Estimator | str = "bound") -> LogEvidence:
    r"""The evidence of a fit, ``log p(y)`` of the training rows, with its error and its cost.

    Everything that the model holds as a number (the noise of a regression, the parameters of a
    prior, weights without one) is given: two models are compared fairly where these are chosen the
    same way.

    ================ =================== =================================== ========== ============
    ``by``           with options        what it is                          lies       for
    ================ =================== =================================== ========== ============
    ``bound``        ``Bound()``         the lower bound of the guide        below      guides with
                                                                                        a width
    ``importance``   ``Importance()``    its draws, weighed by the joint     below      up to ~100
                                         density                                        weights
    ``laplace``      ``Laplace()``       a normal at the peak                either     one peak
                                                                             side
    ``annealed``     ``Annealed()``      particles from the prior to the     below      small
                                         posterior                                      networks
    ``descent``      ``Descent()``       the law of gradient descent,        below      a rough
                                         stopped                                        bound
    ``langevin``     ``Langevin()``      the law of Langevin dynamics        below      a rough
                                                                                        bound
    ``prequential``  ``Prequential()``   a code: each block by the blocks    a code     any model
                                         before
    ``exact``        ``Exact()``         a closed form                       at the     where there
                                                                             value      is one
    ================ =================== =================================== ========== ============

    Arguments:
        fit: of :func:`~pyroccam.inference.fit`.
        by: the estimator, of :mod:`pyroccam.inference.marginal_likelihood`, or the name of one with
            its defaults.

    Raises:
        PyroccamError: for an unknown estimator, one that is not for this fit, or rows with weights.

    Example:
        >>> from pyroccam import data, guides, inference, models
        >>> rows = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
        >>> fit = inference.fit(model, guides.MeanField(model), rows, epochs=1, progress=False)
        >>> evidence(fit, by=Bound(passes=2)).direction
        'below'
    """
    if not isinstance(by, Estimator):
        if by not in [*ESTIMATORS]:
            expected = f"an estimator, or the name of one: {', '.join(ESTIMATORS)}"
            raise PyroccamError(f"by={by!r}", expected, nearest(str(by), ESTIMATORS))
        by = ESTIMATORS[by]()
    refuse_undecided(fit)
    fit.data.refuse_weights("An evidence")
    begun = time.perf_counter()
    found = by.estimate(fit)
    return replace(found, by=by.name, rows=fit.data.N, seconds=time.perf_counter() - begun)
