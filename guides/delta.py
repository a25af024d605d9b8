"""Point estimates of random tensors: maximum a posteriori."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

from ..data.errors import PyroccamError
from ..models.bayesian import BayesianNetwork
from ..models.checks import unknown_name
from ..models.distributions.wrapped import base
from ..models.layers.bayesian_layer import BayesianLayer
from ..models.layers.bayesian_layer import power as powered
from ..models.priors.base import Latent
from .base import NetworkGuide, Words, key
from .edges import StructureFamily
from .factors import Factor
from .mean_field import relaxed, start

__all__ = ["Delta", "DeltaFactor", "PointFactor"]


class PointFactor(Factor):
    """A posterior of one value."""

    is_point = True
    no_density = "q is a point, which has no density"

    def moments(self, power: float) -> tuple[Tensor, Tensor]:
        value = powered(base(self()).v, power)
        return value, value.square()


class DeltaFactor(PointFactor):
    """A point.

    Arguments:
        value: at the start, unconstrained.
        support: of the site.
    """

    def __init__(self, value: Tensor, support: Any = constraints.real) -> None:
        super().__init__()
        self.value = nn.Parameter(value.detach().clone())
        self.transform = transform_to(support)

    @property
    def centre(self) -> nn.Parameter:
        return self.value

    def forward(self) -> Any:
        return dist.Delta(self.transform(self.value), event_dim=self.value.dim())


class Delta(NetworkGuide):
    r"""The weights of highest posterior density: every site has one value.

    Maximises :math:`\log p(y \mid w) + \log p(w)`, in the coordinates of the sites (a mode depends
    on them: that of a scale is not that of its logarithm). What the ``kl_weight`` of a fit
    multiplies is :math:`\log p(w)`.

    Arguments:
        model: a Bayesian network; weights begin where those of its network are.
        begin: a guide of points, of a model with the same sites: to begin at its values instead,
            and with its posterior of structure.
        structure: posterior of random structure, see
            :class:`~pyroccam.guides.base.NetworkGuide`; a point only if asked for.

    Raises:
        PyroccamError: for a prior whose density is unbounded, where the mode is no estimate.
        ValueError: for a ``begin`` of other sites.
    """

    words: ClassVar[Words] = {"delta": {}}
    free_values = True
    varies = True

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        begin: NetworkGuide | None = None,
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__(model, local=False, scales="batch", structure=structure)
        self.build(model)
        if begin is not None:
            self._begin(begin)
            self.take_edges(model, begin)

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        if latent.unbounded or relaxed(latent.prior) is not None:  # a gate is densest at its ends
            raise PyroccamError(
                f"guides.{type(self).__name__} cannot estimate site {f'{layer.name}.{name}'!r} by "
                f"its mode: the density of {type(base(latent.prior)).__name__} is infinite there, "
                "whatever the data. Use guides.MeanField."
            )
        value, _ = start(layer, name, latent)
        support = latent.prior.support
        return DeltaFactor(value, getattr(support, "base_constraint", support))

    def _begin(self, other: NetworkGuide) -> None:
        if other.sites != self.sites:
            odd = sorted({*other.sites} ^ {*self.sites})
            raise PyroccamError(f"begin= is a guide of another network (sites such as {odd[:1]}).")
        with torch.no_grad():
            for site in self.sites:
                factor: Any = self.factors[key(site)]
                value = factor.transform.inv(other.posterior(site).v)
                if value.shape != factor.value.shape:
                    raise PyroccamError(
                        f"begin= has a value of shape {tuple(value.shape)} for site {site!r}, "
                        f"expected {tuple(factor.value.shape)}: it is of another network."
                    )
                factor.value.copy_(value)

    def values_of(self, layer: str) -> Tensor:
        """The weights of a layer, which may be any real numbers, so that they can be zero.

        Raises:
            PyroccamError: if there is no such layer.
            TypeError: for a prior of weights that are not real numbers.
        """
        site = f"{layer}.weight"
        if site not in self.sites:
            layers = [
                name.removesuffix(".weight") for name in self.sites if name.endswith("weight")
            ]
            raise PyroccamError(unknown_name("Bayesian layer", layer, layers))
        factor: Any = self.factors[key(site)]
        if not isinstance(factor.transform, type(transform_to(constraints.real))):
            raise PyroccamError(
                f"guides.{type(self).__name__} sets weights to zero, which the prior of site "
                f"{site!r} does not allow. Use guides.Delta."
            )
        value: Tensor = factor.value
        return value.detach()

    def weights_of(self, layer: str) -> Any:
        """The factor of the weights of a layer."""
        return self.factor_of(f"{layer}.weight")

    def put(self, factors: Mapping[str, Factor]) -> None:
        """Other factors for the weights of layers, by the names of the layers."""
        for layer, factor in factors.items():
            self.factors[key(f"{layer}.weight")] = factor
