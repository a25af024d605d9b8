"""The evidence by importance weights, with the posterior of the fit as the proposal."""

from __future__ import annotations

import time

import pyro
import torch
from torch import Tensor

from ...data.errors import PyroccamError
from ...guides.base import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ...models.contexts import evaluating, seeded
from ..diagnostics.leave_one_out import good_khat
from ..diagnostics.pareto import khat_of
from ..fits.result import Fit
from ..posterior.draws import draw_sites
from ..posterior.posteriors import require
from .joint import Joint, refuse_improper
from .result import LogEvidence

__all__ = ["doubtful_weights", "importance"]


def importance(fit: Fit, *, draws: int = 1000, repeats: int = 10, seed: int = 0) -> LogEvidence:
    r"""The importance-weighted bound, with q of the fit as the proposal.

    .. math:: E_{θ_1 \dots θ_K \sim q} \log \frac{1}{K} \sum_k \frac{p(y, θ_k)}{q(θ_k)}
        \le \log p(y)

    With K = 1 it is the evidence lower bound; it rises with K, to the evidence. The error is that
    of the bound, and says nothing of how far above it the evidence is. Weights with a heavy tail
    hide what is missing: their k̂ is in the details, and a doubt where it is too large.

    Arguments:
        fit: of random weights, and perhaps structure, whose guide has a density.
        draws: K.
        repeats: of the whole, whose mean is the value, and whose spread shows the error of that.
        seed: of the draws; the state of the generator is left as it was.

    Raises:
        PyroccamError: for fewer than 2 draws or repeats, a guide of points, or an improper prior.
        TypeError: for weights that are numbers.

    References:
        Burda, Grosse, Salakhutdinov 2016, Importance weighted autoencoders, arXiv:1509.00519.
    """
    if draws < 2 or repeats < 2 or draws * repeats < 100:
        raise PyroccamError(
            f"importance: got draws={draws} and repeats={repeats}, expected 2 or more of each, and "
            "100 in all.\nDraw more: their tail tells whether the weights can be believed."
        )
    begun = time.perf_counter()
    model, guide = require(fit, BayesianNetwork, 'inference.evidence(by="importance")')
    where = fit.data.device
    quiet = pyro.validation_enabled(False)
    with evaluating(model), evaluating(guide), seeded(seed, where), quiet:
        _refuse_points(guide)
        refuse_improper(model)
        density = Joint(model, guide, fit.data)
        log_w = torch.stack([_log_weights(density, draws) for _ in range(repeats)])
    each = log_w.logsumexp(1) - torch.tensor(float(draws), dtype=torch.float64).log()
    khat, _, share = khat_of(log_w.flatten().cpu().numpy())
    return LogEvidence(
        "importance",
        float(each.mean()),
        float(each.std()) / repeats**0.5,
        "below",
        density.rows,
        density.passes,
        time.perf_counter() - begun,
        doubtful_weights(khat, draws * repeats),
        {"khat": khat, "share of draws": share, "bound": float(log_w.mean())},
    )


def _log_weights(density: Joint, draws: int) -> Tensor:
    """``log p(y, θ) - log q(θ)`` of draws from q, ``(K,)``."""
    drawn = draw_sites(density.model, density.guide, draws)
    values = {s: v.double() if v.is_floating_point() else v for s, v in drawn.items()}
    log_q = torch.zeros((), dtype=torch.float64, device=density.device)
    for site, value in values.items():
        found = density.guide.posterior(site).log_prob(value).reshape(draws, -1).sum(1)
        log_q = log_q + density.model.counts(site, drawn) * found
    return density.log_likelihood_of(values) + density.log_prior_of(values) - log_q


def _refuse_points(guide: NetworkGuide) -> None:
    for site in guide.latents():
        if (why := guide.factor_of(site).no_density) is not None:
            raise PyroccamError(
                f'by="importance" weighs draws by the density of q, but at site {site!r} {why}.\n'
                'Fit guides.MeanField, or use by="laplace" or "annealed".'
            )


def doubtful_weights(khat: float, draws: int) -> str | None:
    """A doubt about importance weights with this tail, a sentence."""
    if khat <= good_khat(draws):
        return None
    return (
        f"The weights have a k-hat of {khat:.2f}, above {good_khat(draws):.2f}: a few of {draws:,} "
        "draws decide, and the error is larger than it looks."
    )
