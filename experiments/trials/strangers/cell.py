"""A cell: a set with a network and a seed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pyroccam import data as datasets
from pyroccam.data import Dataset
from pyroccam.models.contexts import seeded
from torch import nn

from .sets import SETS, Stranger

__all__ = ["NETWORKS", "Cell", "cells"]

NETWORKS = f"{__package__}.networks"


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
        builder = getattr(importlib.import_module(NETWORKS), self.network)
        with seeded(self.seed, torch.device("cpu")):
            made: nn.Module = builder(rows.input_shape, rows.outputs)
        return made


def cells(
    chosen: list[str], networks: str, half: str, seeds: int, files: Path, data_root: str | None
) -> Iterator[Cell]:
    """All sets and networks with the first seed come first.

    Arguments:
        chosen: sets.
        networks: separated by commas, or all.
        half: ``tuned``, ``kept`` or ``both``.
        seeds: how many.
        files, data_root: of each cell.
    """
    for seed in range(seeds):
        for name in chosen:
            if half in (SETS[name].half, "both"):
                for network in SETS[name].networks:
                    if not networks or network in networks.split(","):
                        yield Cell(name, network, seed, files, data_root)
