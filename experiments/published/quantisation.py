"""Variational network quantisation on MNIST: the published table, and what we get.

    python -m experiments.published.quantisation --data-root FOLDER

Each row has weights on a few levels: with the exact KL, with the published approximation, with the
first layer free, and with 3 bits. Errors are of the test rows. A finished seed is kept: the same
command goes on where an earlier one stopped.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.runs.config import parse_settings
from pyroccam.cli.runs.run import Outcome

from . import options
from .compression import short
from .runner import Row, add_seeds

__all__ = ["PUBLISHED", "ROWS", "SETTINGS", "main"]

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

SPREAD = ("original_error", "mean_error", "error", "nonzero_percent", "file_bytes")


def main(
    out: options.Out = options.RESULTS / "quantisation",
    data: options.Data = "mnist",
    data_root: options.DataRoot = None,
    network: options.Network = "lenet-300-100",
    rows: Annotated[str, options.BY_COMMAS] = "exact,published",
    seeds: options.Count = 3,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 30,
    sets: options.Sets = None,
    threads: options.Count = 1,
    device: options.Device = "auto",
    runs: options.Runs = None,
    workers: options.Workers = None,
) -> None:
    """Run what is missing, and write one JSON file for each row."""
    torch.set_num_threads(threads)
    published = PUBLISHED.get(network) if data == "mnist" else None
    for name in options.listed("row", rows, ROWS):
        own = {**SETTINGS, "epochs": epochs, **parse_settings(sets or []), "prior": ROWS[name]}
        add_seeds(
            out / f"{data}-{short(network)}-{name}.json", seeds, "vnq", data, row=_row,
            numbers=lambda row: {k: row[k] for k in SPREAD if row[k] is not None},
            say=partial(_line, short(network), name), runs=runs, device=device, workers=workers,
            beside={"published": published}, network=network, data_root=data_root, sets=own,
        )  # fmt: skip


def _row(outcome: Outcome) -> Row:
    """The row that is kept of a run.

    Raises:
        ValueError: for a run whose network was not compressed.
    """
    metrics = outcome.metrics
    if "not_compressed" in metrics:
        raise ValueError(f"Seed {metrics['seed']} was not compressed: {metrics['not_compressed']}")
    structure, numbers = metrics["structure"], metrics.get("numbers")
    return {
        "seed": metrics["seed"],
        "original_error": None if numbers is None else _error(numbers["test"]),
        "mean_error": _error(metrics["test"]["deterministic"]),
        "ensemble_error": _error(metrics["test"]["ensemble"]),
        "error": _error(metrics["compressed"]["test"]),
        "nll": metrics["compressed"]["test"]["nll"],
        "bits": list(structure["bits"].values()),
        **{k: structure[k] for k in ("nonzero_percent", "weights", "file_bytes", "file_rate")},
        "thresholds": structure["thresholds"],
        "seconds": metrics["seconds"],
        "engine": metrics["engine"],
        "device": metrics["device"],
    }


def _error(test: dict[str, float]) -> float:
    return 100 * (1 - test["accuracy"])


def _line(network: str, name: str, row: Row) -> str:
    original = "" if row["original_error"] is None else f"original {row['original_error']:.2f}, "
    return (
        f"{network} {name} seed {row['seed']}: {original}means {row['mean_error']:.2f}, pruned and "
        f"quantised {row['error']:.2f} %, {row['nonzero_percent']:.1f} % left, bits of an index "
        f"{'-'.join(map(str, row['bits']))}, {row['file_bytes']:,} bytes, {row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    typer.run(main)
