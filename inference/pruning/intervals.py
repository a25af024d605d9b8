"""The posterior of every scale that multiplies weights, as intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...guides.mean_field import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ...models.layers.bayesian_layer import BayesianLayer
from .judged import judged

__all__ = ["ScaleIntervals", "scale_intervals"]


@dataclass(frozen=True)
class ScaleIntervals:
    """Central intervals of the scales of a layer, or of its weights where it has no scales.

    Attributes:
        layer: its name.
        low, median, high: in the shape of
            :class:`~pyroccam.inference.pruning.relevance.Irrelevance`'s values: one for each group,
            ``(groups,)``, or for each weight. A scale without a sign, which the weights could take
            over, is turned so that its median is not negative.
        quantity: ``scale``, ``gate`` or ``weight``.
        level: probability inside the interval.
        positive: the quantity cannot be negative or zero: it is for a logarithmic axis.
    """

    layer: str
    low: Tensor
    median: Tensor
    high: Tensor
    quantity: str
    level: float
    positive: bool


@torch.no_grad()
def scale_intervals(
    model: BayesianNetwork, guide: NetworkGuide, level: float = 0.9
) -> dict[str, ScaleIntervals]:
    r"""By layer, of what :func:`~pyroccam.inference.pruning.relevance.irrelevance` judges.

    * Log-normal scales, of the group and of its layer, multiply: :math:`z = \prod_k v_k^{p_k}` is
      log-normal with :math:`μ_z = \sum_k p_k μ_k` and :math:`σ_z^2 = \sum_k p_k^2 σ_k^2`, and its
      quantile is :math:`\exp(μ_z + σ_z Φ^{-1}(p))`.
    * Normal scales, or weights: :math:`|μ| + σ Φ^{-1}(p)`.
    * Relaxed gates of the logit :math:`l` at the temperature T: the logistic function of
      :math:`(l + \mathrm{logit}\,p) / T`.

    Arguments:
        model, guide: of a fit.
        level: probability inside an interval, the same amount on both sides outside.

    Returns:
        :class:`ScaleIntervals` by layer, float64 on the CPU.

    Raises:
        ValueError: for a level that is not in (0, 1), or a layer whose posterior has no spread.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r}: give the probability inside an interval, in (0, 1).")
    return {name: _of_layer(layer, guide, level) for name, layer in model.layers.items()}


def _of_layer(layer: BayesianLayer, guide: NetworkGuide, level: float) -> ScaleIntervals:
    kind, q = judged(layer, guide, "there is nothing to draw; fit with guides.MeanField.")
    if kind == "gate":
        half = math.log((1 + level) / (1 - level))  # the logit of the upper quantile
        low, median, high = (
            torch.sigmoid((q.logits.double() + step) / q.temperature) for step in (-half, 0, half)
        )
        return _made(layer, low, median, high, "gate", level, False)
    step = _upper(level) * q.scale.double()
    if kind == "log-normal scale":
        ends = (q.loc - step).exp(), q.loc.exp(), (q.loc + step).exp()
        return _made(layer, *ends, "scale", level, True)
    median = q.loc.double().abs()
    quantity = "scale" if kind == "normal scale" else "weight"
    return _made(layer, median - step, median, median + step, quantity, level, False)


def _upper(level: float) -> float:
    """Deviations from the mean of a normal to the upper end of its interval."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))


def _made(
    layer: BayesianLayer,
    low: Tensor,
    median: Tensor,
    high: Tensor,
    quantity: str,
    level: float,
    positive: bool,
) -> ScaleIntervals:
    low, median, high = (end.cpu() for end in (low, median, high))
    return ScaleIntervals(layer.name, low, median, high, quantity, level, positive)
