"""Trainings in parts, which stop and go on: rows and noise depend on a seed and on step numbers.

A posterior is brought to a KL; it is divided into blocks; these are coded one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from ...guides import MeanKL, NetworkGuide
from ...models import BayesianNetwork, seeded
from ...models.distributions import base
from ..coding import Target
from ..storage import CHECKPOINT, CheckpointError, load_checkpoint, save_checkpoint
from ..training import FitProgress, Interrupted, Settings, StopSignal, TrainingStep

if TYPE_CHECKING:
    from ...data import Dataset


def shifted(x: Tensor, most: int) -> Tensor:
    """Images ``(B, C, H, W)``, each moved by up to so many pixels, with its rim repeated."""
    rows, channels, height, width = x.shape
    framed = nn.functional.pad(x, (most,) * 4, mode="replicate").flatten(2)
    wide = width + 2 * most
    down, right = torch.randint(0, 2 * most + 1, (2, rows, 1, 1), device=x.device)
    at = (down + torch.arange(height, device=x.device)[:, None]) * wide
    at = at + right + torch.arange(width, device=x.device)
    return framed.gather(2, at.reshape(rows, 1, -1).expand(-1, channels, -1)).reshape(x.shape)


@dataclass(frozen=True)
class Run:
    """How all phases are run."""

    out: Path | None
    progress: bool | None
    stop: StopSignal
    asked: dict[str, Any]


class Phase:
    """A training of a pair in units, after each of which it may stop; of blocks with a KL each,
    before the first is coded, it is all that there is to do.

    What a unit does depends on what has been trained, on the seed and on where it begins, so a
    training that stopped between two goes on as if it had not.
    """

    name = "blocks"
    every = 5
    remembered: tuple[str, ...] = ()  # attributes, beside parameters and optimiser

    def __init__(
        self,
        model: BayesianNetwork,
        guide: NetworkGuide,
        data: Dataset,
        settings: Settings,
        *,
        total: int,
        units: int,
        shift: int = 0,
    ) -> None:
        self.model, self.guide, self.data, self.settings = model, guide, data, settings
        self.total, self.units, self.shift, self.done = max(total, 1), units, shift, 0
        self.batch = min(settings.batch_size, data.N)
        ahead = {self.batch: self.total}
        self.step = TrainingStep([(model, guide)], settings, compile=settings.compile, steps=ahead)
        self._pass, self._order = -1, torch.empty(0, dtype=torch.long)
        self.device = data.device
        with seeded(settings.seed, self.device):
            self.step.prepare(data.x_train[: self.batch], data.targets[: self.batch])

    def unit(self, number: int, kl_weight: float = 1.0) -> Tensor:
        """Make the steps of a unit; the loss of the last, ``()``, in nats a row."""
        start, stop = (n * self.total // self.units for n in (number, number + 1))
        loss = torch.zeros((), device=self.device)
        for bound in self.step.bounds:
            bound.kl_weight.fill_(kl_weight)
        with seeded((self.settings.seed << 40) + start, self.device):
            for step in range(start, stop):
                rows = self._rows(step)
                x = self.data.x_train[rows]
                if self.shift:
                    x = shifted(x, self.shift)
                loss = self.step.evaluate(x, self.data.targets[rows])
                self.step.update(step / self.total)
        return loss

    def _rows(self, number: int) -> Tensor:
        """The rows of a step: passes over all of them, each in an order of its own."""
        turn, place = divmod(number, self.data.N // self.batch)
        if turn != self._pass:
            noise = torch.Generator().manual_seed((self.settings.seed << 20) + turn)
            self._order = torch.randperm(self.data.N, generator=noise).to(self.device)
            self._pass = turn
        return self._order[place * self.batch : (place + 1) * self.batch]

    def run(self, how: Run) -> None:
        """Do all that are left."""
        folder = None if how.out is None else how.out / self.name
        if folder is not None and (folder / CHECKPOINT).exists():
            self._load(folder, how.asked)
        self.model.train()
        with FitProgress(self.name, self.units, how.progress, self.done) as bar:
            while self.done < self.units:
                loss = self.unit(self.done)
                self.done += 1
                bar.step(self.done, loss.reshape(1), 1.0)
                if folder and (how.stop or self.done % self.every == 0 or self.done == self.units):
                    self._save(folder, how.asked)
                if how.stop:
                    raise Interrupted(
                        f"Stopped after {self.done} of {self.units} parts of {self.name}"
                        + ("; resume goes on." if folder else ".")
                    )
        self.step.release()
        self.model.eval()

    def _save(self, folder: Path, asked: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        own = {name: getattr(self, name) for name in self.remembered}
        state = {"asked": asked, "done": self.done, **own}
        state |= {"model": self.model.state_dict(), "guide": self.guide.state_dict()}
        save_checkpoint(folder, state | {"optimizer": self.step.optimizer.state_dict()})

    def _load(self, folder: Path, asked: dict[str, Any]) -> None:
        state = load_checkpoint(folder, self.device)
        assert state is not None
        then = state["asked"]
        if changed := [name for name, value in asked.items() if then.get(name) != value]:
            name = changed[0]
            raise CheckpointError(
                f"{folder} was begun with {name}={then.get(name)!r}", repr(asked[name])
            )
        try:
            self.model.load_state_dict(state["model"])
            self.guide.load_state_dict(state["guide"])
            self.step.load_optimizer(state["optimizer"])
            for name in self.remembered:
                setattr(self, name, state[name])
        except (RuntimeError, KeyError, ValueError) as error:
            raise CheckpointError(f"{folder} is of another network, or budget") from error
        self.done = int(state["done"])


_LEAST, _MOST = 1e-3, 1e3  # the weight of the KL stays between
_DEAD = 0.02  # part of the budget by which the KL may miss it


class Budgeted(Phase):
    r"""Trains a pair to a KL, by the weight β of the KL in

    .. math:: -E_q \log p(y \mid w) + β \, KL(q \| p).

    After each unit :math:`\log β` moves by :math:`\frac12 \log(KL / C)`, unless the KL is within
    2 % of the budget C, and β stays in [0.001, 1000]. Deviations of priors are learnt along. A
    posterior whose KL is fixed by its parameters (:class:`~pyroccam.guides.MeanKL`) learns them
    badly from the start, as they are moved by the likelihood alone; it begins with this one.
    """

    name = "posterior"
    remembered = ("beta",)

    def __init__(self, *pair: Any, nats: float, **training: Any) -> None:
        super().__init__(*pair, **training)
        self.nats, self.beta = nats, 1.0

    def unit(self, number: int, kl_weight: float = 1.0) -> Tensor:
        loss = super().unit(number, self.beta)
        ratio = float(divergences(self.model, self.guide).sum()) / self.nats
        if abs(ratio - 1.0) > _DEAD:
            self.beta = min(max(self.beta * ratio**0.5, _LEAST), _MOST)
        return loss


@torch.no_grad()
def divergences(model: BayesianNetwork, guide: NetworkGuide) -> Tensor:
    """``KL(q || p)`` of every weight ``(n,)``, in the order of the sites, in nats."""
    found = []
    for site, (layer, name) in model.sites.items():
        prior = base(layer.latents()[name].prior)
        found.append(kl_divergence(base(guide.posterior(site)), prior).flatten())
    return torch.cat(found)


class Sending(Phase):
    """Codes the blocks of a pair one after another, with some steps after each.

    Everything random is a function of the seed and the number of the block: the candidates, the
    choice among them, and the rows and the noise of the steps after it. The prior stays as it is
    from now on, as the receiver will have it.

    Arguments:
        random: whether the candidate is drawn by its weight, or is that with the largest.

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
        bits: int,
        seed: int,
        random: bool,
        **training: Any,
    ) -> None:
        super().__init__(model, guide, *data, units=len(guide.weights.known), **training)
        self.posterior = guide.weights
        self.bits, self.seed, self.random = bits, seed, random
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
        noise = np.random.default_rng([self.settings.seed, block]) if self.random else None
        index = target.choose(self.bits, noise)
        values = target.value(index)
        self.posterior.know(block, torch.from_numpy(values))
        self.indices.append(index)
        self.kl.append(target.kl)
        self.distances.append(float((((values - loc) / scale) ** 2).mean()))
