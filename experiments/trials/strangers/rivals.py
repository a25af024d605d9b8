"""The part of a cell that no method changes: an ordinary training, and what prunes it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyroccam.data import Dataset
from pyroccam.inference.storage.checkpoint import versions, write_json

from .cell import Cell
from .ordinary import Trained, prune_by_magnitude, search
from .structured import NotPrunedError, prune_channels

__all__ = ["RIVALS", "add_rivals"]

Pruner = Callable[[Trained, Dataset, int], list[Trained]]

RIVALS: dict[str, tuple[str, Pruner]] = {
    "magnitude": ("pruned", prune_by_magnitude),
    "channels": ("structured", prune_channels),
}
"""What prunes the ordinary network, by the name of the option: the key of its results, and how."""

SAME = 1e-4
"""Nats by which the validation loss of a network that is trained anew may differ."""


def add_rivals(cell: Cell, path: Path, rivals: Iterable[str]) -> dict[str, Any] | None:
    """Train what is not in the file yet, and write it.

    The weights of the ordinary network are not kept, so a rival that is added later trains it
    again; its numbers stay those of the first time.

    Arguments:
        cell: what is trained.
        path: of the file, there or not.
        rivals: names in :data:`RIVALS`.

    Returns:
        What the file says now, or ``None`` if nothing was missing.
    """
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    missing = [RIVALS[name] for name in rivals if not _there(found, RIVALS[name][0])]
    if found and not missing:
        return None
    rows = cell.rows()
    ordinary = search(lambda: cell.make(rows), rows, cell.seed)
    found = found or {
        **cell.said,
        "rows": len(rows.x_train),
        "task": rows.task,
        "parameters": sum(p.numel() for p in ordinary.net.parameters()),
        "ordinary": _said(ordinary),
    }
    first = found["ordinary"]["val_nll"]
    for key, pruner in missing:
        if abs(ordinary.val_nll - first) > SAME:  # by another machine or release of torch
            found[f"not_{key}"] = f"trained again to {ordinary.val_nll:.4f} nats, not {first:.4f}"
            continue
        try:
            found[key] = [_said(one) for one in pruner(ordinary, rows, cell.seed)]
        except NotPrunedError as error:
            found[f"not_{key}"] = str(error)
    known = {**versions(), **found.pop("versions", {})}  # those of the first time
    if _there(found, "structured"):
        known["torch-pruning"] = importlib.metadata.version("torch-pruning")
    found["versions"] = known
    write_json(path, found)
    return found


def _there(found: dict[str, Any], key: str) -> bool:
    return key in found or f"not_{key}" in found


def _said(one: Trained) -> dict[str, Any]:
    return {"val_nll": one.val_nll, "test": one.test, "seconds": one.seconds, "left": one.left}
