"""The norm of the weights of a layer as a penalty, not squared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Gamma, constraints

from ...data import Positive
from ..distributions import Alike
from .base import Latent, LayerShape, WeightPrior


class SphericalLaplace(Alike):
    r"""A density of a vector that falls exponentially with its norm, and has no direction.

    .. math:: p(w) = \frac{Γ(n/2) \, r^n}{2 π^{n/2} \, Γ(n)} \, e^{-r \|w\|}, \qquad
        \|w\| \sim Gamma(n, r)

    of n numbers w, the area of the unit sphere being :math:`2 π^{n/2} / Γ(n/2)`. Of one number it
    is the Laplace distribution. There is no closed KL of a normal to it: a bound takes log q - log
    p at the draw. At w = 0 the gradient of the norm is taken to be 0.

    Arguments:
        rate: r, positive, ``()``.
        event_shape: of w.
        batch_shape: of the distribution.

    References:
        Gomez, Gomez-Villegas, Marin 1998, A multivariate generalization of the power exponential
        family of distributions, with the power ½.
    """

    arg_constraints = {"rate": constraints.positive}  # noqa: RUF012 (as torch declares it)

    def __init__(
        self, rate: Tensor, event_shape: Sequence[int], batch_shape: Sequence[int] = ()
    ) -> None:
        self.rate = rate
        super().__init__(torch.Size(batch_shape), torch.Size(event_shape), validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.independent(constraints.real, self.event_dim)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``, in nats."""
        n = self.event_shape.numel()
        constant = math.lgamma(n / 2) - math.lgamma(n) - math.log(2.0) - n / 2 * math.log(math.pi)
        norm = torch.linalg.vector_norm(value.flatten(value.dim() - self.event_dim), dim=-1)
        log_prob = constant + n * self.rate.log() - self.rate * norm
        return log_prob.expand(torch.broadcast_shapes(log_prob.shape, self.batch_shape))

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``(*sample, *batch, *event)``."""
        batch = torch.Size(sample_shape) + self.batch_shape
        n = self.event_shape.numel()
        direction = torch.randn(*batch, n, dtype=self.rate.dtype, device=self.rate.device)
        direction = direction / torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
        norm = Gamma(self.rate.new_tensor(float(n)), self.rate, validate_args=False).sample(batch)
        return (norm[..., None] * direction).reshape(batch + self.event_shape)


@dataclass(frozen=True)
class UnsquaredNorm(WeightPrior):
    r"""``p(w) ∝ exp(-rate ‖w‖)`` for all weights of a layer together; biases are N(0, 1).

    Of points its penalty is the norm itself, that of a group lasso whose groups are the layers: a
    layer whose gradient is below the rate goes to zero as a whole, and in any other no single
    weight does. The squared norm is that of :class:`~pyroccam.models.priors.Normal`. In a
    ``guides.Conditional`` the rate is ``over="prior.rate"``, or ``kl_weight`` weighs the norm.

    Made for ``guides.Delta``. A random posterior needs ``guides.MeanField(model, local=False)``:
    there is no closed KL.

    Arguments:
        rate: of the norm, per unit of a weight. The norm has a mean of n / rate over n weights.

    References:
        Grebenkova, Bakhteev, Strijov (ICAART 2023) state a penalty of λ times the squared norm;
        their code, github.com/Intelligent-Systems-Phystech/VarHyperNet, has the norm, without
        biases.

    Example:
        >>> from pyroccam.models import priors
        >>> priors.parse_weights("unsquared-norm:0.5")
        UnsquaredNorm(rate=0.5)
    """

    words = "unsquared-norm:1"

    rate: Positive = 1.0

    def numbers(self, layer: LayerShape) -> dict[str, float]:
        return {"rate": self.rate}

    def latents(self, own: Any) -> Mapping[str, Latent]:
        weight = Latent(SphericalLaplace(own.rate, own.layer.weight))
        return {"weight": weight, **own.standard_bias()}
