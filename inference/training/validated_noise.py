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
from ..posterior.family import family
from ..posterior.noise import LEAST_ROWS, learns_noise, noise_of_rows, set_noise
from ..posterior.predict import outputs_by_depth

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["has_validated_noise", "validate_noise"]


def has_validated_noise(model: Model, guide: Guide, data: Dataset) -> bool:
    """True if σ is that of the validation rows: weights that are numbers, a learnt σ for each
    target, and validation rows enough."""
    numbers = guide.is_point or not model.random_weights
    return numbers and len(data.x_val) >= LEAST_ROWS and learns_noise(model.likelihood)


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
    if not (guide.closed or guide.sums_out):
        set_noise(likelihood, noise_of_rows(*family(model, guide).validation(data), y))
        return
    outputs = outputs_by_depth(model, x)
    errors, scale = _squared_errors(model, *data.split("train")), likelihood.scale.double()
    for _ in range(10):
        q = (
            model.get_buffer("log_prior").double() - (errors / scale.square()).sum(-1) / 2
        ).softmax(0)
        before, scale = scale, noise_of_rows(outputs, q, y)
        if torch.allclose(scale, before, rtol=1e-3):
            break
    set_noise(likelihood, scale)


def _squared_errors(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Squared errors of every depth and target, summed over rows, ``(D + 1, T)``, float64."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for part, target in zip(x.split(1024), y.split(1024), strict=True):
        outputs = model.components(part)
        total = total + (target.double() - outputs.double()).square().sum(1)
    return total
