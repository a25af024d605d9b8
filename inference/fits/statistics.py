"""Running statistics of batch normalisation for another posterior than the one of the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...guides.base import Guide
from ...models.base import Model
from ...models.contexts import seeded
from ...models.networks.normalisation import DepthBatchNorm
from ..elbo.estimator import bound

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["MOST_BATCHES", "renew_statistics"]

MOST_BATCHES = 200
"""Batches of which means and variances are averaged."""


@torch.no_grad()
def renew_statistics(
    model: Model, guide: Guide, data: Dataset, *, batch_size: int, seed: int
) -> None:
    """Put in place the means and variances that batches of the training rows have under a
    posterior, each batch counting the same; both are left in evaluation mode.

    Of weights that are averaged, or drawn from another posterior than in training, running
    statistics say nothing: ``torch.optim.swa_utils.update_bn`` does the same for the first.

    Arguments:
        model, guide: a pair; the buffers of the model are written.
        data: on its device.
        batch_size: as in training, where a batch of one row joins its neighbour.
        seed: of the order of the rows, and of the noise.

    References:
        Izmailov et al. 2018, Averaging weights leads to wider optima, arXiv:1803.05407.
    """
    kinds = (_BatchNorm, DepthBatchNorm)
    norms: list[Any] = [m for m in model.modules() if isinstance(m, kinds)]
    norms = [norm for norm in norms if norm.running_mean is not None]
    starts = [*range(0, data.N, batch_size)]
    if len(starts) > 1 and data.N - starts[-1] == 1:
        starts.pop()
    bounds = list(zip(starts, [*starts[1:], data.N], strict=True))[:MOST_BATCHES]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.running_mean.zero_()
        norm.running_var.fill_(1.0)
        norm.num_batches_tracked.zero_()
        norm.momentum = None  # the mean of all batches
    evaluate = bound(model.train(), guide.train())
    with seeded(seed, data.device), pyro.validation_enabled(False):
        for _, x, y in data.batches(seed, 0, bounds):
            evaluate.terms(x, y)
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
    model.eval()
    guide.eval()
