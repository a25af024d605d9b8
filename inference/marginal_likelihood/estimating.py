"""The one call: the evidence of a fit by the estimator that is asked for."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

from ...data.errors import PyroccamError
from ...models.checks import unknown_name
from ..elbo.full_data import evidence as lower_bound
from ..fits.result import Fit
from ..posterior.posteriors import refuse_undecided
from .annealing import annealed
from .closed_form import exact
from .codes import prequential
from .importance_weights import importance
from .joint import improper_site
from .laplace_method import laplace
from .message import refuse_points
from .optimisers import descent, langevin
from .result import Direction, LogEvidence

__all__ = ["ESTIMATORS", "bound", "evidence"]


def bound(fit: Fit, *, passes: int = 20, seed: int = 0) -> LogEvidence:
    """The evidence lower bound over all rows, see :func:`pyroccam.inference.elbo.evidence`.

    Arguments:
        fit: of a guide with a density, or over depth.
        passes: through all rows, each with fresh noise.
        seed: of the noise.

    Raises:
        PyroccamError: for fewer than two passes, or a guide of points, of which it is no bound.
    """
    refuse_points(fit, 'by="bound"', 'Use by="laplace", or fit guides.MeanField.')
    fit.data.refuse_weights("An evidence")
    begun = time.perf_counter()
    found = lower_bound(fit.model, fit.guide, fit.data, passes=passes, seed=seed)
    took = time.perf_counter() - begun
    direction: Direction = "exact" if getattr(fit.guide, "sums_out", False) else "below"
    details = {"log likelihood": found.log_likelihood, "kl": found.kl}
    return LogEvidence(
        "bound",
        found.elbo,
        found.error,
        direction,
        found.rows,
        float(passes),
        took,
        _without_evidence(fit),
        details,
    )


def _without_evidence(fit: Fit) -> str | None:
    if (site := improper_site(fit.model, given=True)) is None:
        return None
    return (
        f"The prior of site {site!r} has no finite integral: the value is known up to a constant, "
        "and fits of this model alone can be compared by it."
    )


ESTIMATORS: dict[str, Callable[..., LogEvidence]] = {
    "bound": bound,
    "importance": importance,
    "laplace": laplace,
    "annealed": annealed,
    "descent": descent,
    "langevin": langevin,
    "prequential": prequential,
    "exact": exact,
}
"""By the word that asks for them."""


def evidence(fit: Fit, *, by: str = "bound", **options: Any) -> LogEvidence:
    r"""The evidence of a fit, ``log p(y)`` of the training rows, with its error and its cost.

    Everything that the model holds as a number (the noise of a regression, the parameters of a
    prior, weights without one) is given: two models are compared fairly where these are chosen the
    same way.

    ================ ============================================= ============= =================
    ``by``           what it is                                    lies          for
    ================ ============================================= ============= =================
    ``bound``        the lower bound of the guide                  below         guides with a width
    ``importance``   its draws, weighed by the joint density       below         up to ~100 weights
    ``laplace``      a normal at the peak                          either side   one peak
    ``annealed``     particles from the prior to the posterior     below         small networks
    ``descent``      the law of gradient descent, stopped          below         a rough bound
    ``langevin``     the law of Langevin dynamics                  below         a rough bound
    ``prequential``  a code: each block by the blocks before       a code        any model
    ``exact``        a closed form                                 at the value  where there is one
    ================ ============================================= ============= =================

    Arguments:
        fit: of :func:`~pyroccam.inference.fit`.
        by: the estimator.
        options: of the estimator: see
            :func:`~pyroccam.inference.marginal_likelihood.bound`,
            :func:`~pyroccam.inference.marginal_likelihood.importance`,
            :func:`~pyroccam.inference.marginal_likelihood.laplace`,
            :func:`~pyroccam.inference.marginal_likelihood.annealed`,
            :func:`~pyroccam.inference.marginal_likelihood.descent`,
            :func:`~pyroccam.inference.marginal_likelihood.langevin`,
            :func:`~pyroccam.inference.marginal_likelihood.prequential` and
            :func:`~pyroccam.inference.marginal_likelihood.exact`.

    Raises:
        PyroccamError: for an unknown estimator, or as the estimator says.
        TypeError: for an option that it has not, or a model that it is not for.

    Example:
        >>> from pyroccam import data, guides, inference, models
        >>> rows = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
        >>> fit = inference.fit(model, guides.MeanField(model), rows, epochs=1, progress=False)
        >>> evidence(fit, by="bound", passes=2).direction
        'below'
    """
    if by not in ESTIMATORS:
        raise PyroccamError(unknown_name("estimator", by, ESTIMATORS))
    refuse_undecided(fit)
    estimate = ESTIMATORS[by]
    takes = inspect.signature(estimate).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        for name in options:
            if name not in takes:
                raise PyroccamError(unknown_name(f'option of by="{by}"', name, [*takes][1:]))
    return estimate(fit, **options)
