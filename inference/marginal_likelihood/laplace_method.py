"""The evidence by Laplace's method: a normal at the peak of the joint density."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from ...data import Between, PyroccamError, Whole
from ..diagnostics import khat_of
from .curvature import CURVATURES
from .estimator import DensityEstimator, LogEvidence
from .importance_weights import doubtful_weights
from .joint import Joint
from .normals import NotPositive, Precision

FLAT = 1e-6  # nats that a step to the peak of the normal would still gain, for each row


@dataclass(frozen=True, kw_only=True)
class Laplace(DensityEstimator):
    r"""Laplace's method at the peak nearest to the fit.

    .. math:: \log p(y) \approx \log p(y, \hat θ) + \tfrac12 g^T P^{-1} g + \tfrac n2 \log 2π
        - \tfrac12 \log |P|

    with the gradient g that is left where climbing stopped, so that a normal posterior is met
    exactly from anywhere. Positive scales are in the logarithm.

    The error is no standard error, for nothing here is random: draws from the normal
    :math:`N(\hat θ + P^{-1} g, P^{-1})` have importance weights, whose mean is the evidence over
    the value; the error is the logarithm of that mean, in absolute value, plus its standard error.
    Where their k̂ is too large for that, there is a doubt. It is of one peak: of a network with h
    exchangeable hidden units there are h! equal ones, and units whose sign can be turned with their
    weights double that; draws from one peak do not see the others.

    Arguments:
        curvature: ``full`` (of the linearised network), ``hessian``, ``kronecker`` or ``diagonal``,
            see :mod:`~pyroccam.inference.marginal_likelihood.curvature`.
        climb: steps of L-BFGS to the peak, at most; 0 stays at the posterior means.
        restarts: further climbs, from draws of the prior; of all peaks that of the largest value is
            taken. A network has peaks that are no images of each other, and a fit ends at one.
        updates: by MacKay's rule, of the scale of a layer under ``priors.Normal(learn="scale")``,
            and of its mean, too, under ``learn="layer"``, with a climb after each: to where the
            evidence is greatest, if outputs are linear in the weights. Elsewhere the rule leaves
            out how the curvature changes with the peak, and where it ends the evidence can be less
            than on the way. The fit keeps its own; scales that were found are among the
            ``details``.
        draws: from the normal, for the error.

    References:
        MacKay 1992, A practical Bayesian framework for backpropagation networks; Immer et al.
        2021, Scalable marginal likelihood estimation, arXiv:2104.04975.
    """

    name = "laplace"

    curvature: Literal["full", "hessian", "kronecker", "diagonal"] = "full"
    climb: Whole = 200
    restarts: Whole = 0
    updates: Whole = 0
    draws: Annotated[int, Between(100)] = 1000

    def of_density(self, density: Joint) -> LogEvidence:
        best, peaks = self._highest(density)
        scales: dict[str, float] = {}
        for _ in range(self.updates):
            scales = density.update_priors(best.mean, best.precision.variance)
            if not scales:
                raise PyroccamError(f"updates={self.updates}", "priors that learn a scale")
            best = self._normal(density, best.mean)
        standard = torch.randn(self.draws, density.size, dtype=torch.float64, device=density.device)
        drawn, log_q = best.precision.draw(standard)
        log_w = density(best.mean + drawn) - log_q
        shift = float(log_w.logsumexp(0)) - math.log(self.draws) - best.value
        khat, _, share = khat_of(log_w.cpu().numpy())
        spread = (log_w - log_w.max()).exp()
        error = float(spread.std() / spread.mean()) / math.sqrt(self.draws)
        doubt = _doubt(best.gain / density.rows, self.climb) or doubtful_weights(khat, self.draws)
        return LogEvidence(
            value=best.value,
            error=abs(shift) + error,
            direction="either",
            doubt=doubt,
            details={
                "log joint": best.log_joint,
                "gain": best.gain,
                "log det": best.precision.log_det,
                "by draws": best.value + shift,
                "error of draws": error,
                "khat": khat,
                "share of draws": share,
                "weights": float(density.size),
                "peaks": float(peaks),
                **{f"prior scale of {name}": scale for name, scale in scales.items()},
            },
        )

    def _highest(self, density: Joint) -> tuple[_Normal, int]:
        """The normal of the largest value, of those at all peaks; and how many these are."""
        begin = [density.centre()[None]]
        if self.restarts:
            begin.append(density.draw_prior(self.restarts))
        peaks = []
        for place, start in enumerate(torch.cat(begin)):
            try:
                peaks.append(self._normal(density, start))
            except NotPositive:
                if place == self.restarts and not peaks:
                    raise
        return max(peaks, key=lambda one: one.value), len(peaks)

    def _normal(self, density: Joint, start: Tensor) -> _Normal:
        theta = peak(density, start, self.climb)
        log_joint, slope = (part[0] for part in density.gradient(theta[None]))
        precision = CURVATURES[self.curvature](density, theta)
        step = precision.solve(slope)
        gain = 0.5 * float(slope @ step)
        volume = 0.5 * (density.size * math.log(2 * math.pi) - precision.log_det)
        value = float(log_joint) + gain + volume
        return _Normal(value, theta + step, precision, float(log_joint), gain)


@dataclass(frozen=True)
class _Normal:
    """A normal at a peak: the evidence by Laplace's method, its mean, and the nats by which that is
    above where climbing stopped."""

    value: float
    mean: Tensor
    precision: Precision
    log_joint: float
    gain: float


def _doubt(gain: float, climb: int) -> str | None:
    if gain <= FLAT:
        return None
    return (
        f"After {climb} steps a peak is not reached: one more would gain {gain:.1e} nats a row, "
        "expected at most 1e-06. Climb further, if the model is not linear."
    )


def peak(density: Joint, theta: Tensor, steps: int) -> Tensor:
    """The nearest θ ``(n,)`` of highest joint density, by at most so many steps of L-BFGS."""
    if not steps:
        return theta
    with torch.enable_grad():
        found = theta.detach().clone().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [found], max_iter=steps, history_size=50, tolerance_grad=1e-9,
            tolerance_change=0.0, line_search_fn="strong_wolfe",
        )  # fmt: skip

        def loss() -> Tensor:
            value, slope = density.gradient(found[None])
            found.grad = -slope[0]
            return -value[0]

        optimiser.step(loss)
    best = found.detach()
    better = bool(best.isfinite().all()) and float(density(best[None])) >= float(
        density(theta[None])
    )
    return best if better else theta
