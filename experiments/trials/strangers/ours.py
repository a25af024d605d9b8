"""The part of a cell that is a method's: a run with no options, and what it hands back."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean
from typing import Any

from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.run import RunOptions, run
from pyroccam.inference.storage.checkpoint import versions, write_json

from .cell import NETWORKS, Cell
from .ordinary import RATES, epochs_of, train

__all__ = ["add_ours"]

_KEPT = ("test", "numbers", "compressed", "structure", "not_compressed", "warnings", "epochs")


def add_ours(
    cell: Cell, path: Path, method: str, settings: dict[str, Any]
) -> dict[str, Any] | None:
    """Run the method and write what it gives, or ``None`` if the file is there."""
    if path.exists():
        return None
    source, ordinary = cell.source(), [_ordinary_seconds(cell)]
    begun = time.perf_counter()
    data_options = {f"data.{key}": value for key, value in cell.stranger.options.items()}
    found = cell.said
    try:
        config, data = RunConfig.resolve(
            method,
            str(source),
            network=f"{NETWORKS}:{cell.network}",
            seed=cell.seed,
            sets={**data_options, **settings},
        )
        silent = RunOptions(progress=False, figures=False, compare=False)
        metrics = run(config, data, options=silent).metrics
    except (ValueError, RuntimeError, TypeError) as error:  # a cell that fails is a result, too
        found["failed"] = f"{type(error).__name__}: {error}"
    else:
        found["ours"] = {name: metrics[name] for name in _KEPT if name in metrics}
        found["ours"]["seconds"] = time.perf_counter() - begun
        ordinary.append(_ordinary_seconds(cell))
        found["ours"]["ordinary_seconds"] = len(RATES) * fmean(ordinary)
    found["versions"] = versions()
    write_json(path, found)
    return found


def _ordinary_seconds(cell: Cell) -> float:
    """Of one ordinary training, on the machine as busy as it is now."""
    rows = cell.rows()
    lr = RATES[len(RATES) // 2]
    return train(
        cell.make(rows), rows, lr=lr, seed=cell.seed, epochs=epochs_of(len(rows.x_train))
    ).seconds
