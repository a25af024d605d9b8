"""The folder of a run: what is written, and how a broken run is taken up again."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import json
import math
import os
import pickle
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

__all__ = [
    "CheckpointError",
    "fingerprint",
    "load_checkpoint",
    "plain",
    "read_history",
    "save_checkpoint",
    "save_weights",
    "versions",
    "write_history",
    "write_json",
]

CHECKPOINT = "checkpoint.pt"
FORMAT = 2  # of the checkpoint


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used."""


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    names = ("pyroccam", "torch", "torchvision", "pyro-ppl", "numpy", "torchmetrics")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **found}


def fingerprint(*tensors: Tensor) -> str:
    """A short hash of the training data, so that a run is not resumed on other data."""
    digest = hashlib.blake2b(digest_size=12)
    for t in tensors:
        digest.update(str(tuple(t.shape)).encode())
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _replace(path: Path, write: Any, mode: str = "wb") -> None:
    """Write beside ``path`` and rename, so that a kill leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    with open(beside, mode) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def write_json(path: Path, content: object) -> None:
    """Write JSON atomically; NaN and infinity become null, as JSON has neither."""
    text = json.dumps(plain(content), indent=2, allow_nan=False) + "\n"
    _replace(path, lambda f: f.write(text), "w")


def plain(value: Any) -> Any:
    """As JSON can hold it: NaN and infinity as ``None``, tensors as lists, paths as strings."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def write_history(path: Path, history: Sequence[dict[str, float]]) -> None:
    """The history as CSV, one row for each evaluation."""
    if not history:
        return
    columns = list(history[-1])

    def write(file: TextIO) -> None:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(history)

    _replace(path, write, "w")


def read_history(path: Path) -> list[dict[str, float]]:
    """What :func:`write_history` wrote; nothing, if it wrote nothing. What is missing is NaN."""
    if not path.is_file():
        return []
    with open(path, newline="") as file:
        return [
            {k: float(v) if v else math.nan for k, v in row.items()} for row in csv.DictReader(file)
        ]


def save_weights(path: Path, **modules: nn.Module) -> None:
    """Parameters and buffers of several modules in one safetensors file."""
    tensors = {
        f"{prefix}.{name}": t.detach().cpu().contiguous().clone()
        for prefix, module in modules.items()
        for name, t in module.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    save_file(tensors, beside)
    os.replace(beside, path)


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Everything needed to go on, bit for bit."""
    _replace(folder / CHECKPOINT, lambda f: torch.save({"format": FORMAT, **state}, f))


def load_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The state that was saved, or ``None`` if there is none. Runs no pickled code.

    Raises:
        CheckpointError: if the file is not readable.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}). It was cut short or damaged: delete it to start "
            "this run anew, or give another folder with out=."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version of pyroccam.")
    return state
