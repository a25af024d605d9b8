"""Depth, widths and bits at once: how the chosen depth depends on the deepest, and what is left.

    python -m experiments.published.joint --data spirals --depths 10,20,40,80 \
        --set data.n=20000 --set batch_size=512 --set steps=8000
    python -m experiments.published.joint --data fashion-mnist --depths 10 \
        --set width=100 --set kl_weight=0.2 --fixed 1,10
    python -m experiments.published.joint --data experiments.sets:wisdm_series --depths 6 \
        --network experiments.trials.encoder:encoder_stack --fixed 1,6 \
        --set epochs=60 --set batch_size=128 --set kl_weight=0.1

Every run is ``pyroccam fit occam``, without a prior on depth that says what a block costs. With
``--fixed`` ordinary networks of these depths stand beside it, trained as numbers for as many steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.methods.table import METHODS
from pyroccam.cli.runs.config import parse_settings
from pyroccam.cli.runs.run import Outcome
from pyroccam.inference.cutting.cost import count_parameters

from . import options
from .compression import short
from .runner import Row, add_seeds

__all__ = ["main"]

SPREAD = ("depth", "depth_expected", "error", "whole_error", "parameters", "file_bytes",
          "times_faster", "seconds")  # fmt: skip

SIZES = ("depth", "chosen", "parameters", "kl_bytes", "number_bytes", "weight_bytes",
         "file_bytes")  # fmt: skip


def main(
    data: options.Data = "spirals",
    network: options.Network = "mlp",
    depths: Annotated[str, options.BY_COMMAS] = "10,20,40,80",
    seeds: options.Count = 3,
    fixed: Annotated[str, typer.Option(help="Depths that are trained alone, by commas.")] = "",
    out: options.Out = options.RESULTS / "joint",
    data_root: options.DataRoot = None,
    sets: options.Sets = None,
    runs: options.Runs = None,
    workers: options.Workers = None,
    threads: options.Count = 1,
    device: options.Device = "auto",
) -> None:
    """Run what is missing; one JSON file for each depth, of the stack or of what is fixed."""
    torch.set_num_threads(threads)
    own = parse_settings(sets or [])
    common: dict[str, Any] = {"network": network, "data_root": data_root}
    weight = f"-{own['kl_weight']:g}" if "kl_weight" in own else ""
    weight += f"-reach-{own['reach']:g}" if own.get("reach") else ""
    for deepest in map(int, filter(None, depths.split(","))):
        add_seeds(
            out / f"{short(data)}-{short(network)}-{deepest}{weight}.json", seeds, "occam", data,
            row=_row, say=_line, numbers=lambda row: {k: row[k] for k in SPREAD}, runs=runs,
            device=device, workers=workers, sets={**own, "max_depth": deepest}, **common,
        )  # fmt: skip
    plain = {k: METHODS["occam"].settings[k] for k in ("steps", "epochs", "batch_size")}
    plain |= {"lr": 1e-3, "schedule": "cosine"}
    plain |= {k: v for k, v in own.items() if k != "kl_weight"}
    if plain["epochs"] is not None:
        del plain["steps"]
    for depth in map(int, filter(None, fixed.split(","))):
        add_seeds(
            out / f"{short(data)}-{short(network)}-fixed-{depth}.json", seeds, "ddn", data,
            row=_fixed_row,
            say=lambda row: f"fixed depth {row['depth']} seed {row['seed']}: {row['error']:.2f}",
            numbers=lambda row: {k: row[k] for k in ("error", "nll", "seconds")}, runs=None,
            device=device, workers=workers,
            sets={**plain, "max_depth": depth, "depth": depth}, **common,
        )  # fmt: skip


def _row(outcome: Outcome) -> Row:
    metrics = outcome.metrics
    depth, structure, small = (metrics[k] for k in ("depth", "structure", "compressed"))
    test = small["test"]
    return {
        "seed": metrics["seed"],
        "depth": depth["depth_chosen"],
        "depth_expected": depth["depth_expected"],
        "depth_probs": depth["depth_probs"],
        "measure": "error, %" if "accuracy" in test else "RMSE",
        "error": _error(test),
        "nll": test["nll"],
        "whole_error": _error(metrics["test"]["ensemble"]),
        "architecture": structure["architecture"],
        "parameters": small["parameters"],
        "parameters_before": small["parameters_before"],
        "file_bytes": structure["file_bytes"],
        "message": metrics.get("message"),
        "sizes": [{name: row[name] for name in SIZES} for row in metrics["neighbours"]],
        "times_faster": small["seconds_per_batch_before"] / small["seconds_per_batch"],
        "seconds": metrics["seconds"],
        "engine": metrics["engine"],
        "device": metrics["device"],
    }


def _error(test: Mapping[str, float]) -> float:
    """In %, or the root mean square of a regression."""
    return 100 * (1 - test["accuracy"]) if "accuracy" in test else test["rmse"]


def _line(row: Row) -> str:
    return (
        f"seed {row['seed']}: depth {row['depth']} of {len(row['depth_probs']) - 1}, error "
        f"{row['error']:.2f}, {row['architecture']}, {row['file_bytes']:,} bytes, "
        f"{row['times_faster']:.1f} x faster, {row['seconds']:.0f} s"
    )


def _fixed_row(outcome: Outcome) -> Row:
    metrics, model = outcome.metrics, outcome.fit.model
    return {
        "seed": metrics["seed"],
        "depth": model.depth,
        "error": _error(metrics["test"]),
        "nll": metrics["test"]["nll"],
        "parameters": count_parameters(model),
        "seconds": metrics["seconds"],
    }


if __name__ == "__main__":
    typer.run(main)
