"""LeNet-300-100 with log-uniform scales of groups: what local reparameterisation costs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from .. import guides, models
from ..inference import Settings
from ..models.priors.log_uniform import molchanov_kl
from .contenders import Pair, adamw, autograd, cuda_graphs, ours, ours_three, svi
from .harness import Contender, Expected, Step, Workload
from .lenet import LeNetProblem

__all__ = ["BASE", "LocalNet", "gnj"]

BASE = "torch deterministic"

SETTINGS = Settings(
    optimizer="adamw", lr=1e-4, guide_lr=1e-4, weight_decay=0.0, schedule="constant"
)

LOG_SCALE = -4.5  # of all weights and scales at the start


class _Spec:
    """What a model asks of a data set."""

    task = "classification"

    def __init__(self, problem: LeNetProblem) -> None:
        self.N, self.outputs = problem.N, problem.widths[-1]
        self.input_shape = (problem.widths[0],)


class LocalNet(nn.Module):
    """The step of a plain torch user: activations are drawn, with or without scales of groups.

    Arguments:
        net: linear layers with ReLU between them; its weights are the means.
        size: N.
        scales: multiply the inputs of each layer by scales, drawn for each example.
    """

    def __init__(self, net: nn.Sequential, size: int, *, scales: bool) -> None:
        super().__init__()
        self.size = size
        linear = [m for m in net if isinstance(m, nn.Linear)]
        self.locs = nn.ParameterList(m.weight.detach().clone() for m in linear)
        self.biases = nn.ParameterList(m.bias.detach().clone() for m in linear)
        self.log_scales = nn.ParameterList(torch.full_like(p, LOG_SCALE) for p in self.locs)
        self.log_bias_scales = nn.ParameterList(torch.full_like(p, LOG_SCALE) for p in self.biases)
        groups = [p.new_ones(p.shape[1]) for p in self.locs] if scales else []
        self.z = nn.ParameterList(groups)
        self.log_z_scales = nn.ParameterList(torch.full_like(p, LOG_SCALE) for p in groups)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The negative ELBO in nats for each observation."""
        kl = x.new_zeros(())
        for i, (loc, bias) in enumerate(zip(self.locs, self.biases, strict=True)):
            x = x if i == 0 else F.relu(x)
            if len(self.z):
                z_scale = self.log_z_scales[i].exp()
                x = x * (self.z[i] + z_scale * torch.randn_like(x))
                kl = kl + molchanov_kl(self.z[i], z_scale).sum()
            scale, bias_scale = self.log_scales[i].exp(), self.log_bias_scales[i].exp()
            variance = F.linear(x.square(), scale.square(), bias_scale.square())
            x = F.linear(x, loc, bias)
            x = x + variance.sqrt() * torch.randn_like(x)
            kl = kl + _normal_kl(loc, scale) + _normal_kl(bias, bias_scale)
        return F.cross_entropy(x, y) + kl / self.size


def _normal_kl(loc: Tensor, scale: Tensor) -> Tensor:
    """To a standard normal, summed."""
    return (0.5 * (scale.square() + loc.square() - 1.0) - scale.log()).sum()


def gnj(name: str, title: str, problem: LeNetProblem, device: torch.device) -> Workload:
    """The workload with all contenders."""
    x, y = problem.data(device)

    def pair(variances: torch.dtype | None = None) -> Pair:
        model = models.BayesianNetwork(
            problem.net(device), _Spec(problem), prior=models.priors.GroupNormalJeffreys()
        )
        local = models.LocalReparameterization(model, variance_dtype=variances)
        return model, guides.MeanField(model, scale=math.exp(LOG_SCALE), local=local).to(device)

    def deterministic() -> Step:
        net = problem.net(device)
        return autograd(
            lambda: F.cross_entropy(net(x), y), adamw(SETTINGS, [], list(net.parameters()))
        )

    def by_hand(scales: bool, **compiler: Any) -> Step:
        net = LocalNet(problem.net(device), problem.N, scales=scales)
        net.to(device)
        loss = torch.compile(net, fullgraph=True, dynamic=False, **compiler) if compiler else net
        return autograd(lambda: loss(x, y), adamw(SETTINGS, [], list(net.parameters())))

    def with_handler() -> Step:
        model, guide = pair()
        step = svi((model, guide), TraceMeanField_ELBO(max_plate_nesting=1), SETTINGS, x, y)
        handler: Any = guide.handler

        def local() -> Tensor | float:
            with handler:
                return step()

        return local

    def expected() -> Expected:
        """Activations are random: mean, and six standard deviations, of the loss over draws."""
        net = LocalNet(problem.net(device), problem.N, scales=True).to(device)
        with torch.no_grad():
            losses = torch.stack([net(x, y) for _ in range(20)]).double()
        return Expected(float(losses.mean()), 6 * float(losses.std()) + 1e-3)

    eager_noise = {"options": {"fallback_random": True}}
    rows = [
        Contender(BASE, deterministic, "the weights are numbers", same=False),
        Contender(
            "hand-written, no scales",
            lambda: by_hand(False),
            "local reparameterisation of Gaussian weights",
            same=False,
        ),
        Contender(
            "hand-written, no scales, compiled",
            lambda: by_hand(False, **eager_noise),
            "with torch's own random numbers, which are faster on a CPU",
            same=False,
            compiled=True,
        ),
        Contender("hand-written", lambda: by_hand(True), "scales for each example"),
        Contender(
            "hand-written, compiled",
            lambda: by_hand(True, **eager_noise),
            "with torch's own random numbers",
            compiled=True,
        ),
        *cuda_graphs(lambda **options: by_hand(True, **options), device),
        Contender("Pyro SVI", with_handler, "TraceMeanField_ELBO under guide.handler"),
        *ours_three(pair, SETTINGS, x, y),
        Contender(
            "pyroccam compiled, bfloat16 variances",
            lambda: ours([pair(torch.bfloat16)], SETTINGS, x, y, compile=True),
            compiled=True,
        ),
    ]
    parameters = {**asdict(problem), "settings": asdict(SETTINGS)}
    return Workload(name, title, parameters, rows, BASE, expected)
