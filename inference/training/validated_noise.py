r"""The noise of a regression, by rows that its network was not fitted to.

What a network of many weights leaves of its training targets is less than it leaves of new ones:
σ, learnt on the training rows, goes to nothing while the network learns them by heart, and each
prediction is then far surer than it is right. Where a checkpoint is judged, σ is therefore that of
the validation rows, for means that stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...guides.base import Guide
from ...models.base import Model
from ...models.likelihoods import Regression
from ..posterior.family import family
from ..posterior.predict import outputs_by_depth

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["LEAST_ROWS", "has_validated_noise", "noise_of_rows", "validate_noise"]

# Of validation rows. The density that a σ of n rows loses is about 1 / (2 n) nats for each target.
LEAST_ROWS = 10


def has_validated_noise(model: Model, data: Dataset) -> bool:
    """True if σ is that of the validation rows: weights that are numbers, a learnt σ for each
    target, and validation rows enough."""
    if model.random_weights or len(data.x_val) < LEAST_ROWS:
        return False
    likelihood = model.likelihood
    return type(likelihood) is Regression and likelihood.log_scale.requires_grad


@torch.no_grad()
def validate_noise(model: Model, guide: Guide, data: Dataset) -> None:
    """Set σ to that of the validation rows, in place; model in evaluation mode.

    Where q(d) is the exact posterior, which depends on σ, the two are made to agree.

    Arguments:
        model: see :func:`has_validated_noise`.
        guide: as it stands; it is not changed.
        data: of the fit.
    """
    likelihood: Any = model.likelihood
    x, y = data.split("val")
    outputs = outputs_by_depth(model, x)
    if not (guide.closed or guide.sums_out):
        scale = noise_of_rows(outputs, family(model, guide).weights(data), y)
    else:
        errors, scale = _squared_errors(model, *data.split("train")), likelihood.scale.double()
        for _ in range(10):
            q = (
                model.get_buffer("log_prior").double() - (errors / scale.square()).sum(-1) / 2
            ).softmax(0)
            before, scale = scale, noise_of_rows(outputs, q, y)
            if torch.allclose(scale, before, rtol=1e-3):
                break
    above = (scale - likelihood.floor).clamp_min(1e-8)
    likelihood.log_scale.copy_(above.log())


def noise_of_rows(outputs: Tensor, weights: Tensor, y: Tensor) -> Tensor:
    r"""σ of each target that the rows want of a mixture with given means, by EM.

    .. math:: σ_t² = \frac{1}{N - 2} \sum_{sn} r_{sn} (y_{nt} - μ_{snt})², \qquad
              r_{sn} \propto w_s \prod_t N(y_{nt}; μ_{snt}, σ_t²)

    By N - 2 and not N: of all multiples of the sum of squares, that one has the least expected loss
    in nats on a new row, where there is one component and its errors are normal.

    Arguments:
        outputs: means ``(S, N, T)``, N > 2.
        weights: ``(S,)``.
        y: ``(N, T)``.

    Returns:
        ``(T,)``, float64.
    """
    squared = (y.double() - outputs.double()).square()
    log_w = weights.double().log().clamp_min(-1e4)
    rows = y.shape[0] - 2
    # From above, where all components count: from a σ near zero each row has one of its own.
    variance = torch.einsum("s,snt->t", log_w.exp(), squared) / rows
    tiny = torch.finfo(torch.float64).tiny
    for _ in range(100):
        before = variance.clamp_min(tiny)
        log_p = -0.5 * (squared / before + before.log()).sum(-1)
        shares = (log_w[:, None] + log_p).softmax(0)
        variance = torch.einsum("sn,snt->t", shares, squared) / rows
        if torch.allclose(variance, before, rtol=1e-6, atol=0.0):
            break
    return variance.clamp_min(tiny).sqrt()


def _squared_errors(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Squared errors of every depth and target, summed over rows, ``(D + 1, T)``, float64."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for part, target in zip(x.split(1024), y.split(1024), strict=True):
        outputs = model.components(part)
        total = total + (target.double() - outputs.double()).square().sum(1)
    return total
