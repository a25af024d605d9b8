"""Methods over point estimates: train, then go on with fewer weights, and fewer values, to which
they are set or around which they gather."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from torch import nn

from ... import guides, models
from ...data import Count, Dataset, Fraction, NotNegative, Positive, PyroccamError, Rule, Whole
from ...inference.posterior import mean_network, require
from ...inference.shrinking import (
    Deviations,
    IndexBits,
    Part,
    PerLayer,
    books,
    by_layer,
    prune_weights,
    share_weights,
    splice_weights,
)
from ...inference.training import Fit, Settings
from ...models.priors import WeightPrior
from .base import Pair, Stage
from .options import Rounds
from .weights import OverWeights, tell_uncuttable

Gamma = Annotated[
    Sequence[float], Rule("shape and rate, such as [250,0.1]", lambda pair: len(pair) == 2)
]

_BY_LAYER = ("sensitivity", "keep", "bits", "c")  # options of numbers by layer


@dataclass(frozen=True)
class FromPoint(OverWeights):
    """A method that begins with the weights of highest posterior density. A point estimate takes
    no threshold (:func:`~pyroccam.inference.shrink` says why)."""

    prior: str = "normal:1"

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        prior = models.priors.parse_weights(self.prior)
        model = models.BayesianNetwork(net, data, prior=prior, likelihood=self.likelihood)
        for name in _BY_LAYER:  # an error now, not after the first fit
            if (numbers := self.options.get(name)) is not None:
                by_layer(name, numbers, model)
        tell_uncuttable(model, data)
        return model, guides.Delta(model)


# The numbers of linear layers are from a few short fits of LeNet-300-100 on MNIST, those of
# convolutions are untried.
@dataclass(frozen=True)
class DeepCompression(FromPoint):
    """Prune and retrain in rounds, then share values and train those.

    Attributes:
        prior: prior of the weights, in words.
        sensitivity: weights below so many standard deviations of their layer go; a number for all
            layers, for kinds of them, or by layer.
        keep: instead of it, the fraction of weights that stays in the end, likewise; the rounds go
            down to it in equal ratios.
        rounds: rounds of pruning.
        retrain: epochs after each round.
        retrain_lr: their learning rate at the start.
        bits: bits of the index of a shared value, likewise.
        share: epochs of training the shared values; 0 shares none.
        share_lr: their learning rate at the start.

    References:
        Han, Pool, Tran, Dally 2015, arXiv:1506.02626; Han, Mao, Dally 2016, arXiv:1510.00149. Their
        Huffman code is in the packed file, as the code of
        :mod:`~pyroccam.inference.coding.entropy`, which takes fractions of bits.
    """

    lengths = ("retrain", "share")

    sensitivity: Deviations | None = field(
        default_factory=lambda: {"linear": 1.0, "convolution": 0.7}
    )
    keep: Part | None = None
    rounds: Rounds = 2
    retrain: Count = 12
    retrain_lr: Positive = 1e-3
    bits: IndexBits | None = field(default_factory=lambda: {"linear": 5, "convolution": 8})
    share: Whole = 3
    share_lr: Positive = 1e-4

    def stages(self, settings: Settings) -> list[Stage]:
        if self.sensitivity is None and self.keep is None:
            raise PyroccamError("neither sensitivity nor keep", "one of them")

        def prune(number: int) -> Callable[[Fit], Pair]:
            def build(before: Fit) -> Pair:
                if self.keep is None:
                    return prune_weights(before, sensitivity=self.sensitivity)
                return prune_weights(before, keep=_root(self.keep, number / self.rounds))

            return build

        def share(before: Fit) -> Pair:
            return share_weights(before, bits=self.bits)

        retrain = {"epochs": self.retrain, "lr": self.retrain_lr}
        found = [Stage(f"prune-{k}", prune(k), retrain) for k in range(1, self.rounds + 1)]
        if self.share:
            found.append(Stage("share", share, {"epochs": self.share, "lr": self.share_lr}))
        return found


# The prior is as much weight decay as the published networks had, 5e-4 beside the mean loss of
# 54,000 rows: weights that are not needed are small when the switches come, and fewer of those that
# go are missed. How many go is a matter of the network: docs/results.md has the c of two.
@dataclass(frozen=True)
class Surgery(FromPoint):
    """Train on with switches on the weights: dynamic network surgery, with momentum. Steps of Adam
    are as large for a weight that the data do not ask for, which then wanders back over the
    threshold.

    Attributes:
        prior: prior of the weights, in words.
        c: thresholds of the switches, so many standard deviations above the mean magnitude of a
            layer; a number for all layers, for kinds of them, or by layer.
        gamma: rate at which the switches come to rest.
        power: exponent of that decay.
        surgery: epochs with switches.
        surgery_lr: their learning rate at the start.
        freeze: part of these epochs, at the end, in which the switches stay.

    References:
        Guo, Yao, Chen 2016, arXiv:1608.04493.
    """

    lengths = ("surgery",)

    prior: str = "normal:0.2"
    c: PerLayer[float] = field(
        default_factory=lambda: {"linear": 6.0, "convolution": 2.5, "last": 1.5}
    )
    gamma: NotNegative = 1e-3
    power: NotNegative = 1.0
    surgery: Count = 30
    surgery_lr: Positive = 0.05
    freeze: Fraction = 0.3

    def stages(self, settings: Settings) -> list[Stage]:
        def build(before: Fit) -> Pair:
            steps = self.surgery * before.settings.steps_per_epoch(before.data.N)
            stop = round((1 - self.freeze) * steps)
            return splice_weights(before, c=self.c, gamma=self.gamma, power=self.power, stop=stop)

        sgd = {"optimizer": "sgd", "beta2": Settings.beta2}
        own = {"epochs": self.surgery, "lr": self.surgery_lr, **sgd}
        return [Stage("surgery", build, own)]


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
            published method (0: :func:`~pyroccam.inference.shrink` sets them).
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
    share: Count = 30
    share_lr: Positive = 1e-3
    retrain: Whole = 5
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
            return model, guides.Points(model, by=guides.Book(shared))

        own = {"epochs": self.share, "lr": self.share_lr, "kl_weight": self.tau}
        found = [Stage("share", share, own)]
        if self.retrain:
            values = {"epochs": self.retrain, "lr": self.retrain_lr}
            found.append(Stage("retrain", retrain, values))
        return found


def _root(value: PerLayer[float], exponent: float) -> PerLayer[float]:
    """Every number of ``value`` to a power."""
    if isinstance(value, Mapping):
        return {name: float(one) ** exponent for name, one in value.items()}
    if isinstance(value, Sequence):
        return [float(one) ** exponent for one in value]
    return float(value) ** exponent
