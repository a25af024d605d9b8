"""Variational dropout: normal posteriors whose scale is a multiple of the mean."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..data import Between
from ..models import BayesianNetwork, LocalReparameterization, Scales
from ..models.layers import BayesianLayer
from ..models.priors import Latent
from .base import NetworkGuide, Words
from .edges import StructureFamily
from .factors import Factor, GaussianFactor
from .mean_field import suited

Rate = Literal["weight", "neuron", "layer"]

# Added to a squared mean, so that a weight of exactly zero has a posterior with a density.
TINY = 1e-16
LIMIT = 20.0  # of |log α|


class DropoutFactor(GaussianFactor):
    """``N(θ, α θ²)``; α for each weight, each output or the whole layer, by a shape that broadcasts
    against θ, with ``log α`` within ± :data:`LIMIT`."""

    log_alpha: Tensor

    def __init__(self, loc: Tensor, log_alpha: float, shape: torch.Size, learn: bool) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc.detach().clone())
        start = loc.detach().new_full(shape, log_alpha)
        if learn:
            self.log_alpha = nn.Parameter(start)
        else:
            self.register_buffer("log_alpha", start)

    def forward(self) -> Any:
        log_alpha = self.log_alpha.clamp(-LIMIT, LIMIT)
        scale = (0.5 * log_alpha).exp() * (self.loc.square() + TINY).sqrt()
        return dist.Normal(self.loc, scale, validate_args=False).to_event(self.loc.dim())


class VariationalDropout(NetworkGuide):
    r"""Gaussian dropout with a learnt rate: ``q(w) = N(θ, α θ²)`` for weights.

    Everything else (biases, scales) has the posterior of :class:`~pyroccam.guides.MeanField`. With
    α for each weight this is the family of ``MeanField`` in other coordinates, in which a gradient
    of θ is as noisy as α is large (the reason for the additive form of Molchanov et al. 2017).

    Arguments:
        model: a Bayesian network; weights begin where those of its network are.
        rate: α is learnt for each ``weight``, each output ``neuron`` or ``layer``.
        log_alpha: at the start.
        learn: learn α; or leave it as it is, which is Gaussian dropout, whose rate p of units would
            be ``log_alpha = log(p / (1 - p))``.
        local, scales, structure: see :class:`~pyroccam.guides.base.NetworkGuide`.

    Raises:
        PyroccamError: for an unknown rate, or a start beyond ±20.

    References:
        Kingma, Salimans, Welling 2015, arXiv:1506.02557; Molchanov et al. 2017, arXiv:1701.05369;
        Neklyudov et al. 2018, arXiv:1803.03764.
    """

    words: ClassVar[Words] = {
        f"dropout-{rate}": {"rate": rate} for rate in ("weight", "neuron", "layer")
    }
    varies = True

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        rate: Rate = "weight",
        log_alpha: Annotated[float, Between(-LIMIT, LIMIT)] = -5.0,
        learn: bool = True,
        local: bool | LocalReparameterization = True,
        scales: Scales = "example",
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__(model, local=local, scales=scales, structure=structure)
        self._rate = (rate, log_alpha, learn)
        self.build(model)

    def arguments(self) -> dict[str, Any]:
        rate, log_alpha, learn = self._rate
        return {"rate": rate, "log_alpha": log_alpha, "learn": learn, "local": False}

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        if name != "weight":
            return suited(self, layer, name, latent)
        rate, log_alpha, learn = self._rate
        loc = layer.start["weight"]
        shape = {
            "weight": loc.shape,
            "neuron": torch.Size(
                n if dim == layer.affine.output_dim else 1 for dim, n in enumerate(loc.shape)
            ),
            "layer": torch.Size(()),
        }[rate]
        return DropoutFactor(loc, log_alpha, shape, learn)
