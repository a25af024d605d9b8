"""Variational network quantisation on MNIST: the published table, and what we get.

    python -m experiments quantisation --again --data-root FOLDER

Each row has weights on a few levels: with the exact KL, with the published approximation, with the
first layer free, and with 3 bits. Errors are of the test rows. A finished seed is kept: the same
command goes on where an earlier one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from pyroccam.cli.runs.execution import Outcome
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import CYCLE, styled
from pyroccam.inference.shrinking.weight_sharing import levels_of

from .compression import error_of, left_of, short
from .markdown import header, plus_minus, read_all, row, trained_on
from .runner import Choice, File, Given, Made, Row, Spec, of_method

__all__ = ["PUBLISHED", "ROWS", "SETTINGS", "SPEC"]

# Achterhold, Koehler, Schmeink, Genewein, ICLR 2018 (as reviewed), table 1: LeNet-5 on MNIST. The
# errors, in %, are called validation errors there.
PUBLISHED: dict[str, dict[str, float]] = {
    "lenet-5-caffe": {
        "original_error": 0.8, "mean_error": 0.69, "error": 0.83, "nonzero_percent": 24.5,
        "bits": 2, "epochs": 195,
    },
}  # fmt: skip

ROWS: dict[str, str] = {
    "exact": "multi-spike",
    "published": "multi-spike:3:achterhold",
    "first-free": "multi-spike:3:first-free",
    "3-bits": "multi-spike:7",
}
"""Priors by the name of a row."""

# Published: 5 epochs as numbers, then 195 in batches of 128 at a rate of 1e-3, with a KL that rises
# in the first 15. These take a small part of that time.
SETTINGS: dict[str, Any] = {"batch_size": 512, "lr": 2e-3, "kl_warmup": 0.1, "start": 0.2}


def files(given: Given) -> Iterable[File]:
    """One of each row."""
    for name in given.rows:
        sets = {**SETTINGS, "epochs": given.epochs, **given.set, "prior": ROWS[name]}
        yield of_method(
            f"{short(given.data)}-{short(given.network)}-{name}", "vnq", kept, given, sets
        )


def kept(outcome: Outcome) -> Row:
    """The row that is kept of a run."""
    numbers = outcome.metrics.get("numbers")
    found = None if numbers is None else error_of(numbers["test"])
    return {
        "original_error": found, **left_of(outcome.metrics), "means": _means_of(outcome.fit)
    }  # fmt: skip


def _means_of(fit: Any) -> Row:
    """How many posterior means of each layer are where, in units of its largest level."""
    found: Row = {}
    for name, levels in levels_of(fit.model).items():
        mean = fit.guide.posterior(f"{name}.weight").base_dist.loc.detach().cpu()
        counts = torch.histc(mean / levels[-1], _BINS, -_REACH, _REACH)
        found[name] = {"largest": float(levels[-1]), "levels": len(levels),
                       "counts": counts.int().tolist()}  # fmt: skip
    return found


_BINS, _REACH = 81, 2.0


def drawn(given: Given) -> Mapping[str, Made]:
    """Where the means are, of runs that tell."""
    files = read_all(given.out)
    found = {n: means for n, one in files.items() if (means := one["runs"][0].get("means"))}
    return {"levels": partial(figure, found)} if found else {}


@styled
def figure(found: Mapping[str, Row]) -> Figure:
    """Posterior means by layer, in units of the largest level, and the levels; of the first run."""
    layers = list(next(iter(found.values())))
    fig = new_figure(0.6 + 1.6 * len(found))
    axes = fig.subplots(len(found), len(layers), sharex=True, squeeze=False)
    edges = np.linspace(-_REACH, _REACH, _BINS + 1)
    for line, (name, means) in zip(axes, found.items(), strict=True):
        for ax, layer in zip(line, layers, strict=True):
            own = means[layer]
            ax.stairs(own["counts"], edges, color=CYCLE[0], fill=True)
            for level in np.linspace(-1, 1, own["levels"]):
                ax.axvline(level, color=CYCLE[1], linewidth=0.9, linestyle=(0, (4, 3)))
            ax.set(yscale="log", title=f"layer {layer}: {own['largest']:.2g}")
            ax.set_ylim(bottom=0.7)
        line[0].set_ylabel(f"means, {name.rpartition('-')[2]}")
    axes[-1][len(layers) // 2].set_xlabel("posterior mean, in units of the largest level (title)")
    return fig


def table(folder: Path) -> Iterable[str]:
    """Errors as numbers, by the means, and with weights on levels."""
    found = read_all(folder).values()
    for data, network in sorted({trained_on(one) for one in found}):
        yield from header(
            f"{short(network)}, prior (seeds)", "epochs", "original error, %", "means, %",
            "pruned and quantised, %", "weights left, %", "file, kB",
        )  # fmt: skip
        for one in (f for f in found if trained_on(f) == (data, network)):
            config, runs = one["config"], one["runs"]
            yield row(
                f"`{config['options']['prior']}` ({len(runs)})",
                config["settings"]["epochs"],
                *(plus_minus(runs, k, 2) for k in ("original_error", "mean_error", "error")),
                plus_minus(runs, "nonzero_percent", 1),
                plus_minus(runs, "file_bytes", 1, 1e-3),
            )
        if data == "mnist" and (known := PUBLISHED.get(network)) is not None:
            names = ("epochs", "original_error", "mean_error", "error", "nonzero_percent")
            yield row("published", *(f"{known[name]:g}" for name in names), "")
        yield ""


SPEC = Spec(
    "experiments.published.quantisation", "Quantisation", "quantisation",
    {
        "data": "mnist", "data_root": str, "network": "lenet-300-100",
        "rows": Choice(ROWS, ("exact", "published")), "epochs": 30, "set": {}, "device": "auto",
        "runs": str,
    },
    files, table, drawn,
    small="--data digits --network perceptron --rows exact --set hidden=[8] --set lr=0.01 "
    "--set kl_weight=0.05 --epochs 4 --seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
