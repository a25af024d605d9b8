"""The spread of weights that are points: what the data know of each."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...models import evaluating, seeded
from ..posterior import Layer, layer_moments, mean_network

if TYPE_CHECKING:
    from ..training import Fit

ROWS = 1024
"""Rows by which the information is estimated, at most."""

BATCH = 32
"""Rows of a pass."""

_LEAST = 1e-30  # of the information, which single precision can divide by


def spread_moments(fit: Fit) -> dict[str, Layer]:
    r"""Means and variances of all weights, by layer; those of points by Laplace's method, of the
    data alone:

    .. math:: V[w] = \frac{1}{F_w}, \qquad
        F_w = \sum_n E_{y \sim p(y | x_n, w)} \left(\frac{\partial \log p(y | x_n, w)}{\partial
        w}\right)^2,

    the diagonal of Fisher's information, in which a weight that goes costs :math:`w^2 F_w / 2` nats
    of all rows. The prior is left out: beside a network that has its rows right the data would not
    be heard.

    It is estimated by the squared slopes of batches whose targets are drawn from what the network
    predicts. Slopes of different rows are independent then, and have a mean of zero, so that the
    square of their sum has the sum of their squares as its mean, however many rows are in a batch.
    No labels are looked at. Draws are those of the fit's seed. Rows count by their weights.

    References:
        Amari 1998, Natural gradient works efficiently in learning; Le Cun, Denker, Solla 1990,
        Optimal brain damage; Kunstner, Balles, Hennig 2019, arXiv:1905.12558, for why targets are
        drawn.
    """
    layers = layer_moments(fit.model, fit.guide)
    if not fit.guide.traits.point:
        return layers
    # Draws of a device are its own: on the CPU what a run has cut is found again anywhere.
    like = copy.deepcopy(fit.model.likelihood).cpu()
    net = copy.deepcopy(mean_network(fit.model, fit.guide, layers)).cpu()
    weights = {name: net.get_parameter(f"{name}.weight".lstrip(".")) for name in layers}
    total = {name: torch.zeros_like(one) for name, one in weights.items()}
    few = fit.data.first(ROWS)
    x = few.x_train.cpu()
    counts = torch.ones(len(x)) if few.weights is None else few.weights.cpu()
    with evaluating(net), seeded(fit.settings.seed, x.device), torch.enable_grad():
        for one in weights.values():
            one.requires_grad_(True)
        for part, count in zip(x.split(BATCH), counts.split(BATCH), strict=True):
            said = like(net(part))
            drawn: Tensor = said.sample().detach()
            value = (count.sqrt() * said.log_prob(drawn)).sum()
            slopes = torch.autograd.grad(  # a layer may be there that nothing reads
                value, [*weights.values()], materialize_grads=True
            )
            for name, slope in zip(weights, slopes, strict=True):
                total[name] += slope.square()
    share = len(x) / fit.data.N
    found = {}
    for name, layer in layers.items():
        variance = share / total[name].to(layer.variance).clamp_min(_LEAST)
        found[name] = layer._replace(variance=fit.model.layers[name].affine.held(variance, 0.0))
    return found
