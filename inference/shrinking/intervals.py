"""The posterior of every scale that multiplies weights, as intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data import Share, checked
from ...models import BayesianNetwork
from ..posterior import require
from .relevance import judged

if TYPE_CHECKING:
    from ..training import Fit


@dataclass(frozen=True)
class ScaleIntervals:
    """Central intervals of the scales of a layer, or of its weights where it has no scales.

    Attributes:
        low, median, high: one a group, ``(groups,)``, or for each weight. A scale without a sign,
            which the weights could take over, is turned so that its median is not negative.
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


@checked
@torch.no_grad()
def scale_intervals(fit: Fit, level: Share = 0.9) -> dict[str, ScaleIntervals]:
    r"""Intervals of what :func:`~pyroccam.inference.shrinking.relevance.irrelevance` judges.

    * Log-normal scales, of the group and of its layer, multiply: :math:`z = \prod_k v_k^{p_k}` is
      log-normal with :math:`μ_z = \sum_k p_k μ_k` and :math:`σ_z^2 = \sum_k p_k^2 σ_k^2`, and its
      quantile is :math:`\exp(μ_z + σ_z Φ^{-1}(p))`.
    * Normal scales, or weights: :math:`|μ| + σ Φ^{-1}(p)`.
    * Relaxed gates of the logit :math:`l` at the temperature T: the logistic function of
      :math:`(l + \mathrm{logit}\,p) / T`.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork`.
        level: probability inside an interval, the same amount on both sides outside.

    Returns:
        :class:`ScaleIntervals` by layer, float64 on the CPU.

    Raises:
        PyroccamError: for a fit of another model, or a layer whose posterior has no spread.
    """
    model, guide = require(fit, BayesianNetwork, "scale_intervals")
    half = math.log((1 + level) / (1 - level))  # the logit of the upper quantile
    upper = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    found = {}
    for name, layer in model.layers.items():
        kind, q = judged(layer, guide)
        positive = kind == "log-normal scale"
        if kind == "gate":
            shifts = (-half, 0, half)
            ends = [torch.sigmoid((q.logits.double() + at) / q.temperature) for at in shifts]
        else:
            step = upper * q.scale.double()
            middle = q.loc.double() if positive else q.loc.double().abs()
            ends = [middle - step, middle, middle + step]
            ends = [end.exp() for end in ends] if positive else ends
        low, median, high = (end.cpu() for end in ends)
        quantity = kind.rpartition(" ")[2]
        found[name] = ScaleIntervals(name, low, median, high, quantity, level, positive)
    return found
