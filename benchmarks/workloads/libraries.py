"""Another library for Bayesian networks, used as its documentation says.

It is no requirement: what is not installed is reported as such (``pip install -e '.[bench]'``).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from pyroccam.inference import Settings
from torch import Tensor, nn

from ..harness import Step
from .contenders import adamw, autograd

__all__ = ["bayesian_torch_step"]


def bayesian_torch_step(
    net: nn.Sequential, rho: float, size: int, settings: Settings, x: Tensor, y: Tensor
) -> Step:
    """Intel's bayesian-torch: layers that draw their weights at every call.

    Arguments:
        net: whose weights are the means at the start.
        rho: the scale of every weight at the start, before softplus.
        size: N.
        settings: of the optimiser.
        x, y: a batch.

    References:
        Krishnan, Esposito, Subedar (2022), Bayesian-Torch.
    """
    library: Any = import_module("bayesian_torch.layers")

    class Layer(library.LinearReparameterization):
        def kl_div(self, mu_q: Tensor, sigma_q: Tensor, mu_p: Tensor, sigma_p: Tensor) -> Tensor:
            """The sum over weights, where the library takes the mean."""
            mean: Tensor = super().kl_div(mu_q, sigma_q, mu_p, sigma_p)
            return mean * mu_q.numel()

    layers = nn.ModuleList()
    for part in net:
        if isinstance(part, nn.Linear):
            layer = Layer(part.in_features, part.out_features)
            with torch.no_grad():
                layer.mu_weight.copy_(part.weight)
                layer.mu_bias.copy_(part.bias)
                layer.rho_weight.fill_(rho)
                layer.rho_bias.fill_(rho)
            layers.append(layer)
    layers.to(x.device)

    def loss() -> Tensor:
        h, total = x, torch.zeros((), device=x.device)
        for i, layer in enumerate(layers):
            h, kl = layer(h if i == 0 else F.relu(h))
            total = total + kl
        return F.cross_entropy(h, y) + total / size

    return autograd(loss, adamw(settings, [], list(layers.parameters())))
