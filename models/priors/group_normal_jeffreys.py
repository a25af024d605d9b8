"""Group normal-Jeffreys: a log-uniform scale for each group of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..distributions import KL
from .base import Latent, WeightPrior
from .log_uniform import log_uniform


@dataclass(frozen=True)
class GroupNormalJeffreys(WeightPrior):
    r"""``w = z w̃``, ``w̃ ~ N(0, 1)``, ``p(z) ∝ 1 / |z|`` for each group.

    Latents ``weight`` (w̃), ``scale`` (z, ``(groups,)``, real) and ``bias`` ~ N(0, 1). A guide
    begins at z of mean 1, all its standard deviations at e^-4.5, as in the authors' example.

    Arguments:
        kl: of the scales: ``"exact"``, or ``"molchanov"``, which the authors use.

    References:
        Louizos, Ullrich, Welling 2017, Bayesian compression for deep learning, arXiv:1705.08665.
    """

    words = "gnj, gnj:molchanov"

    kl: KL = "exact"

    def latents(self, own: Any) -> Mapping[str, Latent]:
        start = math.exp(-4.5)
        scale = log_uniform(own.layer.group_shape, self.kl, own.zero)
        return {
            "weight": own.standard(own.layer.weight, start),
            "scale": Latent(scale, start=(1.0, start), unbounded=True),
            **own.standard_bias(start),
        }
