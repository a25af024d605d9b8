"""Dropout of a fixed rate, for comparison: Gaussian noise, or units that are zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from ... import guides, models
from ...data import Dataset, NotNegative, Share
from ...inference.posterior import Noise
from ...models.networks import with_dropout
from .base import Pair
from .options import Layers, Threshold
from .points import FromPoint
from .weights import OverWeights, named_layers, refuse_names, tell_uncuttable


@dataclass(frozen=True)
class GaussianDropout(OverWeights):
    """Normal noise of a fixed size on the weights or activations.

    Attributes:
        rate: rate of the binary dropout that has the same variance.
        layers: layers with noise, ``hidden`` ones, the ``penultimate`` or by name.
        noise: draws of a prediction have noise on their ``weights`` or their ``activations``.
        threshold: rule or number by which the network is cut in the end.
        tolerance: nats of a row that a cut by the validation rows may cost, 0.001 if left out, and
            that what is left may lose to a plain network, 0.01 if left out.
    """

    rate: Share = 0.5
    layers: Layers = "hidden"
    noise: Noise = "activations"
    threshold: Threshold | None = None
    tolerance: NotNegative | None = None

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        model = models.BayesianNetwork(
            net,
            data,
            prior=models.priors.LogUniform(),
            layers=named_layers(self.layers, net),
            likelihood=self.likelihood,
            random_biases=False,
        )
        refuse_names(model, self.threshold)
        tell_uncuttable(model, data)
        log_alpha = math.log(self.rate / (1.0 - self.rate))
        return model, guides.VariationalDropout(
            model, rate="layer", log_alpha=log_alpha, learn=False
        )


@dataclass(frozen=True)
class Dropout(FromPoint):
    """Binary dropout on the inputs of layers.

    Attributes:
        prior: prior of the weights, in words.
        rate: share of the units that is dropped.
        layers: layers with dropout before them; by default the linear ones after the first layer.
    """

    rate: Share = 0.5
    layers: Layers = None

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        return super().build(with_dropout(net, self.rate, named_layers(self.layers, net)), data)
