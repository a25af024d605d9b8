"""Likelihoods of counts, whole numbers from zero on: by their mean alone, or more spread than
that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Self

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ...data import Between, Count, PyroccamError, checked
from .base import Likelihood, TargetSpec

_LEAST = 1e-3


class Poisson(Likelihood):
    r"""``Poisson(μ)``, with ``log μ`` the output of the network and the log of a usual rate.

    .. math:: \log μ_t(x) = f_t(x) + \log r_t

    Targets ``(B, T)`` are counts as they are. A network whose outputs are small, as they are before
    training, then predicts about the usual rate, however large that is.

    Arguments:
        targets: T.
        rate: r, ``(T,)``: of the mean of the training targets, if made from data; 1 if left out.
    """

    task = "counts"
    word = "poisson"
    scores = ("mae",)

    log_rate: Tensor

    @checked
    def __init__(self, targets: Count, rate: Tensor | Sequence[float] | None = None) -> None:
        super().__init__()
        usual = torch.zeros(targets) if rate is None else torch.as_tensor(rate).float().log()
        if usual.shape != (targets,) or not (rate is None or bool(usual.isfinite().all())):
            found = f"{type(self).__name__}({targets}): rate={usual.exp().tolist()}"
            raise PyroccamError(found, f"{targets} positive, finite number(s)")
        self.outputs = targets
        self.register_buffer("log_rate", usual)

    @classmethod
    def of(cls, data: TargetSpec) -> Self:
        known = getattr(data, "marginal", None)
        if known is None:
            return cls(data.outputs)
        least = 0.5 / known.rows  # of a target of which no event was seen
        return cls(data.outputs, known.mean.cpu().clamp_min(least))

    def arguments(self) -> dict[str, int]:
        return {"targets": self.outputs}

    def log_mean(self, outputs: Tensor) -> Tensor:
        """``log μ``, ``(*batch, T)``."""
        self.refuse_other(outputs)
        return outputs + self.log_rate

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        return dist.Poisson(self.log_mean(outputs).exp()).to_event(1)


class NegativeBinomial(Poisson):
    r"""Counts that vary more than those of :class:`Poisson`, by a learnt dispersion α for each
    target.

    .. math:: E[y] = μ, \qquad V[y] = μ + α μ^2

    α = 1e-3 + exp(log_dispersion): the least is a Poisson distribution but for a thousandth, and
    keeps the gamma functions of 1 / α within single precision.

    Arguments:
        targets, rate: as for :class:`Poisson`.
        dispersion: α at the start.

    References:
        Hilbe 2011, Negative binomial regression, for this parameterisation (NB2).
    """

    word = "negative-binomial"
    noise = ("log_dispersion",)

    @checked
    def __init__(
        self,
        targets: Count,
        rate: Tensor | Sequence[float] | None = None,
        dispersion: Annotated[float, Between(_LEAST, ends="()")] = 0.5,
    ) -> None:
        super().__init__(targets, rate)
        self.log_dispersion = nn.Parameter(torch.full((targets,), math.log(dispersion - _LEAST)))

    @property
    def dispersion(self) -> Tensor:
        """α, ``(T,)``."""
        return _LEAST + self.log_dispersion.exp()

    @torch.no_grad()
    def begin_noise(self, error: Tensor) -> None:
        self.log_dispersion.fill_(math.log(0.5))

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        dispersion = self.dispersion
        # Of r failures with these logits the mean is r exp(logits), which is μ for r = 1 / α.
        logits = self.log_mean(outputs) + dispersion.log()
        return dist.NegativeBinomial(1.0 / dispersion, logits=logits).to_event(1)
