"""Ladders of models, of which the evidence is to choose one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from pyroccam.data import Dataset
from pyroccam.models import BayesianNetwork, Regression
from pyroccam.models.priors import Normal
from torch import Tensor, nn

__all__ = ["LADDERS", "Ladder"]

ROWS, TEST = 40, 2000


@dataclass(frozen=True)
class Ladder:
    """Models of one data set, from small to large.

    Attributes:
        says: what is chosen.
        members: names, from small to large.
        draw: inputs and targets of so many rows.
        net: the network of a member.
        inputs: from inputs of the data to those of a member.
        noise: standard deviation of the targets, which is known; ``None`` for classes.
    """

    says: str
    members: tuple[str, ...]
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    net: Callable[[str], nn.Module]
    inputs: Callable[[Tensor, str], Tensor] = lambda x, member: x
    noise: float | None = None

    def build(self, member: str, seed: int) -> tuple[BayesianNetwork, Dataset]:
        """The model of a member, and the data of a seed, which all members share."""
        generator = torch.Generator().manual_seed(seed)
        x, y = self.draw(ROWS + TEST, generator)
        x = self.inputs(x, member)
        rows = Dataset.from_tensors(
            x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:], val_fraction=0.0, standardise=False
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = self.net(member)
        likelihood = None if self.noise is None else Regression(1, scale=self.noise, floor=0.0)
        model = BayesianNetwork(net, rows, prior=Normal(1.0), likelihood=likelihood)
        model.likelihood.requires_grad_(False)
        return model, rows


class Columns(nn.Module):
    """The first columns of the inputs."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.count]


class Ones(nn.Module):
    """A one for each row, whatever the inputs are."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x[:, :1])


def _cubic(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = 2 * torch.rand(rows, 1, generator=generator) - 1
    noise = 0.3 * torch.randn(rows, 1, generator=generator)
    return x, 0.5 - 1.5 * x + 2.0 * x**3 + noise


def _wave(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = 4 * torch.rand(rows, 1, generator=generator) - 2
    return x, torch.sin(2 * x) + 0.3 * torch.randn(rows, 1, generator=generator)


def _corners(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two classes in opposite corners of a square, which no line parts."""
    x = 4 * torch.rand(rows, 2, generator=generator) - 2
    logits = 3.0 * x[:, 0] * x[:, 1]
    return x, (torch.rand(rows, generator=generator) < logits.sigmoid()).long()


def _one_of_eleven(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The toy of the thesis: only the first of eleven inputs counts (structure.md 1.8)."""
    x = torch.randn(rows, 11, generator=generator)
    return x, x[:, :1].tanh() + 0.5 * torch.randn(rows, 1, generator=generator)


def _hidden(layers: int, inputs: int, width: int, outputs: int) -> nn.Module:
    sizes = [inputs, *[width] * layers]
    parts: list[nn.Module] = []
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*parts, nn.Linear(sizes[-1], outputs))


def _alternative(member: str) -> nn.Module:
    if member == "constant":
        return nn.Sequential(Ones(), nn.Linear(1, 1, bias=False))
    count = 1 if member == "one input" else 11
    return nn.Sequential(Columns(count), nn.Linear(count, 1), nn.Tanh())


LADDERS = {
    "degree": Ladder(
        "degree of a polynomial; three made the data",
        tuple(map(str, range(1, 8))),
        _cubic,
        lambda member: nn.Sequential(nn.Linear(int(member), 1)),
        lambda x, member: torch.cat([x**k for k in range(1, int(member) + 1)], 1),
        noise=0.3,
    ),
    "width": Ladder(
        "units of one hidden layer, for a wave",
        ("1", "2", "3", "5", "10"),
        _wave,
        lambda member: _hidden(1, 1, int(member), 1),
        noise=0.3,
    ),
    "depth": Ladder(
        "hidden layers of four units, for two classes in opposite corners",
        ("0", "1", "2", "3"),
        _corners,
        lambda member: _hidden(int(member), 2, 4, 2),
    ),
    "structure": Ladder(
        "a constant, or tanh of one or of all of eleven inputs; one made the data",
        ("constant", "one input", "all inputs"),
        _one_of_eleven,
        _alternative,
        noise=0.5,
    ),
}
