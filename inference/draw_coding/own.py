"""The posterior of a fit, as it is, in place of one that is trained for a size."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import Normal

from ...data.errors import PyroccamError
from ...guides.base import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ...models.distributions.wrapped import base
from .scales import nearest

__all__ = ["deviations"]

_WAY = (
    "Take priors.Normal(scale) or priors.Normal(learn='scale') for the fit, or "
    "posterior='trained', which begins anew under such priors."
)


@torch.no_grad()
def deviations(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, float]:
    """The deviation of the prior of each layer, by its name.

    Raises:
        PyroccamError: for a prior from which the receiver could not draw, or a posterior that is
            not one of independent normals, with the way out.
    """
    if guide.traits.point:
        raise PyroccamError(
            f"{type(guide).__name__} is a point estimate, and no draw of it is cheaper than another"
            ".\nFit guides.MeanField(model), or take posterior='trained'."
        )
    found: dict[str, float] = {}
    for site, (layer, name) in model.sites.items():
        prior: Any = base(layer.latents()[name].prior)
        own = found.get(layer.name)
        scale = float(prior.scale.flatten()[0]) if isinstance(prior, Normal) else 0.0
        if not scale or bool((prior.loc != 0).any()) or bool((prior.scale != (own or scale)).any()):
            raise PyroccamError(
                f"A draw of this posterior cannot be sent: the receiver would have to draw from "
                f"the prior {type(layer.weight_prior).__name__} of {site!r}, which is not "
                f"N(0, s²) with one s for its layer.\n{_WAY}"
            )
        try:
            nearest(scale)
        except ValueError as error:
            raise PyroccamError(
                f"A draw of this posterior cannot be sent: {error}\nGive the prior of {site!r} "
                "another scale, or take posterior='trained'."
            ) from error
        found[layer.name] = scale
        if not isinstance(base(guide.posterior(site)), Normal):
            raise PyroccamError(
                f"A draw of this posterior cannot be sent: {type(guide).__name__} has no "
                f"independent normals for {site!r}.\nFit guides.MeanField(model), or take "
                "posterior='trained'."
            )
    return found
