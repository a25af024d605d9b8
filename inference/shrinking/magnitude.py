"""Go on from a point estimate with fewer weights, or fewer values: what is small goes.

Each function makes a further pair from a fit, to be fitted in its turn. The fit stays as it was;
the pair begins at its weights.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data import PyroccamError, checked
from ...guides import Book, Mask, NetworkGuide, Points, Switch
from ...models import BayesianNetwork
from ..posterior import require
from ..rounding import cluster
from .options import Deviations, IndexBits, Part, PerLayer
from .thresholds import by_layer

if TYPE_CHECKING:
    from ..training import Fit


@checked
def prune_weights(
    fit: Fit, *, sensitivity: Deviations | None = None, keep: Part | None = None
) -> tuple[BayesianNetwork, Points]:
    """A pair without the weights of small magnitude, to train the others further.

    Weights that are zero already stay zero, so it can be done several times, each after a fit.

    Arguments:
        fit: of a point estimate (:class:`~pyroccam.guides.Points`).
        sensitivity: what is below this many standard deviations of the layer's weights (those that
            are not zero) goes. For values by layer see :func:`~.thresholds.by_layer`.
        keep: instead of it, the fraction of each layer's weights that stay.

    References:
        Han, Pool, Tran, Dally 2015, arXiv:1506.02626.

    Example:
        >>> from pyroccam import data, guides, inference, models
        >>> digits = data.load("digits")
        >>> net = models.networks.perceptron((1, 8, 8), 10, hidden=(20,))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> settings = {"epochs": 2, "lr": 0.01, "weight_decay": 0.0}
        >>> fit = inference.fit(model, guides.Delta(model), digits, **settings)
        >>> fit = inference.fit(*prune_weights(fit, keep=0.2), digits, **settings)
        >>> small = inference.shrink(fit)
    """
    model, guide, weights = _points(fit, "prune_weights")
    if (sensitivity is None) == (keep is None):
        raise PyroccamError("prune_weights takes one rule, sensitivity= or keep=.")
    kept: dict[str, Tensor] = {}
    if keep is not None:
        for name, fraction in by_layer("keep", keep, model).items():
            kept[name] = _largest(weights[name], fraction)
    elif sensitivity is not None:
        for name, factor in by_layer("sensitivity", sensitivity, model).items():
            kept[name] = _above(name, weights[name], factor)
    return model, Points(model, by=Mask(kept), begin=guide)


def _largest(weight: Tensor, fraction: float) -> Tensor:
    count = max(1, round(fraction * weight.numel()))
    kept = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
    kept[weight.abs().flatten().topk(count).indices] = True
    return kept.reshape(weight.shape) & (weight != 0)


def _above(name: str, weight: Tensor, factor: float) -> Tensor:
    left = weight[weight != 0]
    limit = factor * left.std(correction=0) if len(left) else weight.new_zeros(())
    kept = (weight.abs() >= limit) & (weight != 0)
    if not kept.any():
        raise PyroccamError(f"sensitivity={factor:g} of layer {name!r}, of which it leaves nothing")
    return kept


@checked
def splice_weights(
    fit: Fit,
    *,
    c: PerLayer[float],
    gamma: float = 1e-4,
    power: float = 1.0,
    stop: int | None = None,
) -> tuple[BayesianNetwork, Points]:
    """A pair whose small weights are switched off, and on again where they grow.

    Arguments:
        fit: of a point estimate.
        c: for values by layer see :func:`~.thresholds.by_layer`; otherwise as of
            :class:`~pyroccam.guides.Switch`, like the rest.

    References:
        Guo, Yao, Chen 2016, arXiv:1608.04493.
    """
    model, guide, _ = _points(fit, "splice_weights")
    own = by_layer("c", c, model)
    by = Switch(own, gamma, power, stop)
    return model, Points(model, by=by, begin=guide)


@checked
def share_weights(fit: Fit, *, bits: IndexBits | None = None) -> tuple[BayesianNetwork, Points]:
    """A pair whose weights share few values, to train those; zeros stay zeros.

    The values are found by k-means in one dimension from equally spaced ones.

    Arguments:
        fit: of a point estimate.
        bits: of an index; a layer has at most 2^bits values beside zero. By default 5 of linear
            layers and 8 of convolutions. For values by layer see :func:`~.thresholds.by_layer`.

    References:
        Han, Mao, Dally 2016, arXiv:1510.00149.
    """
    model, guide, weights = _points(fit, "share_weights")
    bits = {"linear": 5, "convolution": 8} if bits is None else bits
    books: dict[str, tuple[Tensor, Tensor]] = {}
    for name, number in by_layer("bits", bits, model).items():
        weight = weights[name]
        left = weight != 0
        if not left.any():
            raise PyroccamError(f"Layer {name!r} has no weight that is not zero, so no values.")
        book, own = cluster(weight[left], 2 ** int(number))
        index = torch.full(weight.shape, -1, dtype=torch.int64, device=weight.device)
        index[left] = own.to(torch.int64)
        books[name] = book, index
    return model, Points(model, by=Book(books), begin=guide)


def _points(fit: Fit, asking: str) -> tuple[BayesianNetwork, NetworkGuide, dict[str, Tensor]]:
    """The pair of a fit, and the weights of each layer as the guide has them, without scales."""
    model, guide = require(fit, BayesianNetwork, asking)
    if not (guide.sites and all(guide.factor_of(site).is_point for site in guide.sites)):
        raise PyroccamError(f"{asking} of {type(guide).__name__}", "guides.Delta")
    weights = {name: guide.posterior(f"{name}.weight").v.detach() for name in model.layers}
    return copy.deepcopy(model), guide, weights
