"""Points with weights that stay at zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from ..data.errors import PyroccamError
from ..models.bayesian import BayesianNetwork
from .base import NetworkGuide
from .delta import Delta, DeltaFactor

__all__ = ["Pruned", "masked_points"]


class PrunedFactor(DeltaFactor):
    """A point, zero where it is not kept; there it has no gradient.

    Arguments:
        value: at the start.
        kept: of its shape, bool.
    """

    kept: Tensor

    def __init__(self, value: Tensor, kept: Tensor) -> None:
        super().__init__(value)
        self.register_buffer("kept", kept.detach().to(value.device).clone())

    def forward(self) -> Any:
        return dist.Delta(masked_points(self.value, self.kept), event_dim=self.value.dim())


def masked_points(value: Tensor, kept: Tensor) -> Tensor:
    """``value`` with zeros, which have no sign, where it is not kept."""
    return torch.where(kept, value, torch.zeros_like(value))


class Pruned(Delta):
    r"""The weights of highest posterior density among those that are zero where a mask says so.

    Arguments:
        model: a Bayesian network; weights begin where those of its network are.
        kept: masks, ``True`` for weights that are kept, of the shape of the weight, by the name of
            the layer. Layers that are not named keep all; biases and scales are never masked.
        begin: see :class:`~pyroccam.guides.Delta`.

    Raises:
        PyroccamError: for a mask that is not one of bools, or a prior as for ``Delta``.
        ValueError: for a layer that does not exist or a mask of another shape.

    References:
        Han, Pool, Tran, Dally 2015, arXiv:1506.02626: what is left is trained further from where it
        is, not from new random values.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> guide = Pruned(model, {"1": net[1].weight.abs() > 0.1})
        >>> int(guide.posterior("1.weight").v.count_nonzero()) == guide.nonzero["1"]
        True
    """

    free_values = varies = False

    def __init__(
        self,
        model: BayesianNetwork,
        kept: Mapping[str, Tensor] | None = None,
        *,
        begin: NetworkGuide | None = None,
    ) -> None:
        super().__init__(model, begin=begin)
        kept = {} if kept is None else kept
        self.put({name: self._pruned(name, mask) for name, mask in kept.items()})
        self._masked = list(kept)

    def arguments(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {"kept": {names.get(n, n): self.weights_of(n).kept for n in self._masked}}

    def _pruned(self, layer: str, mask: Tensor) -> PrunedFactor:
        value = self.values_of(layer)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise PyroccamError(
                f"The mask of layer {layer!r} must be a tensor of bools, got {found}."
            )
        if mask.shape != value.shape:
            raise PyroccamError(
                f"The mask of layer {layer!r} has shape {tuple(mask.shape)}, expected the shape of "
                f"its weight, {tuple(value.shape)}."
            )
        return PrunedFactor(value, mask)

    @property
    def nonzero(self) -> dict[str, int]:
        """Weights that are kept, by layer; those that are not masked are not among them."""
        return {name: int(self.weights_of(name).kept.sum()) for name in self._masked}
