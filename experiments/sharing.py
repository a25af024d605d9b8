"""Soft weight-sharing: train, then let the weights gather around a few values."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from .. import guides, models
from ..inference.fit import Fit
from ..inference.posterior import mean_network
from ..inference.settings import Settings
from .points import Further

__all__ = ["SHARING", "sharing"]

SHARING: dict[str, Any] = {
    "prior": "normal:1",
    "mixture": "mixture:16:0.99",
    "tau": 0.003,
    "share": 30,
    "share_lr": 5e-4,
    "threshold": None,
    "tolerance": 0.001,
}


def sharing(options: dict[str, Any]) -> list[Further]:
    """One further fit, under a mixture.

    Of the options, ``mixture`` is the prior, and ``tau`` the weight of its log density, and of that
    of its parameters, beside the data's: the ``kl_weight``. The fit takes ``share`` epochs at the
    constant rate ``share_lr``. Zeros and values come of it in :func:`~pyroccam.inference.compress`.

    Raises:
        ValueError: for a prior or numbers that cannot be.

    References:
        Ullrich, Meeds, Welling 2017, arXiv:1702.04008.
    """
    prior = models.priors.parse_weights(str(options["mixture"]))
    settings = {
        "epochs": options["share"],
        "lr": options["share_lr"],
        "schedule": "constant",
        "kl_weight": options["tau"],
    }
    Settings.of(settings)  # an error now, not after the first fit

    def build(before: Fit, options: dict[str, Any]) -> tuple[Any, nn.Module]:
        model = models.BayesianNetwork(
            mean_network(before.model, before.guide),  # type: ignore[arg-type]
            before.data,
            prior=prior,
            likelihood=copy.deepcopy(before.model.likelihood),
        )
        return model, guides.Delta(model)

    return [("share", build, settings)]
