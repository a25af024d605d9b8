"""The length of the message that a fit is, in bits, part by part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ...data import Count, PyroccamError, Seed, checked
from ...guides import sums_out
from ..elbo import evidence as lower_bound
from ..posterior import exact_depth_posterior, refuse_undecided, sum_by_depth
from ..training import Fit
from .joint import numbers_of, refuse_improper


@dataclass(frozen=True)
class DescriptionLength:
    """Bits that send the targets of the training rows to who has the inputs and the model.

    Attributes:
        structure: of the depth, or of the primitives of a graph; 0 where it is known.
        weights: of the weights and their scales, bits back taken; ``None`` where they are numbers,
            which have no code here.
        targets: given both. Of a regression ``-log2`` of a density of standardised targets: as many
            bits fewer as the targets are coarser than 1, and negative where they are not.
        error: standard error of the sum.
        rows: N.
        numbers: that were learnt and are not counted: the noise, parameters of a prior, weights
            without one.
        uniform: bits of the targets if classes were equally likely; ``None`` where there are none.
        by_site: bits of each latent.
    """

    structure: float
    weights: float | None
    targets: float
    error: float
    rows: int
    numbers: int
    uniform: float | None
    by_site: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def total(self) -> float | None:
        """The whole message; ``None`` where the weights have no code."""
        return None if self.weights is None else self.structure + self.weights + self.targets

    @property
    def per_row(self) -> float | None:
        """Bits for each row."""
        return None if self.total is None else self.total / self.rows

    def to_json(self) -> dict[str, float | int | None]:
        """All but the latents one by one."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "by_site"}
        return {**own, "total": self.total, "per_row": self.per_row}


@checked
def description_length(fit: Fit, *, passes: Count = 20, seed: Seed = 0) -> DescriptionLength:
    r"""The description length of a fit by its bound, in bits, part by part.

    .. math:: L = \frac{1}{\ln 2} \left( KL(q(Γ) \| p(Γ)) + E\, KL(q(w) \| p(w))
        - E_q \log p(y | w, Γ) \right)

    The first two are what structure and weights cost by bits-back coding: a draw from q is sent by
    the prior, and the bits that chose the draw are got back. No code compresses targets that are
    drawn at random: of uniform classes it is at least ``uniform``, but for luck.

    Arguments:
        fit: of a guide with a density, or over depth.
        passes: through all rows, each with fresh noise.
        seed: of the noise.

    Raises:
        PyroccamError: for a guide of points, which would need infinitely many digits, an improper
            prior, which is no code, or rows with weights.

    References:
        Hinton, van Camp 1993, Keeping neural networks simple by minimizing the description length
        of the weights; Graves 2011, Practical variational inference for neural networks.
    """
    refuse_undecided(fit)
    fit.data.refuse_weights("A description length")
    refuse_points(fit, "a description length")
    refuse_improper(fit.model, given=True)
    model, classes, error = fit.model, fit.data.classes, 0.0
    weights: float | None = None
    if sums_out(fit.guide):  # whose parts sum to minus the log evidence
        q = exact_depth_posterior(model, fit.data)
        by_depth = sum_by_depth(model, fit.data)
        prior = model.get_buffer("log_prior").double()
        kept = q > 0
        structure = float((q * (q.log() - prior))[kept].sum()) / math.log(2.0)
        nats, bits = float((q * by_depth)[kept].sum()), {"depth": structure}
    else:
        found = lower_bound(model, fit.guide, fit.data, passes=passes, seed=seed)
        nats, error = found.log_likelihood, found.error / math.log(2.0)
        bits = {site: kl / math.log(2.0) for site, kl in found.kl_by_site.items()}
        shape = {*model.structure} if model.random_weights else {*bits}
        structure = sum(value for site, value in bits.items() if site in shape)
        weights = found.kl / math.log(2.0) - structure if model.random_weights else None
    own = (layer.latents()[name].prior for layer, name in model.sites.values())
    learnt = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return DescriptionLength(
        structure=structure,
        weights=weights,
        targets=-nats / math.log(2.0),
        error=error,
        rows=fit.data.N,
        numbers=learnt + sum(map(numbers_of, own)),
        uniform=None if classes is None else fit.data.N * math.log2(classes),
        by_site=bits,
    )


def refuse_points(fit: Fit, what: str) -> None:
    if not fit.model.random_weights:
        return
    kind = type(fit.guide).__name__
    if fit.guide.samples is not None:
        raise PyroccamError(f"guides.{kind}, without a density", f"guides.MeanField, for {what}")
    for site in fit.guide.latents():
        if fit.guide.factor_of(site).is_point:
            raise PyroccamError(
                f"guides.{kind}, in which q of site {site!r} is a point",
                f"a posterior with a width, for {what}",
            )
