"""Blocks are coded one after another, while what is not yet coded trains on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...guides import MeanKL
from ...models import BayesianNetwork
from ..coding import Code, Target
from .phases import Phase


class Sending(Phase):
    """Codes the blocks of a pair one after another, with some steps after each.

    Everything random is a function of the seed and the number of the block: the candidates, the
    choice among them, and the rows and the noise of the steps after it. The prior stays as it is
    from now on, as the receiver will have it.

    Attributes:
        indices: of the candidates, one of each block.
        kl: of each block when it was coded, in nats.
        distances: mean squared distance of what was sent of a block to the means of its posterior,
            in variances: 1 for draws of it.
    """

    name = "coding"
    every = 100
    remembered = ("indices", "kl", "distances")

    def __init__(
        self,
        model: BayesianNetwork,
        guide: MeanKL,
        *data: Any,
        code: Code,
        bits: int,
        seed: int,
        **training: Any,
    ) -> None:
        super().__init__(model, guide, *data, units=len(guide.weights.known), **training)
        self.posterior = guide.weights
        self.code, self.bits, self.seed = code, bits, seed
        self.sizes = (~guide.weights.empty).sum(1).tolist()
        self.indices: list[int] = []
        self.kl: list[float] = []
        self.distances: list[float] = []

    def unit(self, number: int, kl_weight: float = 1.0) -> Tensor:
        self.send(number)
        return torch.zeros(()) if number == self.units - 1 else super().unit(number)

    @torch.no_grad()
    def send(self, block: int) -> None:
        """Choose the candidate of a block; its weights have their values from now on."""
        size = self.sizes[block]
        loc, scale = (
            part[block, :size].double().cpu().numpy() for part in self.posterior.in_blocks()
        )
        target = Target(loc, scale, self.seed, block)
        noise = np.random.default_rng([self.settings.seed, block])
        index = self.code.choose(target, self.bits, noise)
        values = target.value(index)
        self.posterior.know(block, torch.from_numpy(values))
        self.indices.append(index)
        self.kl.append(target.kl)
        self.distances.append(float((((values - loc) / scale) ** 2).mean()))
