"""The folder of a run: what is written, and how a broken run is taken up again."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import math
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from ...data import PyroccamError
from .digests import check_digests, write_digests
from .whole import write_whole

CHECKPOINT, WEIGHTS, HISTORY = "checkpoint.pt", "model.safetensors", "history.csv"
# What a run is opened from. Pictures and what is written later are not among it.
_SEALED = (
    "config.json", "data.json", "network.json", "fit.json", "history.csv", "model.safetensors",
    "narrowed.json", "metrics.json", "compressed.pocc",
)  # fmt: skip
FORMAT = 3  # of the checkpoint
_SIGNATURE = (
    b"pyroccam checkpoint, blake2b "  # and the digest of what follows, in hex, and a newline
)


class CheckpointError(PyroccamError, RuntimeError):
    """A checkpoint that cannot be used."""


def versions(*others: str) -> dict[str, str]:
    """Versions of what a result depends on, as far as it was installed and not put on the path."""
    found = {"python": platform.python_version()}
    own = ("pyroccam", "torch", "torchvision", "pyro-ppl", "numpy", "torchmetrics")
    for name in (*own, *others):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def fingerprint(*tensors: Tensor) -> str:
    """A short hash of the training data, so that a run is not resumed on other data."""
    digest = hashlib.blake2b(digest_size=12)
    for t in tensors:
        digest.update(str(tuple(t.shape)).encode())
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_json(path: Path, content: object) -> None:
    """Write JSON atomically; NaN and infinity become null, as JSON has neither."""
    text = json.dumps(plain(content), indent=2, allow_nan=False) + "\n"
    write_whole(path, lambda f: f.write(text), "w")


def plain(value: Any) -> Any:
    """A value for JSON: NaN and infinity as ``None``, tensors as lists, paths as strings."""
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


def seal(folder: Path, renewed: str = "") -> None:
    """Note the digests of the files of a run, now that they are written, in ``digests.json``, but
    for one that is about to be renewed."""
    there = [name for name in _SEALED if name != renewed and (folder / name).is_file()]
    write_digests(folder, there)


def write_history(path: Path, history: Sequence[dict[str, float]]) -> None:
    """The history as CSV, one row for each evaluation. What only some rows have, what ``track=``
    said in one sitting of two, is empty in the others."""
    if not history:
        return
    columns = list(dict.fromkeys(name for row in history for name in row))

    def write(file: TextIO) -> None:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(history)

    write_whole(path, write, "w")


def read_history(path: Path) -> list[dict[str, float]]:
    """The history that :func:`write_history` wrote, if any, but for a last row that was cut off;
    what is missing is NaN."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [
            {k: float(v) if v else math.nan for k, v in row.items()}
            for row in csv.DictReader(line for line in file if line.endswith("\n"))
        ]


def save_weights(path: Path, **modules: nn.Module) -> None:
    """Parameters and buffers of several modules in one safetensors file."""
    tensors = {
        f"{prefix}.{name}": t.detach().cpu().contiguous().clone()
        for prefix, module in modules.items()
        for name, t in module.state_dict().items()
    }
    write_whole(path, lambda f: f.write(save(tensors)))


def read_weights(folder: Path, device: torch.device) -> dict[str, dict[str, Tensor]]:
    """The weights that a finished fit wrote, of ``model`` and ``guide``."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{folder} is a finished fit, but its {WEIGHTS} is gone")
    check_digests(folder, may_lack=[name for name in _SEALED if name != WEIGHTS])
    found: dict[str, dict[str, Tensor]] = {"model": {}, "guide": {}}  # which may have none
    try:
        for name, tensor in load(path.read_bytes()).items():
            module, _, own = name.partition(".")
            if tensor.isnan().any():
                raise PyroccamError(f"{name} has values that are not numbers")
            found[module][own] = tensor.to(device)
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} holds no weights of a fit ({error})") from error
    return found


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Everything needed to go on, bit for bit, behind its checksum."""
    content = io.BytesIO()
    torch.save({"format": FORMAT, **state}, content)
    digest = hashlib.blake2b(content.getbuffer(), digest_size=16).hexdigest()
    parts = _SIGNATURE + digest.encode() + b"\n", content.getbuffer()
    write_whole(folder / CHECKPOINT, lambda file: file.writelines(parts))


def load_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The state that was saved, or ``None`` if there is none. Runs no pickled code."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    anew = "delete it to start this run anew, or give another folder with out="
    try:
        head, _, content = path.read_bytes().partition(b"\n")
        whole = hashlib.blake2b(content, digest_size=16).hexdigest().encode() == head[-32:]
        file = io.BytesIO(content)
        state = torch.load(file, map_location=device, weights_only=True) if whole else {}
    except Exception as error:  # of zip files, pickles and tensors there is no end of kinds
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise CheckpointError(f"{path} cannot be read ({reason})", hint=anew) from error
    if not whole:
        raise CheckpointError(f"{path} was cut short or damaged", hint=anew)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version of pyroccam", hint=anew)
    return state
