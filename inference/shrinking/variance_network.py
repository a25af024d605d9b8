"""Trade a posterior whose means no longer matter for one without means."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from ...data import PyroccamError, checked
from ...guides import NetworkGuide, ZeroMean
from ...models import BayesianNetwork, LocalReparameterization
from ..posterior import require

if TYPE_CHECKING:
    from ..training import Fit


@torch.no_grad()
@checked
def mean_costs(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, float]:
    r"""The worth of a layer's means, ``KL(N(θ, σ²) || N(0, σ²))`` summed over its weights, in nats.

    .. math:: \sum_i θ_i² / 2 σ_i² = \sum_i 1 / 2 α_i

    By Pinsker's inequality no event under the posterior,
    and so no predicted probability, changes by more than the root of half of it when they go.

    Returns:
        by layer; infinite for weights that are points, other than zero.

    References:
        Neklyudov et al. 2018, arXiv:1803.03764.
    """
    costs = {}
    for name in model.layers:
        q = guide.posterior(f"{name}.weight")
        ratio = 0.5 * q.mean.square() / q.variance
        costs[name] = float(ratio.nan_to_num(0.0, posinf=math.inf).sum(dtype=torch.float64))
    return costs


@torch.no_grad()
@checked
def without_means(
    fit: Fit, *, layers: str | Iterable[str] | None = None, max_kl: float = 0.5
) -> tuple[BayesianNetwork, ZeroMean]:
    """The pair of a fit with a variance network in the place of layers whose means do not matter.

    The deviations are those that the posterior had, and everything else stays as it was. Train it
    further, or predict with it as it is.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`, by ``guides.VariationalDropout`` with a
            rate for each layer or neuron, say; it is not changed.
        layers: which, whatever it costs. By default those that cost no more than ``max_kl``.
        max_kl: in nats, of a whole layer; see :func:`mean_costs`.

    Raises:
        PyroccamError: for a fit of another model, or if there is no such layer.

    Example:
        >>> from pyroccam import data, guides, inference, models
        >>> digits = data.load("digits")
        >>> net = models.networks.perceptron((1, 8, 8), 10, hidden=(20,))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.LogUniform())
        >>> guide = guides.VariationalDropout(model, rate="layer", log_alpha=8.0)
        >>> fit = inference.fit(model, guide, digits, epochs=1, weight_decay=0.0)
        >>> model, guide = inference.shrinking.without_means(fit)
        >>> guide.traits.zero_mean
        ('1', '3')
    """
    model, guide = require(fit, BayesianNetwork, "without_means")
    if layers is None:
        costs = mean_costs(model, guide)
        layers = [name for name, cost in costs.items() if cost <= max_kl]
        if not layers:
            listed = ", ".join(f"{name!r} {cost:.3g}" for name, cost in costs.items())
            raise PyroccamError(f"max_kl={max_kl:g}: the means of layers are worth {listed} nats")
    else:
        layers = [layers] if isinstance(layers, str) else list(layers)
    layers = [*layers, *(name for name in guide.traits.zero_mean if name not in layers)]
    model = copy.deepcopy(model)
    local: bool | LocalReparameterization = False
    if guide.scales is not None:
        local = LocalReparameterization(model, guide.scales)
    own = ZeroMean(model, layers=layers, begin=guide, local=local)
    return model, own.to(fit.data.device)
