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
    No labels are looked at. Draws are those of the fit's seed.

    References:
        Amari 1998, Natural gradient works efficiently in learning; Le Cun, Denker, Solla 1990,
        Optimal brain damage; Kunstner, Balles, Hennig 2019, arXiv:1905.12558, for why targets are
        drawn.
    """
    layers = layer_moments(fit.model, fit.guide)
    if not fit.guide.traits.point:
        return layers
    device, like = fit.data.device, fit.model.likelihood
    net = copy.deepcopy(mean_network(fit.model, fit.guide, layers)).to(device)
    weights = {name: net.get_parameter(f"{name}.weight".lstrip(".")) for name in layers}
    total = {name: torch.zeros_like(one) for name, one in weights.items()}
    x = fit.data.head(min(ROWS, fit.data.N))[0]
    with evaluating(net), seeded(fit.settings.seed, device), torch.enable_grad():
        for one in weights.values():
            one.requires_grad_(True)
        for part in x.split(BATCH):
            said = like(net(part.to(device)))
            drawn: Tensor = said.sample().detach()
            slopes = torch.autograd.grad(  # a layer may be there that nothing reads
                said.log_prob(drawn).sum(), [*weights.values()], materialize_grads=True
            )
            for name, slope in zip(weights, slopes, strict=True):
                total[name] += slope.square()
    share = len(x) / fit.data.N
    return {
        name: one._replace(variance=share / total[name].to(one.variance).clamp_min(_LEAST))
        for name, one in layers.items()
    }
