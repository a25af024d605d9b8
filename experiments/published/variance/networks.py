"""Variance networks and variational dropout on MNIST: the published tables, and what we get.

    python -m experiments.published.variance.networks --data-root FOLDER

LeNet-5 with batch normalisation, as the authors have it. Random are the weights of the first linear
layer (93 % of all); binary dropout masks the inputs of both linear layers, and in the deterministic
network nothing is random. A finished seed is kept: the same command goes on where an earlier one
stopped.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import torch
import typer
from pyroccam.cli.runs.config import parse_settings
from pyroccam.cli.runs.run import Outcome
from pyroccam.inference.elbo.full_data import evidence
from pyroccam.inference.pruning.variance_network import mean_costs

from .. import options
from ..compression import short
from ..runner import Row, add_seeds

__all__ = ["CONTENDERS", "PUBLISHED"]

_ONE_LAYER = {"layers": "penultimate"}
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "deterministic": ("bayes", {"guide": "delta", "finish": 0.0, "batch_size": 256}),
    "dropout": ("dropout", {}),
    "gaussian-dropout": ("gaussian-dropout", _ONE_LAYER),
    "variance": ("variance", _ONE_LAYER),
    # The source begins low and takes 200 epochs; these begin where the phase transition is.
    "layer": ("variational-dropout", {**_ONE_LAYER, "guide": "dropout-layer:3"}),
    "neuron": ("variational-dropout", {**_ONE_LAYER, "guide": "dropout-neuron:3"}),
    "weight": ("variational-dropout", {**_ONE_LAYER, "guide": "dropout-weight:3"}),
    "additive": ("variational-dropout", {**_ONE_LAYER, "guide": "mean-field"}),
}

# Molchanov 2018 (slides on arXiv:1803.03764): LeNet-5, accuracies in %, the ELBO in nats.
PUBLISHED: dict[str, dict[str, float]] = {
    "dropout": {"stochastic": 99.1, "deterministic": 99.4, "ensemble": 99.4},
    "variance": {"stochastic": 95.9, "deterministic": 10.1, "ensemble": 99.3},
    "layer": {"elbo": -5.9e2, "deterministic": 11.3, "ensemble": 99.2},
    "neuron": {"elbo": -7.7e2, "deterministic": 11.3, "ensemble": 99.2},
    "weight": {"elbo": -6.4e4, "deterministic": 81.3, "ensemble": 99.2},
    "additive": {"elbo": -2.3e4, "deterministic": 96.3, "ensemble": 99.2},
}


def main(
    out: options.Out = options.RESULTS / "variance",
    data: options.Data = "mnist",
    data_root: options.DataRoot = None,
    network: options.Network = "lenet-5-caffe",
    contenders: Annotated[str, options.BY_COMMAS] = ",".join(CONTENDERS),
    seeds: options.Count = 3,
    epochs: options.Count = 20,
    sets: options.Sets = None,
    threads: options.Count = 1,
    device: options.Device = "auto",
    runs: options.Runs = None,
    workers: options.Workers = None,
) -> None:
    """Run what is missing, and write one JSON file for each contender."""
    torch.set_num_threads(threads)
    common = {"epochs": epochs, "lr": 1e-3, "batch_size": 200}
    if network == "lenet-5-caffe":
        common["batch_norm"] = True
    asked = parse_settings(sets or [])
    for name in options.listed("contender", contenders, CONTENDERS):
        method, own = CONTENDERS[name]
        same = (data, network) == ("mnist", "lenet-5-caffe")
        add_seeds(
            out / f"{short(data)}-{network}-{name}.json", seeds, method, data,
            row=_row, numbers=_numbers, say=partial(_line, name), runs=runs, device=device,
            workers=workers, network=network, data_root=data_root, sets={**common, **own, **asked},
            beside={"published": PUBLISHED.get(name) if same else None},
        )  # fmt: skip


def _numbers(one: Row) -> dict[str, float]:
    return {**{how: m["accuracy"] for how, m in one["test"].items()}, **one["numbers"]}


def _row(outcome: Outcome) -> Row:
    """The row that is kept of a run."""
    metrics = outcome.metrics
    fit: Any = outcome.fit
    numbers: dict[str, float] = {}
    worth: dict[str, float] = {}
    if fit.guide.handler is not None:  # weights that are points have no such bound
        bound = evidence(fit.model, fit.guide, fit.data)
        numbers = {"elbo": bound.elbo, "elbo_error": bound.error, "kl": bound.kl}
        if not fit.guide.traits.zero_mean:
            worth = mean_costs(fit.model, fit.guide)
    return {
        "seed": metrics["seed"],
        "test": {how: {**m, "accuracy": 100 * m["accuracy"]} for how, m in metrics["test"].items()},
        "numbers": numbers,
        "means_worth_nats": worth,
        "seconds": metrics["seconds"],
        "engine": metrics["engine"],
        "device": metrics["device"],
    }


def _line(name: str, row: Row) -> str:
    shown = ", ".join(f"{how} {m['accuracy']:.2f} %" for how, m in row["test"].items())
    elbo = f", ELBO {row['numbers']['elbo']:.3g}" if row["numbers"] else ""
    return f"{name} seed {row['seed']}: {shown}{elbo}, {row['seconds']:.0f} s"


if __name__ == "__main__":
    typer.run(main)
