"""Point estimates of random tensors: maximum a posteriori."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
from torch import Tensor, nn
from torch.distributions import transform_to

from ..models.bayesian import BayesianLayer, BayesianNetwork
from ..models.local import base
from ..models.priors.weights import Latent
from .mean_field import Factor, NetworkGuide, relaxed, start

__all__ = ["Delta"]


class DeltaFactor(Factor):
    """A point.

    Arguments:
        value: at the start, unconstrained.
        support: of the site.
    """

    def __init__(self, value: Tensor, support: Any) -> None:
        super().__init__()
        self.value = nn.Parameter(value.detach().clone())
        self.transform = transform_to(support)

    def forward(self) -> Any:
        return dist.Delta(self.transform(self.value), event_dim=self.value.dim())


class Delta(NetworkGuide):
    r"""The weights of highest posterior density: every site has one value.

    Maximises :math:`\log p(y \mid w) + \log p(w)`, in the coordinates of the sites (a mode depends
    on them: that of a scale is not that of its logarithm).

    Arguments:
        model: a Bayesian network; weights begin where those of its network are.

    Raises:
        TypeError: for a prior whose density is unbounded, where the mode is no estimate.
    """

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__(model, local=False, scales="batch")
        self.build(model)

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        if latent.unbounded or relaxed(latent.prior) is not None:  # a gate is densest at its ends
            raise TypeError(
                f"guides.Delta cannot estimate site {f'{layer.name}.{name}'!r} by its mode: the "
                f"density of {type(base(latent.prior)).__name__} is infinite there, whatever the "
                "data. Use guides.MeanField."
            )
        value, _ = start(layer, name, latent)
        support = latent.prior.support
        return DeltaFactor(value, getattr(support, "base_constraint", support))
