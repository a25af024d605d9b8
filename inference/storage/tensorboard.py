"""The history of a fit as TensorBoard reads it, while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...data.errors import PyroccamError

__all__ = ["MissingTensorBoard", "TensorBoard"]

EVENTS = "tensorboard"


class MissingTensorBoard(PyroccamError, RuntimeError):
    """TensorBoard is asked for and not installed."""


class TensorBoard:
    """A watcher that writes the history of every fit into ``tensorboard`` in its folder: one scalar
    for each column, by epoch, each as soon as it is known. ``tensorboard --logdir FOLDER`` finds
    them, at any depth.

    Raises:
        MissingTensorBoard: if the package is not installed.
    """

    def __init__(self) -> None:
        if find_spec("tensorboard") is None:
            raise MissingTensorBoard(
                "TensorBoard is not installed", hint="pip install 'pyroccam[tensorboard]'"
            )

    def begin(self, folder: Path, history: Sequence[dict[str, float]]) -> _Events:
        """A tracker for one fit, that begins with the rows that it has already."""
        target = folder / EVENTS
        for old in target.glob("events.out.tfevents.*"):
            old.unlink()
        events = _Events(target)
        for row in history:
            events.log_metrics({k: v for k, v in row.items() if k != "epoch"}, int(row["epoch"]))
        return events


class _Events:
    """Events of one fit."""

    def __init__(self, target: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs the package

        self.writer: Any = SummaryWriter(str(target), flush_secs=10)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            if math.isfinite(value):
                self.writer.add_scalar(name, value, step)

    def finalize(self, status: str) -> None:
        self.writer.close()
