"""LeNet-300-100 with Gaussian weights: a pair as a Pyro user writes it, and its competitors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.infer import TraceMeanField_ELBO
from pyroccam.guides.base import Guide
from pyroccam.inference import Settings
from pyroccam.models import Classification
from pyroccam.models.base import Model
from torch import Tensor, nn

from ..harness import Contender, Expected, Step, Workload
from .contenders import (
    Pair,
    adamw,
    around_the_graph,
    compiled_by_hand,
    expected_loss,
    hand_written,
    in_bfloat16,
    ours_three,
    plain,
    random_images,
    svi,
)
from .libraries import bayesian_torch_step
from .with_jax import numpyro_step

__all__ = ["BASE", "GaussianLeNet", "GaussianWeights", "HandWritten", "LeNetProblem", "lenet"]

BASE = "hand-written eager"

SETTINGS = Settings(lr=1e-4, guide_lr=1e-4, weight_decay=0.0, schedule="constant")

RHO = -4.0  # the scale of a weight is softplus(rho) at the start


@dataclass(frozen=True)
class LeNetProblem:
    """Widths of the layers, batch and rows of the data set."""

    widths: tuple[int, ...] = (784, 300, 100, 10)
    batch: int = 128
    N: int = 60_000
    task: ClassVar[str] = "classification"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.widths[0],)

    @property
    def outputs(self) -> int:
        return self.widths[-1]

    def data(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Random images ``(B, inputs)`` and labels ``(B,)``."""
        return random_images((self.batch, self.widths[0]), self.widths[-1], device)

    def net(self, device: torch.device) -> nn.Sequential:
        """The plain network whose weights are the means; the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            parts: list[nn.Module] = []
            for a, b in zip(self.widths, self.widths[1:], strict=False):
                parts += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*parts[:-1]).to(device)

    def pair(self, device: torch.device) -> Pair:
        """Model and guide."""
        means = self.net(device).state_dict()
        shapes = {name: value.shape for name, value in means.items()}
        model = GaussianLeNet(shapes, self.N, self.outputs)
        return model.to(device), GaussianWeights(model, means, RHO).to(device)


class GaussianLeNet(Model):
    """A perceptron whose weights and biases are standard normal a priori.

    Arguments:
        shapes: of the parameters by site, ``0.weight``, ``0.bias``, ``2.weight``, ...
        size: N.
        outputs: C.
    """

    def __init__(self, shapes: dict[str, torch.Size], size: int, outputs: int) -> None:
        super().__init__()
        self.shapes, self.likelihood = shapes, Classification(outputs)
        self.size = size
        self.zero: Tensor
        self.one: Tensor
        self.register_buffer("zero", torch.zeros(()))
        self.register_buffer("one", torch.ones(()))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        drawn = {
            name: pyro.sample(
                name, dist.Normal(self.zero, self.one).expand(shape).to_event(len(shape))
            )
            for name, shape in self.shapes.items()
        }
        logits = _perceptron(x, list(drawn.values()))
        with pyro.plate("data", self.size, subsample=x):
            return pyro.sample("y", dist.Categorical(logits=logits), obs=y)


class GaussianWeights(Guide):
    """Independent Gaussians: a mean and ``softplus(rho)`` as scale for every weight.

    Arguments:
        model: that it is for.
        means: by site, to start from.
        rho: of all weights at the start.
    """

    def __init__(self, model: GaussianLeNet, means: dict[str, Tensor], rho: float) -> None:
        super().__init__(model)
        self.sites = list(means)
        for i, mean in enumerate(means.values()):
            self.register_parameter(f"loc{i}", nn.Parameter(mean.clone()))
            self.register_parameter(f"rho{i}", nn.Parameter(torch.full_like(mean, rho)))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        for i, site in enumerate(self.sites):
            loc, rho = getattr(self, f"loc{i}"), getattr(self, f"rho{i}")
            pyro.sample(site, dist.Normal(loc, F.softplus(rho)).to_event(loc.dim()))


class HandWritten(nn.Module):
    """The same in plain torch."""

    def __init__(self, net: nn.Sequential, size: int) -> None:
        super().__init__()
        self.locs = nn.ParameterList(p.detach().clone() for p in net.parameters())
        self.rhos = nn.ParameterList(torch.full_like(p, RHO) for p in net.parameters())
        self.size = size

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The negative ELBO in nats for each observation, weights drawn once for the batch."""
        drawn = []
        kl = torch.zeros((), device=x.device)
        for loc, rho in zip(self.locs, self.rhos, strict=True):
            scale = F.softplus(rho)
            drawn.append(loc + scale * torch.randn_like(loc))
            kl = kl + (0.5 * (scale.square() + loc.square() - 1.0) - scale.log()).sum()
        return F.cross_entropy(_perceptron(x, drawn), y) + kl / self.size


def _perceptron(x: Tensor, parameters: list[Tensor]) -> Tensor:
    """Linear layers with ReLU between them; weights and biases in turn."""
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    for i, (weight, bias) in enumerate(layers):
        x = F.linear(x if i == 0 else F.relu(x), weight, bias)
    return x


def lenet(name: str, title: str, problem: LeNetProblem, device: torch.device) -> Workload:
    """The workload with all contenders."""
    x, y = problem.data(device)

    def pair() -> Pair:
        return problem.pair(device)

    def deterministic() -> Step:
        net = problem.net(device)
        return plain(net, adamw(SETTINGS, [], list(net.parameters())), x, y)

    def by_hand(**compiler: Any) -> Step:
        net = HandWritten(problem.net(device), problem.N)
        optimizer = adamw(SETTINGS, [], list(net.parameters()))
        return hand_written(net, optimizer, x, y, **compiler)

    def expected() -> Expected:
        """The weights are random: mean, and five standard deviations, of the loss over draws."""
        return expected_loss(HandWritten(problem.net(device), problem.N), x, y, sds=5)

    scale = math.log1p(math.exp(RHO))
    rows = [
        Contender("torch deterministic", deterministic, "the weights are numbers", same=False),
        Contender(BASE, by_hand),
        *compiled_by_hand(by_hand, device),
        Contender(
            "hand-written compiled, eager noise",
            lambda: by_hand(options={"fallback_random": True}),
            "the same with the option fallback_random: torch's own random numbers, not Inductor's",
            compiled=True,
        ),
        Contender(
            "Pyro SVI",
            lambda: svi(pair(), TraceMeanField_ELBO(max_plate_nesting=1), SETTINGS, x, y),
            "TraceMeanField_ELBO and pyro.optim.AdamW (fused); validation off",
        ),
        *ours_three(pair, SETTINGS, x, y),
        around_the_graph(pair, SETTINGS, x, y),
        *in_bfloat16(pair, SETTINGS, x, y, deterministic),
        Contender(
            "bayesian-torch",
            lambda: bayesian_torch_step(problem.net(device), RHO, problem.N, SETTINGS, x, y),
            "LinearReparameterization; its KL is a mean over weights, here times their number",
        ),
        Contender(
            "NumPyro",
            lambda: numpyro_step(problem.net(device), scale, problem.N, SETTINGS, x, y),
            "SVI.update under jax.jit; TraceMeanField_ELBO and Adam",
            compiled=True,
        ),
    ]
    parameters = {**asdict(problem), "settings": asdict(SETTINGS)}
    return Workload(name, title, parameters, rows, BASE, expected)
