"""Soft weight-sharing: train, then let the weights gather around a few values."""

from __future__ import annotations

import copy
from typing import Any

from ... import guides, models
from ...inference.fits.fitting import Fit
from ...inference.posterior.weight_moments import mean_network
from ...inference.pruning.weight_sharing import books
from .stages import Options, Pair, Stage, positive, whole

__all__ = ["SHARING", "sharing"]

# A narrower component at zero than published (a standard deviation of 0.008, held there by a
# density that outweighs the weights): with that of 0.02 weights that matter are set to zero. The
# prior of the first fit is narrow, for more weights to be near zero when the sharing begins.
# The published numbers are those of priors.GaussianMixture(), tau 0.003, share_lr 5e-4, retrain 0.
SHARING: dict[str, Any] = {
    "prior": "normal:0.2",
    "components": 16,
    "zero": 0.99,
    "spread": 0.3,
    "scale": 0.05,
    "zero_precision": [1e6, 64.0],
    "precision": [250.0, 0.1],
    "tau": 0.02,
    "share": 30,
    "share_lr": 1e-3,
    "retrain": 5,
    "retrain_lr": 1e-3,
}


def sharing(options: Options, settings: dict[str, Any]) -> list[Stage]:
    """A further fit under a mixture, and one of the values that come of it.

    Of the options, ``components`` to ``precision`` are those of
    :class:`~pyroccam.models.priors.GaussianMixture`, and ``tau`` is the weight of its log density,
    and of that of its parameters, beside the data's: the ``kl_weight``. The fit takes ``share``
    epochs from the rate ``share_lr``. Then every weight is set to the mean of its component, and
    the means and biases are trained ``retrain`` epochs from ``retrain_lr``, which is not part of
    the published method (0: :func:`~pyroccam.inference.compress` sets the weights).

    Raises:
        ValueError: for a prior or numbers that cannot be.

    References:
        Ullrich, Meeds, Welling 2017, arXiv:1702.04008.
    """
    prior = models.priors.GaussianMixture(
        components=options["components"],
        zero=options["zero"],
        spread=options["spread"],
        scale=options["scale"],
        zero_precision=_pair("zero_precision", options),
        precision=_pair("precision", options),
    )
    own = {
        "epochs": whole(options, "share", 1),
        "lr": positive(options, "share_lr"),
        "kl_weight": positive(options, "tau"),
    }

    def build(before: Fit, options: Options) -> Pair:
        model = models.BayesianNetwork(
            mean_network(before.model, before.guide),  # type: ignore[arg-type]
            before.data,
            prior=prior,
            likelihood=copy.deepcopy(before.model.likelihood),
        )
        return model, guides.Delta(model)

    def retrain(before: Fit, options: Options) -> Pair:
        model = models.BayesianNetwork(
            mean_network(before.model, before.guide),  # type: ignore[arg-type]
            before.data,
            prior=models.priors.parse_weights(str(options["prior"])),
            likelihood=copy.deepcopy(before.model.likelihood),
        )
        return model, guides.Codebook(model, books(before.model, before.guide))  # type: ignore[arg-type]

    found = [Stage("share", build, own)]
    if epochs := whole(options, "retrain", 0):
        values = {"epochs": epochs, "lr": positive(options, "retrain_lr")}
        found.append(Stage("retrain", retrain, values))
    return found


def _pair(name: str, options: dict[str, Any]) -> tuple[float, float]:
    value = options[name]
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{name}={value!r}: give shape and rate, such as [250,0.1].")
    return value[0], value[1]
