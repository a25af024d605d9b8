"""Calibration of LeNet-5 on images, beside the methods of google/uncertainty-baselines.

    python -m experiments calibration --again --data-root FOLDER

The network of their `baselines/mnist/deterministic.py`, trained on 50,000 rows as there, without
moved images; the other 10,000 choose among our posteriors and their lengths, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from pyroccam.inference import fit
from torch import nn

from .markdown import column, header, plus_minus, read_all, row
from .runner import Choice, File, Given, Row, Spec, resolve, seeds, untrained

__all__ = ["PUBLISHED", "SPEC", "lenet_5"]

# Test NLL and accuracy in %: MNIST, Fashion-MNIST.
PUBLISHED = {
    "deterministic": (0.037, 99.1, 0.321, 91.0),
    "ensemble of 10": (0.016, 99.4, 0.200, 93.2),
    "refined VI": (0.034, 99.0, 0.259, 90.6),
    "VI": (0.048, 98.5, 0.292, 89.5),
}
SETS = ("mnist", "fashion-mnist")
ROWS = 50_000
EPOCHS = {"deterministic": "25.6", "ensemble of 10": "256"}  # 5,000 steps of 256 rows each
DRAWS = 10  # of a prediction

_ADAM: Row = {
    "optimizer": "adam", "weight_decay": 0.0, "epochs": None, "checkpoint": "last",
    "evaluations": 1, "compile": False,
}  # fmt: skip
_NUMBERS: Row = {"guide": "delta", "start": 0.0, "finish": 0.0}
# The method, and its options.
POSTERIORS: dict[str, tuple[str, Row]] = {
    "ordinary": ("bayes", {**_NUMBERS, "lr": 1e-3, "schedule": "constant", "batch_size": 256}),
    "dropout-0.5": ("dropout", {"rate": 0.5, "lr": 2e-3, "batch_size": 128}),
    "dropout-0.2-everywhere": (
        "dropout",
        {"rate": 0.2, "layers": ["3", "6", "9", "11"], "lr": 2e-3, "batch_size": 128},
    ),
}


def lenet_5(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Convolutions of 6, 16 and 120 channels at one, a half and a quarter of the side, and a layer
    of 84 units.

    Arguments:
        input_shape: ``(C, H, W)``.
        outputs: classes.
    """
    channels, height, width = input_shape
    side = [(length + 3) // 4 for length in (height, width)]
    parts: list[nn.Module] = []
    for wide, pooled in ((6, True), (16, True), (120, False)):
        parts += [nn.Conv2d(channels, wide, 5, padding=2), nn.ReLU()]
        parts += [nn.MaxPool2d(2, ceil_mode=True)] * pooled
        channels = wide
    dense = [nn.Flatten(), nn.Linear(channels * side[0] * side[1], 84), nn.ReLU()]
    return nn.Sequential(*parts, *dense, nn.Linear(84, outputs))


def files(given: Given) -> Iterable[File]:
    """One of each set and posterior."""
    for data in given.sets:
        for name in given.posteriors:
            method, options = POSTERIORS[name]
            sets = {
                **_ADAM, **options, "steps": given.steps, "data.val_fraction": 1 / 6, **given.set,
            }  # fmt: skip
            how = {"network": f"{__name__}:lenet_5", "data_root": given.data_root, "sets": sets}
            first, _ = resolve(method, data, **how)
            says = {"config": first.without_seed()}
            yield File(f"{data}-{name}", says, partial(_fitted, method, data, how), seeds(given))


def _fitted(method: str, data: str, how: dict[str, Any], seed: int) -> Row:
    """What one posterior predicts of the validation rows, and of the test rows."""
    config, rows = resolve(method, data, seed, **how)
    start = time.process_time()
    found = fit(*untrained(config, rows), rows, progress=False, **config.settings)
    seconds = time.process_time() - start
    draws = DRAWS if method == "dropout" else 1
    scores = {part: found.evaluate(part, draws=draws) for part in ("val", "test")}
    return {"seconds": seconds, **scores}


def table(folder: Path) -> Iterable[str]:
    """Ours beside the published, the best of several by the validation rows of a set in bold."""
    found = read_all(folder)
    if not found:
        return
    yield from header(
        "", *(f"{name}: {what}" for name in SETS for what in ("NLL", "accuracy, %", "epochs"))
    )
    for method, (one, two, three, four) in PUBLISHED.items():
        epochs = EPOCHS.get(method, "")
        yield row(method, f"{one:.3f}", f"{two:.1f}", epochs, f"{three:.3f}", f"{four:.1f}", epochs)
    for name in POSTERIORS:
        cells = [cell for data in SETS for cell in _cells(found, data, name)]
        if any(cells):
            yield row(f"ours: {name}", *cells)


def _cells(found: dict[str, Any], data: str, name: str) -> list[str]:
    """NLL, accuracy and passes over the training rows of one posterior."""
    nll = {
        one: fmean(column(found[f"{data}-{one}"]["runs"], "val/nll"))
        for one in POSTERIORS
        if f"{data}-{one}" in found
    }
    if name not in nll:
        return ["", "", ""]
    runs, how = (found[f"{data}-{name}"][part] for part in ("runs", "config"))
    said = plus_minus(runs, "test/nll", 3)
    if len(nll) > 1 and nll[name] == min(nll.values()):
        said = f"**{said}**"
    epochs = how["settings"]["steps"] * how["settings"]["batch_size"] / ROWS
    return [f"{said} ({len(runs)})", plus_minus(runs, "test/accuracy", 2, 100.0), f"{epochs:.1f}"]


SPEC = Spec(
    "experiments.published.calibration", "Calibration on images", "calibration",
    {"sets": Choice((*SETS, "digits"), SETS), "posteriors": Choice(POSTERIORS), "steps": 5000,
     "data_root": str, "set": {}, "seeds": 1}, files, table,
    small="--sets digits --posteriors ordinary,dropout-0.5 --steps 10 --seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
