"""What stands for the groups of a layer, or for its weights, and its posterior."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch

from ...guides.mean_field import NetworkGuide
from ...models.distributions.wrapped import base
from ...models.layers.bayesian_layer import BayesianLayer

__all__ = ["Judged", "judged"]


class Judged(NamedTuple):
    r"""The posterior by which the parts of a layer are kept or cut.

    Attributes:
        kind: ``normal scale``, ``log-normal scale``, ``gate`` or, of a layer without groups,
            ``weight``.
        q: its distribution, elementwise, on the device of the guide. Of log-normal scales, of the
            group and of its layer, which multiply: the normal of :math:`\log \prod_k v_k^{p_k}`, of
            mean :math:`Σ p_k μ_k` and variance :math:`Σ p_k² σ_k²`, float64.
    """

    kind: Literal["normal scale", "log-normal scale", "gate", "weight"]
    q: Any


def judged(layer: BayesianLayer, guide: NetworkGuide, instead: str) -> Judged:
    """Of one layer.

    Arguments:
        layer, guide: of a fit.
        instead: what to do where the posterior has no spread, for the error.

    Raises:
        ValueError: for a layer without groups whose posterior is no normal.
    """
    logs: list[tuple[Any, float]] = []
    for name, latent in layer.latents().items():
        if name in ("weight", "bias"):
            continue
        q = base(guide.distribution(f"{layer.name}.{name}"))
        if isinstance(q, torch.distributions.LogNormal):
            logs.append((q, latent.power))
        elif isinstance(q, torch.distributions.Normal):
            return Judged("normal scale", q)
        elif hasattr(q, "temperature"):
            return Judged("gate", q)
    if logs:
        zero = torch.zeros((), dtype=torch.float64)
        loc = sum((p * q.loc.double() for q, p in logs), zero)
        variance = sum(((p * q.scale.double()).square() for q, p in logs), zero)
        normal = torch.distributions.Normal(loc, variance.sqrt(), validate_args=False)
        return Judged("log-normal scale", normal)
    q = base(guide.distribution(f"{layer.name}.weight"))
    if not isinstance(q, torch.distributions.Normal):
        raise ValueError(
            f"Layer {layer.name!r} has no groups and its posterior is {type(q).__name__}, without "
            f"a spread: {instead}"
        )
    return Judged("weight", q)
