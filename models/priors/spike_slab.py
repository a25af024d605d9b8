"""Spike and slab by relaxed gates, one for each group or each weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ...data import Between, Positive, Share
from ..distributions import RelaxedGate
from .base import Latent, LayerShape, WeightPrior, normal


@dataclass(frozen=True)
class SpikeSlab(WeightPrior):
    """``w = g w̃`` with ``w̃ ~ N(0, scale²)`` and a gate g, relaxed from {0, 1} to (0, 1).

    Latents ``weight``, ``bias`` ~ N(0, 1) and ``gate``, a
    :class:`~pyroccam.models.distributions.relaxed.RelaxedGate`: it exceeds ½ with the probability
    ``slab`` at any temperature, and the lower that is, the nearer are gates to 0 and 1. The KL of a
    posterior of the same temperature is that of two logistic variables. A guide begins with open
    gates, at the logit 3.

    Arguments:
        slab: prior probability that a gate is open, in (0, 1).
        per: ``"group"`` or ``"weight"``.
        temperature: of the relaxation, in (0, 1].
        scale: standard deviation of the slab.

    References:
        Mitchell, Beauchamp 1988, Bayesian variable selection in linear regression, JASA 83;
        Maddison, Mnih, Teh 2017, The concrete distribution, arXiv:1611.00712.
    """

    words = "spike-slab:0.1"

    slab: Share = 0.5
    per: Literal["group", "weight"] = "group"
    temperature: Annotated[float, Between(0.0, 1.0, "(]")] = 0.5
    scale: Positive = 1.0

    def numbers(self, layer: LayerShape) -> dict[str, float]:
        return {"logit": math.log(self.slab) - math.log1p(-self.slab), "scale": self.scale}

    def latents(self, own: Any) -> Mapping[str, Latent]:
        shape = own.layer.weight if self.per == "weight" else own.layer.group_shape
        logits = own.logit.expand(shape)
        gate = RelaxedGate(self.temperature, logits=logits, validate_args=False)
        return {
            "weight": Latent(normal(own.layer.weight, own.zero, own.scale)),
            "gate": Latent(gate.to_event(len(shape)), start=(3.0, 0.5)),
            **own.standard_bias(),
        }
