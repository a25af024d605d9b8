"""Soft weight-sharing: train, then let the weights gather around a few values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ... import guides, models
from ...inference.fits.fitting import Fit
from ...inference.posterior.family import require
from ...inference.posterior.weight_moments import mean_network
from ...inference.pruning.weight_sharing import books
from ...inference.training.settings import Settings
from ...models.priors import WeightPrior
from .base import Pair, Stage
from .options import FromOne, FromZero, Positive, Rule
from .points import FromPoint

__all__ = ["SoftSharing"]

Gamma = Annotated[
    Sequence[float], Rule("shape and rate, such as [250,0.1]", lambda pair: len(pair) == 2)
]


# A narrower component at zero than published (a standard deviation of 0.008, held there by a
# density that outweighs the weights): with that of 0.02 weights that matter are set to zero. The
# prior of the first fit is narrow, for more weights to be near zero when the sharing begins.
# The published numbers are those of priors.GaussianMixture(), tau 0.003, share_lr 5e-4, retrain 0.
@dataclass(frozen=True)
class SoftSharing(FromPoint):
    """A further fit under a mixture, and one of the values that come of it.

    Attributes:
        prior: prior of the weights in the first fit, in words.
        components: number of components of the mixture.
        zero: proportion of the component at zero.
        spread: largest mean of a component at the start; they begin between minus and plus this.
        scale: standard deviation of the components at the start.
        zero_precision: shape and rate of the density over the precision at zero.
        precision: those of the other components.
        tau: weight of the log density of the mixture beside the data's, the ``kl_weight``.
        share: epochs under the mixture.
        share_lr: their learning rate at the start.
        retrain: epochs of training the means, to which the weights are set; not part of the
            published method (0: :func:`~pyroccam.inference.compress` sets them).
        retrain_lr: their learning rate at the start.

    References:
        Ullrich, Meeds, Welling 2017, arXiv:1702.04008.
    """

    lengths = ("share", "retrain")

    prior: str = "normal:0.2"
    components: int = 16
    zero: float = 0.99
    spread: float = 0.3
    scale: float = 0.05
    zero_precision: Gamma = (1e6, 64.0)
    precision: Gamma = (250.0, 0.1)
    tau: Positive = 0.02
    share: FromOne = 30
    share_lr: Positive = 1e-3
    retrain: FromZero = 5
    retrain_lr: Positive = 1e-3

    def stages(self, settings: Settings) -> list[Stage]:
        mixture = models.priors.GaussianMixture(
            components=self.components,
            zero=self.zero,
            spread=self.spread,
            scale=self.scale,
            zero_precision=(self.zero_precision[0], self.zero_precision[1]),
            precision=(self.precision[0], self.precision[1]),
        )

        def over(before: Fit, prior: WeightPrior) -> models.BayesianNetwork:
            return models.BayesianNetwork(
                mean_network(*require(before, models.BayesianNetwork, "sws")),
                before.data,
                prior=prior,
                likelihood=copy.deepcopy(before.model.likelihood),
            )

        def share(before: Fit) -> Pair:
            model = over(before, mixture)
            return model, guides.Delta(model)

        def retrain(before: Fit) -> Pair:
            model = over(before, models.priors.parse_weights(self.prior))
            shared = books(*require(before, models.BayesianNetwork, "sws"))
            return model, guides.Codebook(model, shared)

        own = {"epochs": self.share, "lr": self.share_lr, "kl_weight": self.tau}
        found = [Stage("share", share, own)]
        if self.retrain:
            values = {"epochs": self.retrain, "lr": self.retrain_lr}
            found.append(Stage("retrain", retrain, values))
        return found
