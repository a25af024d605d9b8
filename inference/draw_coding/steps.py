"""Optimiser steps whose rows and noise are functions of a seed and their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...guides.base import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ...models.contexts import seeded
from ..training.settings import Settings
from ..training.step import TrainingStep

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["Steps", "shifted"]


def shifted(x: Tensor, most: int) -> Tensor:
    """Images, each moved by up to so many pixels in both directions, with its rim repeated.

    Arguments:
        x: ``(B, C, H, W)``.
        most: pixels.
    """
    rows, channels, height, width = x.shape
    framed = nn.functional.pad(x, (most,) * 4, mode="replicate").flatten(2)
    wide = width + 2 * most
    down, right = torch.randint(0, 2 * most + 1, (2, rows, 1, 1), device=x.device)
    at = (down + torch.arange(height, device=x.device)[:, None]) * wide
    at = at + right + torch.arange(width, device=x.device)
    return framed.gather(2, at.reshape(rows, 1, -1).expand(-1, channels, -1)).reshape(x.shape)


class Steps:
    """A number of steps of a pair, made in parts.

    What a part does depends on what has been trained, on the seed and on where it begins, so a
    training that stopped between two parts goes on as if it had not.

    Arguments:
        model, guide: the pair, which is trained in place.
        data: with the training rows.
        settings: of the optimiser, its schedule over all steps, the batch, the seed.
        total: steps.
        shift: pixels by which images are moved at random.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: NetworkGuide,
        data: Dataset,
        settings: Settings,
        total: int,
        shift: int = 0,
    ) -> None:
        self.data, self.settings, self.total = data, settings, max(total, 1)
        self.shift = shift
        self.batch = min(settings.batch_size, data.N)
        ahead = {self.batch: self.total}
        self.step = TrainingStep([(model, guide)], settings, compile=settings.compile, steps=ahead)
        self._pass, self._order = -1, torch.empty(0, dtype=torch.long)
        self.device = data.device
        with seeded(settings.seed, self.device):
            self.step.prepare(data.x_train[: self.batch], data.targets[: self.batch])

    def make(self, start: int, stop: int, kl_weight: float = 1.0) -> Tensor:
        """Make the steps with these numbers; the loss of the last, ``()``, in nats a row.

        Arguments:
            kl_weight: of the KL in the objective.
        """
        loss = torch.zeros((), device=self.device)
        for bound in self.step.bounds:
            bound.kl_weight.fill_(kl_weight)
        with seeded((self.settings.seed << 40) + start, self.device):
            for number in range(start, stop):
                rows = self._rows(number)
                x = self.data.x_train[rows]
                if self.shift:
                    x = shifted(x, self.shift)
                loss = self.step.evaluate(x, self.data.targets[rows])
                self.step.update(number / self.total)
        return loss

    def _rows(self, number: int) -> Tensor:
        """The rows of a step: passes over all of them, each in an order of its own."""
        turn, place = divmod(number, self.data.N // self.batch)
        if turn != self._pass:
            noise = torch.Generator().manual_seed((self.settings.seed << 20) + turn)
            self._order = torch.randperm(self.data.N, generator=noise).to(self.device)
            self._pass = turn
        return self._order[place * self.batch : (place + 1) * self.batch]
