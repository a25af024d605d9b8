"""A posterior of gates over weights that are points."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from ..models import BayesianNetwork
from ..models.layers import BayesianLayer
from ..models.priors import Latent
from .base import Words
from .factors import Factor, GateFactor
from .mean_field import MeanField
from .points import DeltaFactor


class Gates(MeanField):
    """``q(w, g) = δ(w) Π q(g)``: which groups stay, with weights of highest density.

    A step takes as long as one of numbers, and half of the memory of one of
    :class:`~pyroccam.guides.MeanField`. Gates move at the rate of structure (``guide_lr`` of a
    fit): their logits have many nats to go while weights that were given need small steps.

    Arguments:
        model: a Bayesian network whose priors have gates, such as ``priors.Pretrained(net,
            odds=-1.0)``.

    References:
        Louizos, Welling, Kingma 2018, Learning sparse neural networks through L0 regularization,
        arXiv:1712.01312, for gates over points; Xia, Zhong, Chen 2022, Structured pruning learns
        compact and accurate models, arXiv:2204.00408, for those of a transformer.
    """

    words: ClassVar[Words] = {"gates": {}}
    varies = False

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__(model, local=False)

    def arguments(self) -> dict[str, Any]:
        return {}

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        if name in ("weight", "bias"):
            return DeltaFactor(layer.start[name])
        return super().factor(layer, name, latent)

    def structure_parameters(self) -> list[nn.Parameter]:
        gates = [one for one in map(self.factor_of, self.sites) if isinstance(one, GateFactor)]
        return [*super().structure_parameters(), *(one.logits for one in gates)]
