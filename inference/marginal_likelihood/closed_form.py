"""The evidence in closed form: normal weights that are linear in the outputs, structures one by
one, depths summed out."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev

from ...data import PyroccamError
from ...models import seeded
from ..diagnostics import is_discrete
from ..elbo import summed_out
from ..posterior import random_network
from ..training import Fit
from .estimator import Estimator, LogEvidence
from .joint import Joint, joint

MOST_STRUCTURES = 4096
PLACES = 4  # and as many opposite ones, at which outputs have to be linear


class Conjugate:
    r"""A network whose outputs are linear in normal weights, with normal errors of known size.

    .. math:: y_n = c_n + J_n θ + σ ε_n, \qquad θ \sim N(m, \mathrm{diag}(s^2))

    in units in which errors and weights are standard: residuals :math:`r = (y - c - J m) / σ` and
    features :math:`Φ = J\, \mathrm{diag}(s) / σ`.

    Attributes:
        features: ``(N, T, n)``.
        residuals: ``(N, T)``.
        units: of a density in standard units, what it has more than one of the targets, in nats.
    """

    def __init__(self, density: Joint) -> None:
        noise = density.model.likelihood.normal_scale()
        if noise is None:
            raise _not_exact(f"its likelihood is {type(density.model.likelihood).__name__}")
        normal = density.normal_prior()
        if normal is None:
            raise _not_exact("the prior of its weights is not normal")
        mean, scale = normal
        noise = noise.detach().double()

        def outputs(theta: Tensor) -> Tensor:
            return density.outputs(theta, density.whole[0])

        about = outputs(mean)
        slope = jacrev(outputs)(mean).detach()
        # An analytic function that is linear at one random place is linear, with probability one.
        # Units that are cut off at zero may all be silent there: so at several, on both sides.
        steps = 3.0 * scale * torch.randn(PLACES, len(mean), dtype=mean.dtype, device=mean.device)
        for step in torch.cat([steps, -steps]):
            size = float((slope @ step).abs().max() + about.abs().max())
            line = about + slope @ step
            if not torch.allclose(outputs(mean + step), line, atol=1e-9 * (size + 1.0)):
                raise _not_exact("its outputs are not linear in its weights")
        self.features = slope * scale / noise[:, None]
        self.residuals = (density.whole[1].double() - about) / noise
        self.units = float(noise.log().sum()) * len(self.residuals)

    def log_evidence(self) -> float:
        r"""``log p(y)``, by the normal of all rows at once, in nats.

        .. math:: r \sim N(0, I + ΦΦ^T), \qquad |I + ΦΦ^T| = |I + Φ^TΦ|, \qquad
            (I + ΦΦ^T)^{-1} = I - Φ (I + Φ^TΦ)^{-1} Φ^T
        """
        phi, r = self.features.flatten(0, 1), self.residuals.flatten()
        precision = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device) + phi.T @ phi
        root = torch.linalg.cholesky(precision)
        white = torch.linalg.solve_triangular(root, (phi.T @ r)[:, None], upper=False)
        log_det = 2.0 * float(root.diagonal().log().sum())
        misfit = float(r.square().sum() - white.square().sum())
        return -0.5 * (misfit + log_det + len(r) * math.log(2 * math.pi)) - self.units


@dataclass(frozen=True, kw_only=True)
class Exact(Estimator):
    """The evidence itself, where there is a closed form of it.

    Of weights that are numbers: with the depth summed out. Of random weights: where outputs are
    linear in them, with normal priors and normal errors (:class:`Conjugate`); discrete structure
    is summed out, structure by structure, up to 4,096 of them.
    """

    name = "exact"

    def estimate(self, fit: Fit) -> LogEvidence:
        if random_network(fit.model) is None:
            found = summed_out(fit.model, fit.data.parts("train"))
            return LogEvidence(value=found.elbo, error=0.0, direction="exact", passes=1.0)
        values, passes = [], 0.0
        for log_prior, structure in _structures(fit):
            with joint(fit, self.name, structure) as density, seeded(0, fit.data.device):
                values.append(log_prior + Conjugate(density).log_evidence())
                passes += 2.0 + density.whole[1][0].numel()
        value = float(torch.tensor(values, dtype=torch.float64).logsumexp(0))
        details = {"structures": float(len(values))} if fit.model.structure else {}
        return LogEvidence(
            value=value, error=0.0, direction="exact", passes=passes, details=details
        )


def _structures(fit: Fit) -> list[tuple[float, dict[str, Tensor]]]:
    """Every structure that a model may have, and the logarithm of its prior probability."""
    priors = {site: prior() for site, prior in fit.model.structure.items()}
    if relaxed := [site for site, one in priors.items() if not is_discrete(one)]:
        raise _not_exact(f"the structure at {relaxed[0]!r} is relaxed, so that it has no sum")
    counts = [one.logits.shape[-1] for one in priors.values()]
    if math.prod(counts) > MOST_STRUCTURES:
        raise _not_exact(
            f"it has {math.prod(counts):,} structures, of which {MOST_STRUCTURES:,} could be summed"
        )
    found = []
    for values in itertools.product(*map(range, counts)):
        chosen = {
            site: torch.tensor(value, device=fit.data.device)
            for site, value in zip(priors, values, strict=True)
        }
        log_prior = sum(float(priors[s].log_prob(v).detach()) for s, v in chosen.items())
        found.append((log_prior, chosen))
    return found


def _not_exact(why: str) -> PyroccamError:
    return PyroccamError(f"no evidence in closed form: {why}")
