"""Structure that was learnt, against structure at random: the method ``structure`` over seeds.

    python -m experiments.published.structure.against_random --data-root FOLDER

By default cells on 10,000 images of Fashion-MNIST. Accuracy of the mixture that was trained, of the
most probable structure cut out of it, of the same trained afresh, and of random structures of about
its size, trained in the same way. A finished seed is kept: the same command goes on where an
earlier one stopped.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.runs.config import parse_settings
from pyroccam.cli.runs.run import Outcome

from .. import options
from ..runner import Row, add_seeds

__all__ = ["row"]


def row(outcome: Outcome) -> Row:
    """The row that is kept of a run."""
    metrics = outcome.metrics
    small = metrics["discretised"]
    parts = {
        "mixture": metrics["test"]["ensemble"],
        "cut out": small["test"],
        "afresh": metrics["retrained"]["test"],
        "random": {name: m["mean"] for name, m in metrics["random"]["spread"].items()},
    }
    return {
        "seed": metrics["seed"],
        "test": parts,
        "random": [
            {"parameters": one["parameters"], **one["test"]} for one in metrics["random"]["runs"]
        ],
        "parameters": small["parameters"],
        "parameters_before": small["parameters_before"],
        "chosen": metrics["structure"]["chosen"],
        "log_prob": metrics["structure"]["log_prob"],
        "entropy": metrics["structure"]["entropy"],
        "seconds": metrics["seconds"],
        "engine": metrics["engine"],
    }


def main(
    out: options.Out = options.RESULTS / "structures",
    data: options.Data = "fashion-mnist",
    data_root: options.DataRoot = None,
    network: Annotated[str, typer.Option(help="With a graph in it.")] = "cell-graph",
    seeds: options.Count = 3,
    epochs: options.Count = 15,
    sets: options.Sets = None,
    threads: options.Count = 1,
    device: options.Device = "auto",
    runs: options.Runs = None,
    workers: options.Workers = None,
) -> None:
    """Run what is missing, and write one JSON file."""
    torch.set_num_threads(threads)
    chosen: dict[str, Any] = {"epochs": epochs}
    if data == "fashion-mnist":
        chosen["data.n_train"] = 10_000
    chosen |= parse_settings(sets or [])
    add_seeds(
        out / f"{data}-{network}.json", seeds, "structure", data, row=row, numbers=_numbers,
        say=_line, runs=runs, device=device, workers=workers, network=network,
        data_root=data_root, sets=chosen,
    )  # fmt: skip


def _numbers(one: Row) -> dict[str, float]:
    return {f"{part} {name}": v for part, m in one["test"].items() for name, v in m.items()}


def _line(one: Row) -> str:
    shown = ", ".join(f"{p} {next(iter(m.values())):.4f}" for p, m in one["test"].items())
    return f"seed {one['seed']}: {shown}; {one['parameters']:,} parameters"


if __name__ == "__main__":
    typer.run(main)
