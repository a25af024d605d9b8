"""One normal prior for all weights of a layer, whose mean and variance are always at their best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from .ard import EmpiricalNormal
from .base import Latent, WeightPrior


@dataclass(frozen=True)
class SharedNormal(WeightPrior):
    r"""``N(m, s²)`` whose m and s² all weights of a layer share, optimised in closed form; another
    one for its biases.

    .. math:: m = mean(μ_i), \qquad s² = mean(σ_i² + (μ_i - m)²), \qquad
        KL = ½ Σ_i \log \frac{s²}{σ_i²}

    for a posterior :math:`N(μ_i, σ_i²)` of each. m and s² are put into the KL
    (:class:`~pyroccam.models.priors.ard.EmpiricalNormal`) and are no state: at its minimum it does
    not change with them. ``Normal(learn="layer")`` learns them by gradient, and has a density.

    The source shares one normal in the whole network, here it is one for a layer. A single number
    is N(0, 1): it would be its own prior, at no cost.

    Needs a guide that is normal at the weights, such as ``guides.MeanField``, and a bound with
    closed-form KLs.

    References:
        Graves 2011, Practical variational inference for neural networks, whose published s² has no
        σ_i²: with that the prior is too narrow.

    Example:
        >>> from pyroccam.models import priors
        >>> priors.parse_weights("shared-normal")
        SharedNormal()
    """

    words = "shared-normal"

    def latents(self, own: Any) -> Mapping[str, Latent]:
        def shared(shape: torch.Size) -> Latent:
            if shape.numel() == 1:
                return cast(Latent, own.standard(shape))
            normal = EmpiricalNormal(shape, range(len(shape)), moves=True, like=own.zero)
            return Latent(normal, unbounded=True)

        shapes = {"weight": own.layer.weight, "bias": own.layer.bias}
        return {name: shared(shape) for name, shape in shapes.items() if shape is not None}
