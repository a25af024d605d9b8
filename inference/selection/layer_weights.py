"""A weight of the KL for each layer, as hyperparameters of the bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...models import BayesianNetwork, Weighing
from ..elbo import Bound, EnumMeanFieldELBO, Terms


class WeighedBound(Bound):
    r"""The bound of a pair with a weight of its own for the KL of each layer,

    .. math:: E_q \log p(y \mid w) - \sum_l λ_l \, KL_l, \qquad KL_l = KL(q(w_l) \,\|\, p(w_l))

    whose logarithms are parameters beside those of the pair. Latents that are of no layer, such as
    random structure, have the weight 1.
    """

    def __init__(self, model: BayesianNetwork, guide: Any) -> None:
        super().__init__(model, guide, EnumMeanFieldELBO())
        weights = [nn.ParameterDict({"log_kl_weight": torch.zeros(())}) for _ in model.layers]
        self.weights = nn.ModuleList(weights).to(next(guide.parameters()))
        self._names = tuple(model.layers)
        self._layers = {site: layer.name for site, (layer, _) in model.sites.items()}
        # Around the handler of the guide, which the bound finds in place.
        self._weighing = Weighing(self._layers, guide.handler)

    def terms(self, *args: Tensor) -> Terms:
        """One evaluation, with the KL of each layer times its weight in ``kl``."""
        of_layers = self._values()
        with self._weighing as weighing:
            weighing.take_each({site: of_layers[name] for site, name in self._layers.items()})
            return super().terms(*args)

    def _values(self) -> dict[str, Tensor]:
        logs: list[Any] = [own.log_kl_weight for own in self.weights]
        return {name: log.exp() for name, log in zip(self._names, logs, strict=True)}

    def values(self) -> dict[str, float]:
        return {name: float(value.detach()) for name, value in self._values().items()}
