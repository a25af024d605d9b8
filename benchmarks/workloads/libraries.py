"""Other libraries for Bayesian networks, used as their documentation says.

They are not requirements: what is not installed is reported as such, and
``pip install -e '.[bench]'`` installs both.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.optim import PyroOptim
from pyroccam.inference import Settings
from torch import Tensor, nn

from ..harness import Step
from .contenders import adamw, autograd

__all__ = ["bayesian_torch_step", "tyxe_step"]


def tyxe_step(
    net: nn.Sequential, scale: float, size: int, settings: Settings, x: Tensor, y: Tensor
) -> Step:
    """TyXe's variational network on top of Pyro.

    Arguments:
        net: whose weights are the means at the start.
        scale: of every weight at the start.
        size: N.
        settings: of the optimiser.
        x, y: a batch.

    References:
        Ritter, Karaletsos (2022), TyXe: Pyro-based Bayesian neural nets for PyTorch.
    """
    tyxe: Any = import_module("tyxe")
    means = tyxe.guides.PretrainedInitializer.from_net(net)
    bnn: Any = tyxe.VariationalBNN(
        net,
        tyxe.priors.IIDPrior(
            dist.Normal(torch.zeros((), device=x.device), torch.ones((), device=x.device))
        ),
        tyxe.likelihoods.Categorical(dataset_size=size),
        functools.partial(tyxe.guides.AutoNormal, init_loc_fn=means, init_scale=scale),
    )
    optim = PyroOptim(
        torch.optim.AdamW, {"lr": settings.guide_lr, "weight_decay": 0.0, "fused": True}
    )
    losses: list[float] = []

    def keep(bnn: Any, epoch: int, loss: float) -> None:
        losses[:] = [loss]

    def step() -> float:
        bnn.fit([(x, y)], optim, 1, callback=keep)
        return losses[0] / size

    return step


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
