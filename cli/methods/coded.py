"""A method whose result is a file of a given size: a draw of a posterior that is trained for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from torch import nn

from ...data import Between, Count, Dataset, Whole
from ...inference import load
from ...inference.draws import Basis
from ...inference.training import Fit, Settings
from .base import Finished
from .bayes import Bayes
from .weights import DRAW, cut_of, draw_run, sent

Bits = Annotated[int, Between(2, 20)]


@dataclass(frozen=True)
class Coded(Bayes):
    """Weights are random under a prior that cuts; what is left is trained for the size of a file,
    and a draw of its posterior is sent.

    Attributes:
        size: of the file, in bytes; two bits a weight, or 4,000 bytes where that is less, if left
            out.
        basis: in what weights are independent, see :class:`~pyroccam.inference.Draw`.
        bits: of an index.
        coding: epochs of each of the two trainings before the first block is coded.
        between: optimiser steps after each block.
        shift: pixels by which images are moved at random while the posterior is trained for the
            size, where that changes no label.
    """

    lengths = ("coding",)

    size: Count | None = None
    basis: Basis = "weights"
    bits: Bits = 14
    coding: Count = 20
    between: Whole = 10
    shift: Whole = 0

    def trainings(
        self, settings: Settings, data: Dataset, compare: bool
    ) -> dict[str, tuple[int, int]]:
        return {**super().trainings(settings, data, compare), "draw": (2, self.coding)}

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        yield from super().refusals(settings, data)
        if len(data.input_shape) != 3:
            for name in ("shift", "basis"):
                yield name, f"is of images, and the inputs are {tuple(data.input_shape)}."

    def report(self, run: Finished) -> dict[str, Any]:
        """With the draw: its size, the price of it, and what it scores when it is read."""
        found = super().report(run)
        result = run.fits[-1]
        how = {
            "bytes": self.size, "basis": self.basis, "bits": self.bits, "epochs": self.coding,
            "steps": self.between, "shift": self.shift, "seed": run.settings.seed % 2**20,
        }  # fmt: skip
        with TemporaryDirectory() as scratch:
            path = (Path(scratch) if run.out is None else run.out) / DRAW
            try:
                rule = cut_of(result, self.threshold, self.tolerance)
                drawn, scores = draw_run(result, rule, path, resume=True, **how)
            except (ValueError, RuntimeError) as error:  # training is not lost
                warned = [*found.get("warnings", []), f"No draw was sent: {error}"]
                return {**found, "warnings": warned}
        left = sent(result, drawn.net, drawn.bytes)
        part = {**drawn.report.to_json(), **left, "test": scores}
        said = (
            f"A draw of the posterior of these weights was sent in {part['file_bytes']:,} bytes, "
            f"{part['over_kl']:.3g} times its KL."
        )
        row = {"draw, bytes": part["file_bytes"], "times its KL": part["over_kl"]}
        learnt = {"title": "The draw", "sentences": [said], "rows": [row]}
        return {**found, "learnt": [*found["learnt"], learnt], "draw": part}

    def smaller(self, result: Fit, folder: Path) -> nn.Module:
        if not (folder / DRAW).is_file():
            return super().smaller(result, folder)
        return load(folder / DRAW)
