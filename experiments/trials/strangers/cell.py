"""A cell: a set with a network and a seed, and what is trained in it."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pyroccam import data as datasets
from pyroccam.cli.runs.execution import RunOptions, run
from pyroccam.data import Dataset
from pyroccam.models.contexts import seeded
from torch import nn

from ...published.runner import Row, resolve
from . import networks
from .ordinary import RATES, Trained, epochs_of, prune_by_magnitude, search, train
from .sets import SETS, Stranger
from .structured import NotPrunedError, prune_channels

__all__ = ["NETWORKS", "Cell", "ours", "rivals"]

NETWORKS = networks.__all__
NETWORKS_MODULE = networks.__name__


@dataclass(frozen=True)
class Cell:
    """What is trained on what.

    Attributes:
        name: of the set.
        network: a name in :mod:`~experiments.trials.strangers.networks`.
        seed: of the split, the weights and the order of the rows.
        files: folder of the sets, as files.
        data_root: folder of the data sets that this package knows.
    """

    name: str
    network: str
    seed: int
    files: Path
    data_root: str | None = None

    @property
    def stem(self) -> str:
        """Its files are called so."""
        return f"{self.name}-{self.network}-{self.seed}"

    @property
    def stranger(self) -> Stranger:
        """The set, and what belongs to it."""
        return SETS[self.name]

    @property
    def said(self) -> dict[str, Any]:
        """What each of its files begins with."""
        known = {"set": self.name, "half": self.stranger.half}
        return {**known, "network": self.network, "seed": self.seed}

    def source(self) -> Path:
        """The file of the set, which is written if it is not there yet."""
        return self.stranger.write(self.files / f"{self.name}.npz", self.data_root)

    def rows(self) -> Dataset:
        """The rows, split by the seed."""
        return datasets.load(str(self.source()), seed=self.seed, **self.stranger.options)

    def make(self, rows: Dataset) -> nn.Module:
        """The network with its first weights."""
        builder = getattr(networks, self.network)
        with seeded(self.seed, torch.device("cpu")):
            made: nn.Module = builder(rows.input_shape, rows.outputs)
        return made


def rivals(cell: Cell) -> Row:
    """An ordinary training, and what prunes it, which no method changes."""
    importlib.import_module("torch_pruning")  # of the extra ``strangers``, before hours are spent
    rows = cell.rows()
    dense = search(lambda: cell.make(rows), rows, cell.seed)
    found: Row = {
        **cell.said,
        "rows": len(rows.x_train),
        "task": rows.task,
        "parameters": sum(p.numel() for p in dense.net.parameters()),
        "ordinary": _said(dense),
        "pruned": [_said(one) for one in prune_by_magnitude(dense, rows, cell.seed)],
    }
    try:
        found["structured"] = [_said(one) for one in prune_channels(dense, rows, cell.seed)]
    except NotPrunedError as error:
        found["not_structured"] = str(error)
    return found


def _said(one: Trained) -> Row:
    return {"val_nll": one.val_nll, "test": one.test, "seconds": one.seconds, "left": one.left}


_KEPT = ("test", "numbers", "compressed", "structure", "not_compressed", "warnings", "epochs")


def ours(cell: Cell, method: str, settings: dict[str, Any]) -> Row:
    """A run of a method with no options, what it hands back, and how long ordinary trainings take
    just before and just after it."""
    source, ordinary = cell.source(), [_ordinary_seconds(cell)]
    begun = time.process_time()
    sets = {f"data.{key}": value for key, value in cell.stranger.options.items()} | settings
    network = f"{NETWORKS_MODULE}:{cell.network}"
    try:
        config, data = resolve(method, str(source), cell.seed, network=network, sets=sets)
        silent = RunOptions(progress=False, compare=False)
        metrics = run(config, data, options=silent).metrics
    except (ValueError, RuntimeError, TypeError) as error:  # a cell that fails is a result, too
        return {**cell.said, "failed": f"{type(error).__name__}: {error}"}
    found = {name: metrics[name] for name in _KEPT if name in metrics}
    found["seconds"] = time.process_time() - begun
    ordinary.append(_ordinary_seconds(cell))
    found["ordinary_seconds"] = len(RATES) * fmean(ordinary)
    return {**cell.said, "ours": found}


def _ordinary_seconds(cell: Cell) -> float:
    """Of one ordinary training, on the machine as busy as it is now."""
    rows, lr = cell.rows(), RATES[len(RATES) // 2]
    epochs = epochs_of(len(rows.x_train))
    return train(cell.make(rows), rows, lr=lr, seed=cell.seed, epochs=epochs).seconds
