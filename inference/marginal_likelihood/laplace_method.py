"""The evidence by Laplace's method: a normal at the peak of the joint density."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ...data.errors import PyroccamError
from ...models.checks import one_of
from ...models.contexts import seeded
from ..diagnostics.pareto import khat_of
from ..fits.result import Fit
from .curvature import CURVATURES
from .importance_weights import doubtful_weights
from .joint import Joint, joint, refuse_improper
from .normals import NotPositive, Precision
from .result import LogEvidence

__all__ = ["laplace", "peak"]

FLAT = 1e-6  # nats that a step to the peak of the normal would still gain, for each row


def laplace(
    fit: Fit,
    *,
    curvature: str = "full",
    climb: int = 200,
    restarts: int = 0,
    updates: int = 0,
    draws: int = 1000,
    seed: int = 0,
) -> LogEvidence:
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
        fit: of random weights; climbing begins at the posterior means.
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
        seed: of the draws.

    Raises:
        PyroccamError: for an unknown curvature, one that is not positive, too large a network, or
            an improper prior.
        TypeError: for weights that are numbers.

    References:
        MacKay 1992, A practical Bayesian framework for backpropagation networks; Immer et al.
        2021, Scalable marginal likelihood estimation, arXiv:2104.04975.
    """
    one_of("curvature", curvature, tuple(CURVATURES))
    if min(climb, restarts, updates) < 0 or draws < 100:
        raise PyroccamError(
            f"laplace: got climb={climb}, restarts={restarts}, updates={updates} and draws={draws},"
            " expected 0 or more of the first three and 100 draws or more.\n"
            "Fewer draws would not show how wrong the normal is."
        )
    begun = time.perf_counter()
    with joint(fit, "laplace") as density, seeded(seed, fit.data.device):
        refuse_improper(density.model)
        begin = [density.centre()[None]]
        if restarts:
            begin.append(density.draw_prior(restarts))
        peaks = []
        for place, start in enumerate(torch.cat(begin)):
            try:
                peaks.append(_normal_at(density, peak(density, start, climb), curvature))
            except NotPositive:
                if place == restarts and not peaks:
                    raise
        best = max(peaks, key=lambda one: one.value)
        scales: dict[str, float] = {}
        for _ in range(updates):
            scales = density.update_priors(best.mean, best.precision.variance)
            if not scales:
                raise PyroccamError(
                    f"laplace: got updates={updates}, expected priors that learn a scale.\n"
                    'Use priors.Normal(learn="scale") or Normal(learn="layer"), or leave it out.'
                )
            best = _normal_at(density, peak(density, best.mean, climb), curvature)
        standard = torch.randn(draws, density.size, dtype=torch.float64, device=density.device)
        drawn, log_q = best.precision.draw(standard)
        log_w = density(best.mean + drawn) - log_q
    found, gain = best.value, best.gain
    shift = float(log_w.logsumexp(0)) - math.log(draws) - found
    khat, _, share = khat_of(log_w.cpu().numpy())
    spread = (log_w - log_w.max()).exp()
    error = float(spread.std() / spread.mean()) / math.sqrt(draws)
    return LogEvidence(
        "laplace",
        found,
        abs(shift) + error,
        "either",
        density.rows,
        density.passes,
        time.perf_counter() - begun,
        _doubt(gain / density.rows, climb) or doubtful_weights(khat, draws),
        {
            "log joint": best.log_joint,
            "gain": gain,
            "log det": best.precision.log_det,
            "by draws": found + shift,
            "error of draws": error,
            "khat": khat,
            "share of draws": share,
            "weights": float(density.size),
            "peaks": float(len(peaks)),
            **{f"prior scale of {name}": scale for name, scale in scales.items()},
        },
    )


@dataclass(frozen=True)
class _Normal:
    """A normal at a peak.

    Attributes:
        value: of the evidence, by Laplace's method.
        mean: of the normal, ``(n,)``.
        gain: nats by which its mean is above where climbing stopped.
    """

    value: float
    mean: Tensor
    precision: Precision
    log_joint: float
    gain: float


def _normal_at(density: Joint, theta: Tensor, curvature: str) -> _Normal:
    log_joint, slope = (part[0] for part in density.gradient(theta[None]))
    precision = CURVATURES[curvature](density, theta)
    step = precision.solve(slope)
    gain = 0.5 * float(slope @ step)
    volume = 0.5 * (density.size * math.log(2 * math.pi) - precision.log_det)
    value = float(log_joint) + gain + volume
    return _Normal(value, theta + step, precision, float(log_joint), gain)


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
