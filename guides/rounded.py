"""Points whose weights are whole numbers of a learnt step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from ..data.errors import PyroccamError
from ..models.bayesian import BayesianNetwork
from ..models.distributions.blurred import BlurredLogistics, RoundedPoint
from ..models.distributions.wrapped import base
from ..models.layers.bayesian_layer import BayesianLayer
from ..models.layers.bayesian_layer import power as powered
from ..models.priors.base import Latent
from .base import NetworkGuide, Words
from .delta import Delta, PointFactor
from .edges import StructureFamily
from .factors import Factor

__all__ = ["Rounded"]


class RoundedFactor(PointFactor):
    """A point of whole multiples of a width.

    Arguments:
        value: at the start, in the unit of the network's weights. It stays in that unit, so that
            one learning rate suits these weights and others, and a longer step makes smaller
            numbers of the same weights.
        width: of a whole number as the site has it, ``()``.
        multipliers: points ``()`` that the layer multiplies the site by, and their powers.
        noise: see :class:`~pyroccam.models.distributions.blurred.RoundedPoint`.
    """

    width: Tensor

    def __init__(
        self,
        value: Tensor,
        width: Tensor,
        multipliers: Sequence[tuple[Factor, float]],
        noise: bool,
    ) -> None:
        super().__init__()
        self.value = nn.Parameter(value.detach().clone())
        self.held, self.noise = tuple(multipliers), noise  # of other sites: no submodules
        self.register_buffer("width", width.detach().clone(), persistent=False)

    @property
    def centre(self) -> nn.Parameter:
        return self.value

    def forward(self) -> Any:
        unit = self.width
        for factor, exponent in self.held:
            unit = unit * powered(base(factor()).v, exponent)
        fn = RoundedPoint(self.value / unit, self.width, self.noise)
        return fn.to_event(self.value.dim())


class Rounded(Delta):
    r"""Weights that are whole numbers of a step, which is learnt, and as few bits as that is worth:
    entropy-penalised reparameterisation.

    For the prior :class:`~pyroccam.models.priors.Integers`. The network computes with the rounded
    weights, and gradients pass the rounding. The KL is the length of a code for the whole numbers,
    in nats: so a ``kl_weight`` of 1 is the shortest description of weights and labels together, and
    a smaller one a larger file with fewer errors.

    Arguments:
        model: a Bayesian network; weights begin where those of its network are.
        noise: the length is estimated at the unrounded weights with uniform noise, which says to a
            weight between two whole numbers which one is cheaper. Without it, it is that of the
            whole numbers themselves.
        begin: see :class:`~pyroccam.guides.Delta`; a guide of this kind, of the same model.
        structure: see :class:`~pyroccam.guides.base.NetworkGuide`.

    Raises:
        PyroccamError: for another prior of weights.
        ValueError: for a ``begin`` of other sites.

    References:
        Oktay, Ballé, Singh, Shrivastava 2020, arXiv:1906.06624.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Integers(step=0.5))
        >>> Rounded(model).steps  # 0.5 / √64
        {'1': 0.0625}
    """

    words: ClassVar[Words] = {"rounded": {}}
    free_values = varies = False

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        noise: bool = True,
        begin: NetworkGuide | None = None,
        structure: StructureFamily | None = None,
    ) -> None:
        self._noise = noise
        super().__init__(model, structure=structure)
        if begin is not None:
            self._take(model, begin)

    def arguments(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {"noise": self._noise}

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        fn = base(latent.prior)
        if isinstance(fn, BlurredLogistics):
            others = {n: one for n, one in layer.latents().items() if n not in ("weight", "bias")}
            multipliers = [
                (self.factor_of(f"{layer.name}.{other}"), one.power)
                for other, one in others.items()
                if name == "weight" or layer.covers_bias(one.prior.event_shape)
            ]
            return RoundedFactor(layer.start[name], fn.width, multipliers, self._noise)
        if name == "weight":
            raise PyroccamError(
                f"guides.{type(self).__name__} rounds weights to steps, which the prior of site "
                f"{f'{layer.name}.{name}'!r}, {type(fn).__name__}, does not have: use "
                "priors.Integers, or guides.Delta(model)."
            )
        return super().factor(layer, name, latent)

    def _take(self, model: BayesianNetwork, other: NetworkGuide) -> None:
        if type(other) is not type(self) or other.sites != self.sites:
            raise PyroccamError(
                f"begin= is a guides.{type(other).__name__} of "
                f"{'the same' if other.sites == self.sites else 'another'} network.\n"
                f"Expected a guides.{type(self).__name__} of the same."
            )
        for name, value in other.state_dict().items():
            if value.shape != (own := self.state_dict()[name]).shape:
                raise PyroccamError(
                    f"begin= has {name} of shape {tuple(value.shape)}, expected "
                    f"{tuple(own.shape)}.\nGive a guide of a network of the same sizes."
                )
        self.load_state_dict(other.state_dict())
        self.take_edges(model, other)

    @property
    def steps(self) -> dict[str, float]:
        """The step of each layer, as the network has its weights."""
        return {
            site.removesuffix(".step"): float(self.posterior(site).v.detach())
            for site in self.sites
            if site.endswith(".step")
        }
