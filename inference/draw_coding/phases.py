"""Parts of a long computation, each of which can be stopped, and gone on with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...guides.base import NetworkGuide
from ...models.bayesian import BayesianNetwork
from ..storage.checkpoint import CHECKPOINT, CheckpointError, load_checkpoint, save_checkpoint
from ..training.terminal import FitProgress, StopSignal
from ..training.trainer import Interrupted
from .steps import Steps

__all__ = ["Phase", "Run"]


@dataclass(frozen=True)
class Run:
    """How all phases are run.

    Attributes:
        out: folder of their checkpoints, which are gone on with, or ``None``.
        progress: show a bar; ``None`` shows it on a terminal only.
        stop: whether to stop.
        asked: what is coded, and how; a checkpoint has to be of the same.
    """

    out: Path | None
    progress: bool | None
    stop: StopSignal
    asked: dict[str, Any]


class Phase(ABC):
    """A part of a computation, in units after each of which it may stop.

    Attributes:
        name: in front of the bar, and of the folder of its checkpoint.
        units: how many there are.
        every: units between checkpoints.
    """

    name: str
    units: int
    every: int

    def __init__(self, model: BayesianNetwork, guide: NetworkGuide, steps: Steps) -> None:
        self.model, self.guide, self.steps = model, guide, steps
        self.done = 0

    @abstractmethod
    def unit(self, number: int) -> torch.Tensor:
        """Do one; a loss, ``()``."""

    def extra(self) -> dict[str, Any]:
        """What is remembered beside parameters and optimiser."""
        return {}

    def take(self, extra: dict[str, Any]) -> None:  # noqa: B027 (most have nothing to take)
        """The inverse of :meth:`extra`."""

    def run(self, how: Run) -> None:
        """Do all that are left.

        Raises:
            Interrupted: after a signal; what was done has been saved.
            CheckpointError: if the checkpoint is of something else.
        """
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
        self.steps.step.release()
        self.model.eval()

    def _save(self, folder: Path, asked: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        state = {"asked": asked, "done": self.done, **self.extra()}
        state |= {"model": self.model.state_dict(), "guide": self.guide.state_dict()}
        save_checkpoint(folder, state | {"optimizer": self.steps.step.optimizer.state_dict()})

    def _load(self, folder: Path, asked: dict[str, Any]) -> None:
        state = load_checkpoint(folder, self.steps.device)
        assert state is not None
        then = state["asked"]
        if changed := [name for name, value in asked.items() if then.get(name) != value]:
            name = changed[0]
            raise CheckpointError(
                f"{folder} was begun with other {name}: {then.get(name)!r} then, {asked[name]!r} "
                "now",
                hint="repeat the command as it was, or give another folder",
            )
        try:
            self.model.load_state_dict(state["model"])
            self.guide.load_state_dict(state["guide"])
            self.steps.step.load_optimizer(state["optimizer"])
            self.take(state)
        except (RuntimeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{folder} is of another network, or another budget",
                hint="repeat the command as it was, or give another folder",
            ) from error
        self.done = int(state["done"])
