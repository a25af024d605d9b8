"""LeNets with log-uniform scales of groups: what local reparameterisation costs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pyro.infer import TraceMeanField_ELBO
from pyroccam import guides, models
from pyroccam.inference import Settings
from pyroccam.models.distributions.log_uniform import molchanov_kl
from pyroccam.models.networks.plain import PLAIN
from torch import Tensor, nn

from ..harness import Contender, Expected, Step, Workload
from .contenders import (
    Pair,
    adamw,
    around_the_graph,
    cuda_graphs,
    expected_loss,
    hand_written,
    in_bfloat16,
    ours_three,
    plain,
    random_images,
    svi,
)
from .lenet import LeNetProblem
from .with_jax import local_step

__all__ = ["BASE", "ImageProblem", "LocalNet", "deterministic", "gnj"]

BASE = "torch deterministic"

SETTINGS = Settings(
    optimizer="adamw", lr=1e-4, guide_lr=1e-4, weight_decay=0.0, schedule="constant"
)

LOG_SCALE = -4.5  # of all weights and scales at the start


@dataclass(frozen=True)
class ImageProblem:
    """A ready network on random images of 28 x 28 and ten classes."""

    network: str = "lenet-5-caffe"
    batch: int = 128
    N: int = 60_000
    input_shape: tuple[int, ...] = (1, 28, 28)
    outputs: int = 10
    task: ClassVar[str] = "classification"

    def data(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images ``(B, 1, 28, 28)`` and labels ``(B,)``."""
        return random_images((self.batch, *self.input_shape), self.outputs, device)

    def net(self, device: torch.device) -> nn.Sequential:
        """The same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made: Any = PLAIN[self.network](self.input_shape, self.outputs)
        return made.to(device)


Problem = LeNetProblem | ImageProblem


class LocalLayer(nn.Module):
    """A layer whose outputs are drawn, as a plain torch user writes it; leaves its KL behind.

    Arguments:
        layer: linear or a 2-d convolution without padding; its weights are the means.
        scales: multiply the inputs of a linear layer, the outputs of a convolution, by scales that
            are drawn for each example.
    """

    kl: Tensor

    def __init__(self, layer: nn.Linear | nn.Conv2d, *, scales: bool) -> None:
        super().__init__()
        self.run = F.linear if isinstance(layer, nn.Linear) else F.conv2d
        self.loc = nn.Parameter(layer.weight.detach().clone())
        assert layer.bias is not None
        self.bias = nn.Parameter(layer.bias.detach().clone())
        self.log_scale = nn.Parameter(torch.full_like(self.loc, LOG_SCALE))
        self.log_bias_scale = nn.Parameter(torch.full_like(self.bias, LOG_SCALE))
        self.scales, self.linear = scales, isinstance(layer, nn.Linear)
        if scales:
            self.z = nn.Parameter(self.loc.new_ones(self.loc.shape[1 if self.linear else 0]))
            self.log_z_scale = nn.Parameter(torch.full_like(self.z, LOG_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        scale, bias_scale = self.log_scale.exp(), self.log_bias_scale.exp()
        self.kl = _normal_kl(self.loc, scale) + _normal_kl(self.bias, bias_scale)
        z: Tensor | None = None
        if self.scales:
            z_scale = self.log_z_scale.exp()
            z = self.z + z_scale * torch.randn(len(x), len(self.z), device=x.device)
            self.kl = self.kl + molchanov_kl(self.z, z_scale).sum()
        if z is not None and self.linear:
            x = x * z
        variance = self.run(x.square(), scale.square(), bias_scale.square())
        x = self.run(x, self.loc, self.bias)
        x = x + variance.sqrt() * torch.randn_like(x)
        return x if z is None or self.linear else x * z[:, :, None, None]


class LocalNet(nn.Module):
    """The negative ELBO of a plain torch user.

    Arguments:
        net: layers in a row.
        size: N.
        scales: see :class:`LocalLayer`.
    """

    def __init__(self, net: nn.Sequential, size: int, *, scales: bool) -> None:
        super().__init__()
        self.size = size
        parts = [
            LocalLayer(m, scales=scales) if isinstance(m, nn.Linear | nn.Conv2d) else m for m in net
        ]
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss in nats for each observation."""
        out = self.parts(x)
        kl = torch.stack([m.kl for m in self.parts if isinstance(m, LocalLayer)]).sum()
        return F.cross_entropy(out, y) + kl / self.size


def _normal_kl(loc: Tensor, scale: Tensor) -> Tensor:
    """KL to a standard normal, summed."""
    return (0.5 * (scale.square() + loc.square() - 1.0) - scale.log()).sum()


def deterministic(problem: Problem, device: torch.device) -> Step:
    """The step of the plain network, as a torch user writes it."""
    net = problem.net(device)
    return plain(net, adamw(SETTINGS, [], list(net.parameters())), *problem.data(device))


def gnj(name: str, title: str, problem: Problem, device: torch.device) -> Workload:
    """The workload with all contenders."""
    x, y = problem.data(device)

    def pair() -> Pair:
        model = models.BayesianNetwork(
            problem.net(device), problem, prior=models.priors.GroupNormalJeffreys()
        )
        return model, guides.MeanField(model, scale=math.exp(LOG_SCALE)).to(device)

    def by_hand(scales: bool, **compiler: Any) -> Step:
        net = LocalNet(problem.net(device), problem.N, scales=scales).to(device)
        optimizer = adamw(SETTINGS, [], list(net.parameters()))
        return hand_written(net, optimizer, x, y, **compiler)

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
        return expected_loss(net, x, y, sds=6, more=1e-3)

    eager_noise = {"options": {"fallback_random": True}}
    rows = [
        Contender(
            BASE, lambda: deterministic(problem, device), "the weights are numbers", same=False
        ),
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
        around_the_graph(pair, SETTINGS, x, y),
        *in_bfloat16(pair, SETTINGS, x, y, lambda: deterministic(problem, device)),
    ]
    if isinstance(problem, LeNetProblem) and device.type == "cpu":

        def in_jax() -> Step:
            net = LocalNet(problem.net(device), problem.N, scales=True)
            layers = [dict(m.named_parameters()) for m in net.parts if isinstance(m, LocalLayer)]
            return local_step(layers, problem.N, SETTINGS, x, y)

        rows.append(Contender("JAX by hand", in_jax, "scales for each example", compiled=True))
    parameters = {**asdict(problem), "settings": asdict(SETTINGS)}
    return Workload(name, title, parameters, rows, BASE, expected)
