"""The history of a run as TensorBoard reads it."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

from ...data.errors import PyroccamError
from .checkpoint import HISTORY, read_history

__all__ = ["MissingTensorBoard", "refuse_missing", "write_tensorboard"]

EVENTS = "tensorboard"


class MissingTensorBoard(PyroccamError, RuntimeError):
    """TensorBoard is asked for and not installed."""


def refuse_missing() -> None:
    """Refuse to go on without the package that writes what TensorBoard reads.

    Raises:
        MissingTensorBoard: if it is not installed.
    """
    if find_spec("tensorboard") is None:
        raise MissingTensorBoard(
            "TensorBoard is not installed", hint="pip install 'pyroccam[tensorboard]'"
        )


def write_tensorboard(folder: Path) -> list[Path]:
    """Write the history of every fit in a folder, at any depth, into ``tensorboard`` beside it,
    instead of what an earlier call wrote there: one scalar for each column, by epoch.

    Returns:
        The folders that were written; ``tensorboard --logdir FOLDER`` finds them.

    Raises:
        MissingTensorBoard: if the package is not installed.
    """
    refuse_missing()
    from torch.utils.tensorboard import SummaryWriter  # needs the package

    written = []
    for path in sorted(folder.rglob(HISTORY)):
        target = path.parent / EVENTS
        for old in target.glob("events.out.tfevents.*"):
            old.unlink()
        with SummaryWriter(str(target)) as writer:
            for row in read_history(path):
                for name, value in row.items():
                    if name != "epoch" and math.isfinite(value):
                        writer.add_scalar(name, value, int(row["epoch"]))
        written.append(target)
    return written
