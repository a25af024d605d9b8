"""Running statistics of batch normalisation for another posterior than the one of the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...guides import Guide
from ...models import Model, seeded
from ...models.networks import DepthBatchNorm
from ..elbo import bound
from .settings import batch_bounds

if TYPE_CHECKING:
    from ...data import Dataset

MOST_BATCHES = 200
"""Batches of which means and variances are averaged."""


def keeps_statistics(module: nn.Module) -> bool:
    """True if a batch normalisation in a module has running statistics."""
    return bool(_norms(module))


def _norms(module: nn.Module) -> list[Any]:
    kinds = (_BatchNorm, DepthBatchNorm)
    found: list[Any] = [part for part in module.modules() if isinstance(part, kinds)]
    return [norm for norm in found if norm.running_mean is not None]


@torch.no_grad()
def renew_statistics(
    model: Model, guide: Guide, data: Dataset, *, batch_size: int, seed: int
) -> None:
    """Put in place the means and variances that batches of the training rows have under a
    posterior, each batch counting the same; both are left in evaluation mode. Statistics that
    training leaves as they are, of frozen normalisations, stay.

    Of weights that are averaged, or drawn from another posterior than in training, running
    statistics say nothing: ``torch.optim.swa_utils.update_bn`` does the same for the first.

    References:
        Izmailov et al. 2018, Averaging weights leads to wider optima, arXiv:1803.05407.
    """
    bounds = batch_bounds(data.N, batch_size)[:MOST_BATCHES]
    evaluate = bound(model.train(), guide.train())
    norms = [norm for norm in _norms(model) if norm.training and norm.momentum != 0.0]
    before = [{name: t.clone() for name, t in norm.named_buffers()} for norm in norms]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.running_mean.zero_()
        norm.running_var.fill_(1.0)
        norm.num_batches_tracked.zero_()
        norm.momentum = None  # the mean of all batches
    with seeded(seed, data.device), pyro.validation_enabled(False):
        for _, x, y in data.batches(seed, 0, bounds):
            evaluate.terms(x, y)
    for norm, kept, momentum in zip(norms, before, momenta, strict=True):
        norm.momentum = momentum
        if not norm.num_batches_tracked:  # it was not called
            for name, value in kept.items():
                getattr(norm, name).copy_(value)
    model.eval()
    guide.eval()
