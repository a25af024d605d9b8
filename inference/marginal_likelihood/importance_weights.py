"""The evidence by importance weights, with the posterior of the fit as the proposal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ...data import Between, PyroccamError
from ..diagnostics import good_khat, khat_of
from .estimator import DensityEstimator, LogEvidence
from .joint import Joint

FEWEST = 100  # draws whose tail tells whether the weights can be believed


@dataclass(frozen=True, kw_only=True)
class Importance(DensityEstimator):
    r"""The importance-weighted bound, with q of the fit as the proposal: of random weights, and
    perhaps structure, whose guide has a density.

    .. math:: E_{θ_1 \dots θ_K \sim q} \log \frac{1}{K} \sum_k \frac{p(y, θ_k)}{q(θ_k)}
        \le \log p(y)

    With K = 1 it is the evidence lower bound; it rises with K, to the evidence. The error is that
    of the bound, and says nothing of how far above it the evidence is. Weights with a heavy tail
    hide what is missing: their k̂ is in the details, and a doubt where it is too large.

    Arguments:
        draws: K.
        repeats: of the whole, whose mean is the value, and whose spread shows the error of that;
            with 100 draws in all of them, or more.

    References:
        Burda, Grosse, Salakhutdinov 2016, Importance weighted autoencoders, arXiv:1509.00519.
    """

    name = "importance"
    structures = True

    draws: Annotated[int, Between(2)] = 1000
    repeats: Annotated[int, Between(2)] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws * self.repeats < FEWEST:
            given = f"draws={self.draws} and repeats={self.repeats}"
            raise PyroccamError(given, f"{FEWEST} draws in all")

    def of_density(self, density: Joint) -> LogEvidence:
        for site in density.guide.latents():
            if (why := density.guide.factor_of(site).no_density) is not None:
                raise PyroccamError(f"at site {site!r} {why}", "a guide with a density")
        log_w = torch.stack([_log_weights(density, self.draws) for _ in range(self.repeats)])
        each = log_w.logsumexp(1) - torch.tensor(float(self.draws), dtype=torch.float64).log()
        khat, _, share = khat_of(log_w.flatten().cpu().numpy())
        return LogEvidence(
            value=float(each.mean()),
            error=float(each.std()) / self.repeats**0.5,
            doubt=doubtful_weights(khat, self.draws * self.repeats),
            details={"khat": khat, "share of draws": share, "bound": float(log_w.mean())},
        )


def _log_weights(density: Joint, draws: int) -> Tensor:
    """``log p(y, θ) - log q(θ)`` of draws from q, ``(K,)``."""
    drawn = density.guide.draw(draws)
    values = {s: v.double() if v.is_floating_point() else v for s, v in drawn.items()}
    log_q = torch.zeros((), dtype=torch.float64, device=density.device)
    for site, value in values.items():
        found = density.guide.posterior(site).log_prob(value).reshape(draws, -1).sum(1)
        log_q = log_q + density.model.counts(site, drawn) * found
    return density.log_likelihood_of(values) + density.log_prior_of(values) - log_q


def doubtful_weights(khat: float, draws: int) -> str | None:
    if khat <= good_khat(draws):
        return None
    return (
        f"The weights have a k-hat of {khat:.2f}, above {good_khat(draws):.2f}: a few of {draws:,} "
        "draws decide, and the error is larger than it looks."
    )
