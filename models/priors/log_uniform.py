"""The log-uniform prior ``p(w) ∝ 1 / |w|``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..distributions import KL, ImproperLogUniform
from .base import Latent, WeightPrior


@dataclass(frozen=True)
class LogUniform(WeightPrior):
    """``p(w) ∝ 1 / |w|`` for each weight: sparse variational dropout. Biases are N(0, 1).

    The guide begins at a standard deviation of e^-5, as in the authors' code.

    Arguments:
        kl: ``"exact"``, or ``"molchanov"``, as published.

    References:
        Molchanov, Ashukha, Vetrov 2017, arXiv:1701.05369.
    """

    words = "log-uniform, log-uniform:molchanov"

    kl: KL = "exact"

    def latents(self, own: Any) -> Mapping[str, Latent]:
        start = math.exp(-5.0)
        weight = log_uniform(own.layer.weight, self.kl, own.zero)
        return {
            "weight": Latent(weight, start=(None, start), unbounded=True),
            **own.standard_bias(start),
        }


def log_uniform(shape: Sequence[int], kl: KL, like: Tensor) -> Any:
    """Independent log-uniform variables of event shape ``shape``, numbers as ``like`` is one."""
    return ImproperLogUniform(shape, kl, like).to_event(len(shape))
