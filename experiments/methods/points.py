"""Methods over point estimates: train, then go on with fewer weights, and fewer values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ... import guides, models
from ...data import Dataset
from ...inference.fits.fitting import Fit
from ...inference.pruning.magnitude import (
    PerLayer,
    by_layer,
    prune_weights,
    share_weights,
    splice_weights,
)
from ...models.checks import as_number
from .narrowing import tell_uncuttable
from .stages import Options, Pair, Stage, positive, whole

__all__ = ["PRUNING", "SURGERY", "point", "pruning", "surgery"]

# Those of linear layers are from a few short fits of LeNet-300-100 on MNIST, those of convolutions
# are untried. A point estimate takes no threshold (inference.compress says why), so there is no
# such option.
PRUNING: dict[str, Any] = {
    "prior": "normal:1",
    "sensitivity": {"linear": 1.0, "convolution": 0.7},
    "keep": None,
    "rounds": 2,
    "retrain": 12,
    "retrain_lr": 1e-3,
    "bits": {"linear": 5, "convolution": 8},
    "share": 3,
    "share_lr": 1e-4,
}
# The prior is as much weight decay as the published networks had, 5e-4 beside the mean loss of
# 54,000 rows: weights that are not needed are small when the switches come, and fewer of those that
# go are missed. How many go is a matter of the network: docs/results.md has the c of two.
SURGERY: dict[str, Any] = {
    "prior": "normal:0.2",
    "c": {"linear": 6.0, "convolution": 2.5, "last": 1.5},
    "gamma": 1e-3,
    "power": 1.0,
    "surgery": 30,
    "surgery_lr": 0.05,
    "freeze": 0.3,
}


def point(
    net: nn.Module, data: Dataset, options: dict[str, Any]
) -> tuple[models.BayesianNetwork, guides.Delta]:
    """The weights of highest posterior density, by which these methods begin.

    Raises:
        ValueError: for numbers by layer of a later fit that cannot be.
    """
    prior = models.priors.parse_weights(str(options["prior"]))
    model = models.BayesianNetwork(net, data, prior=prior)
    for name in ("sensitivity", "keep", "bits", "c"):  # an error now, not after the first fit
        optional = name != "c"
        if name in options and not (optional and options[name] is None):
            by_layer(name, options[name], model)
    tell_uncuttable(model, data)
    return model, guides.Delta(model)


def pruning(options: Options, settings: dict[str, Any]) -> list[Stage]:
    """Prune and retrain in rounds, then share values and train those: deep compression.

    Of the options, ``rounds`` are so many of pruning by ``sensitivity``, or down to the fraction
    ``keep`` in equal ratios; each trains ``retrain`` epochs from ``retrain_lr``. Then indices of
    ``bits``, and ``share`` epochs from ``share_lr`` (0: no sharing). The numbers ``sensitivity``,
    ``keep`` and ``bits`` are for all layers, for kinds of them, or by layer:
    :func:`~pyroccam.inference.pruning.magnitude.by_layer`.

    Raises:
        ValueError: for numbers of rounds or epochs that cannot be, or no rule.

    References:
        Han, Pool, Tran, Dally 2015, arXiv:1506.02626; Han, Mao, Dally 2016, arXiv:1510.00149. Their
        Huffman code is in the packed file, as the code of
        :mod:`~pyroccam.inference.packing.entropy`, which takes fractions of bits.
    """
    rounds = whole(options, "rounds", 1)
    if options["sensitivity"] is None and options["keep"] is None:
        raise ValueError("sensitivity=null: give it, or keep=, the fraction of weights that stay.")

    def prune(number: int) -> Callable[[Fit, Options], Pair]:
        def build(before: Fit, options: Options) -> Pair:
            if options["keep"] is None:
                return prune_weights(before, sensitivity=options["sensitivity"])
            return prune_weights(before, keep=_root(options["keep"], number / rounds))

        return build

    def share(before: Fit, options: Options) -> Pair:
        return share_weights(before, bits=options["bits"])

    retrain = {"epochs": whole(options, "retrain", 1), "lr": positive(options, "retrain_lr")}
    found = [Stage(f"prune-{k}", prune(k), retrain) for k in range(1, rounds + 1)]
    if epochs := whole(options, "share", 0):
        found.append(Stage("share", share, {"epochs": epochs, "lr": positive(options, "share_lr")}))
    return found


def surgery(options: Options, settings: dict[str, Any]) -> list[Stage]:
    """Train on with switches on the weights: dynamic network surgery.

    Of the options, ``c``, ``gamma`` and ``power`` are those of :class:`~pyroccam.guides.Spliced`,
    for ``surgery`` epochs from ``surgery_lr``, by gradient descent with momentum: steps of Adam are
    as large for a weight that the data do not ask for, which then wanders back over the threshold.
    In the last part ``freeze`` of the epochs the switches stay.

    Raises:
        ValueError: for numbers that cannot be.

    References:
        Guo, Yao, Chen 2016, arXiv:1608.04493.
    """
    epochs, freeze = whole(options, "surgery", 1), options["freeze"]
    if not 0 <= as_number(freeze) <= 1:
        raise ValueError(f"freeze={freeze!r}: give the part of the epochs, in 0 ... 1.")

    def build(before: Fit, options: Options) -> Pair:
        steps = epochs * before.settings.steps_per_epoch(before.data.N)
        return splice_weights(
            before,
            c=options["c"],
            gamma=options["gamma"],
            power=options["power"],
            stop=round((1 - freeze) * steps),
        )

    for name in ("gamma", "power"):
        if not as_number(options[name]) >= 0:
            raise ValueError(f"{name}={options[name]!r}: give a number of at least 0.")
    settings = {"epochs": epochs, "lr": positive(options, "surgery_lr"), "optimizer": "sgd"}
    return [Stage("surgery", build, settings)]


def _root(value: PerLayer, exponent: float) -> PerLayer:
    """Every number of ``value`` to a power."""
    if isinstance(value, Mapping):
        return {name: float(one) ** exponent for name, one in value.items()}
    if isinstance(value, Sequence):
        return [float(one) ** exponent for one in value]
    return float(value) ** exponent
