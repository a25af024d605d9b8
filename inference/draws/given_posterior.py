"""The posterior of a fit, as it is, in place of one that is trained for a size."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import Normal

from ...data import PyroccamError
from ...guides import NetworkGuide
from ...models import BayesianNetwork
from ...models.distributions import base
from ..coding import nearest

__all__ = ["deviations"]


@torch.no_grad()
def deviations(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, float]:
    """The deviation of the prior of each layer, by its name."""
    if guide.traits.point:
        raise PyroccamError(f"A draw of {type(guide).__name__}", "guides.MeanField")
    found: dict[str, float] = {}
    for site, (layer, name) in model.sites.items():
        prior: Any = base(layer.latents()[name].prior)
        own = found.get(layer.name)
        scale = float(prior.scale.flatten()[0]) if isinstance(prior, Normal) else 0.0
        if not scale or bool((prior.loc != 0).any()) or bool((prior.scale != (own or scale)).any()):
            raise PyroccamError(
                f"A draw under the prior {type(layer.weight_prior).__name__} of {site!r}",
                "N(0, s²) with one s for its layer",
            )
        nearest(scale)
        found[layer.name] = scale
        if not isinstance(base(guide.posterior(site)), Normal):
            raise PyroccamError(f"A draw of {type(guide).__name__} of {site!r}", "normals")
    return found
