"""Dropout of a fixed rate, for comparison: Gaussian noise, or units that are zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from ... import guides, models
from ...data import Dataset
from ...inference.posterior.draws import Noise
from ...inference.pruning.thresholds import Threshold
from ...models.networks.dropout import with_dropout
from .base import Pair
from .narrowing import refuse_names, tell_uncuttable
from .options import Layers, Nats, Share
from .points import FromPoint
from .weights import OverWeights, named_layers

__all__ = ["Dropout", "GaussianDropout"]


@dataclass(frozen=True)
class GaussianDropout(OverWeights):
    """Normal noise of a fixed size on the weights or activations.

    Attributes:
        rate: of the dropout that has the same variance.
        layers: that have it.
        noise: of a draw: of the weights, or of the activations.
        threshold: by which the network is cut in the end.
        tolerance: what a cut by the validation rows may cost, in nats of a row.
    """

    rate: Share = 0.5
    layers: Layers = "hidden"
    noise: Noise = "activations"
    threshold: Threshold | None = None
    tolerance: Nats | None = 0.001

    @property
    def drawn(self) -> Noise:
        return self.noise

    @property
    def last_cut(self) -> tuple[Threshold | None, float | None]:
        return self.threshold, self.tolerance

    @property
    def cuts(self) -> dict[str, Threshold | None]:
        return {"threshold": self.threshold}

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        model = models.BayesianNetwork(
            net,
            data,
            prior=models.priors.LogUniform(),
            layers=named_layers(self.layers, net),
            random_biases=False,
        )
        refuse_names(self.threshold, model)
        tell_uncuttable(model, data)
        log_alpha = math.log(self.rate / (1.0 - self.rate))
        return model, guides.VariationalDropout(
            model, rate="layer", log_alpha=log_alpha, learn=False
        )


@dataclass(frozen=True)
class Dropout(FromPoint):
    """Binary dropout on the inputs of layers.

    Attributes:
        prior: of the weights, in words.
        rate: share of the units that is dropped.
        layers: that have it; by default the linear ones but one that is the first of all.
    """

    rate: Share = 0.5
    layers: Layers = None

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        return super().build(with_dropout(net, self.rate, named_layers(self.layers, net)), data)
