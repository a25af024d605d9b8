"""Weights of a primitive that shrink with what the primitive counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch import Independent
from torch import Tensor

from ...data import Options, Positive, PyroccamError
from .base import Latent


@dataclass(frozen=True)
class Share:
    """The share of a primitive in a pass.

    Attributes:
        gamma: γ_k, ``()`` or, for enumerated structures, ``(enumerated dims..., 1)``.
        rows: the same for each row of the inputs, ``()`` or ``(rows,)``.
    """

    gamma: Tensor
    rows: Tensor


class Scaling(Options):
    """How the prior of weights depends on γ."""

    def latents(self, layer: str, latents: Mapping[str, Latent], share: Share) -> dict[str, Latent]:
        """Latents of a layer in a primitive, for the γ of this pass."""
        return dict(latents)

    def outputs(self, out: Tensor, share: Share) -> Tensor:
        """Outputs of a layer, ``(rows, *)``."""
        return out

    def plain(self, value: Tensor, gamma: Tensor) -> Tensor:
        """A weight or bias ``(S, *)`` as a plain layer has it, for γ_k ``(S,)``."""
        return value


@dataclass(frozen=True)
class Floored(Scaling):
    r"""``w ~ N(0, max(γ σ, floor)²)``, the prior of the source with a floor.

    With :math:`N(0, γ² σ²)` itself the bound is -∞ at temperatures up to 2, where
    :math:`E_q[γ^{-2}]` is infinite. The floor is part of the model, and the bound depends on it: at
    the floor σ has no gradient, so that a primitive which was switched off seldom comes back.

    Arguments:
        floor: least standard deviation. The authors' code has e⁻⁴.

    Raises:
        PyroccamError: in use, for a prior that is not normal.

    References:
        Bakhteev, Strijov; the thesis of the first author, for the prior.
    """

    floor: Positive = 0.0183

    def latents(self, layer: str, latents: Mapping[str, Latent], share: Share) -> dict[str, Latent]:
        found: dict[str, Latent] = {}
        for name, latent in latents.items():
            own: Any = getattr(latent.prior, "base_dist", latent.prior)
            if not isinstance(own, torch.distributions.Normal):
                given = f"scaling=Floored of the {type(own).__name__} of site {layer}.{name}"
                raise PyroccamError(given, "priors.Normal", "scaling=NonCentred()")
            dims = len(latent.prior.event_shape)
            gamma = share.gamma.reshape(*share.gamma.shape, *[1] * dims)
            scale = (gamma * own.scale).clamp(min=self.floor)
            fn = dist.Normal(own.loc * gamma, scale, validate_args=False)
            found[name] = replace(latent, prior=_GivenStructure(fn, dims))
        return found


class _GivenStructure(Independent):
    """A prior of weights, of which enumerated structures give several.

    Pyro compares shapes of model and guide (while validation is on), and those of weights alone are
    equal. Of a guide with fewer dims than there are plates it would cut a shape at the wrong end.
    """

    def shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return sample_shape + self.event_shape


@dataclass(frozen=True)
class NonCentred(Scaling):
    r"""``w = γ w̃`` with a prior of ``w̃`` that does not depend on γ: any prior will do.

    In prior it is the same as :math:`N(0, γ² σ²)`. In the posterior the weights shrink with γ too,
    and the KL is finite.
    """

    def outputs(self, out: Tensor, share: Share) -> Tensor:
        rows = share.rows
        return out * (rows.reshape(-1, *[1] * (out.dim() - 1)) if rows.dim() else rows)

    def plain(self, value: Tensor, gamma: Tensor) -> Tensor:
        return value * gamma.reshape(-1, *[1] * (value.dim() - 1))
