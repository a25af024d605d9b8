"""Sound files and folders of every kind that pyroccam reads, small and quickly made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from pyroccam import inference
from pyroccam.inference import rounding
from pyroccam.inference.files import packed
from torch import nn

from .verdicts import command

__all__ = ["RUNS", "Specimens", "make"]

RUNS: dict[str, list[str]] = {
    "ldn": ["fit", "ldn", "--data", "spirals", "--epochs", "2", "--set", "data.n=120",
            "--set", "max_depth=3", "--set", "width=4", "--no-compare"],
    "gnj": ["fit", "gnj", "--data", "digits", "--epochs", "1", "--set", "hidden=[8]"],
    "own": ["fit", "gnj", "--data", "{tables}/table.csv", "--epochs", "1", "--set", "hidden=[8]",
            "--set", "data.target=label"],
}  # fmt: skip
"""The commands that made the runs, without ``--out``; see :meth:`Specimens.words`."""


@dataclass(frozen=True)
class Specimens:
    """Places of the sound files, under one folder."""

    folder: Path

    @property
    def networks(self) -> list[Path]:
        """Folders of saved networks."""
        return [self.folder / name for name in ("plain", "marginal", "single")]

    @property
    def packed(self) -> list[Path]:
        """Packed files; the last has no description."""
        return [self.folder / f"{name}.pocc" for name in ("small", "conv", "tensors")]

    @property
    def tables(self) -> list[Path]:
        """Data files."""
        return [self.folder / "table.csv", self.folder / "arrays.npz"]

    @property
    def streams(self) -> list[Path]:
        """Folders that are streamed."""
        return [self.folder / name for name in ("npy", "pictures", "parquet")]

    def words(self, name: str) -> list[str]:
        """The command that made a run, without ``--out``."""
        return [word.format(tables=self.folder) for word in RUNS[name]]

    def run(self, name: str) -> Path:
        """The folder of a finished run."""
        return self.folder / "runs" / name


def make(folder: Path) -> Specimens:
    """Make all specimens in a folder; those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Specimens(folder)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = rng.integers(3, size=60)
    rows = [",".join([*map(str, row), "abc"[label]]) for row, label in zip(x, y, strict=True)]
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    _make_streams(made, x, y)
    np.savez(folder / "arrays.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    for name in RUNS:
        if not (made.run(name) / "metrics.json").exists():
            command([*made.words(name), "--out", str(made.run(name))])
    small = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3)).eval()
    inference.Small(small).save(folder / "plain")
    for form in ("marginal", "single"):
        command(["prune", str(made.run("ldn")), "--form", form, "--out", str(folder / form)])
    for net, bits in ((small, 5), (conv, rounding.Codebook(4))):
        name = "small.pocc" if net is small else "conv.pocc"
        inference.Small(rounding.quantised(net, bits)).save(folder / name)
    (folder / "tensors.pocc").write_bytes(packed.encoded(small, describe_net=False)[0])
    return made


def _make_streams(made: Specimens, x: np.ndarray, y: np.ndarray) -> None:
    arrays, pictures, tables = made.streams
    for place in (arrays, tables, *(pictures / name for name in "abc")):
        place.mkdir(parents=True, exist_ok=True)
    np.save(arrays / "x.npy", x)
    np.save(arrays / "y.npy", y)
    for number, (row, label) in enumerate(zip(x, y, strict=True)):
        pixels = np.uint8(40 * np.outer(row, row) % 256)
        Image.fromarray(pixels).save(pictures / "abc"[label] / f"{number}.png")
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(label=y)
    for number in range(2):
        frame[number::2].to_parquet(tables / f"{number}.parquet")
