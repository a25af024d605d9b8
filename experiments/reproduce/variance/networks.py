"""Variance networks and variational dropout on MNIST: the published tables, and what we get.

    python -m pyroccam.experiments.reproduce.variance.networks --data-root FOLDER

LeNet-5 with batch normalisation, as the authors have it. Random are the weights of the first linear
layer (93 % of all); binary dropout masks the inputs of both linear layers, and in the deterministic
network nothing is random. A finished seed is kept: the same command goes on where an earlier one
stopped.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ....inference.elbo.full_data import evidence
from ....inference.pruning.variance_network import mean_costs
from ....models.checks import unknown_name
from ...runs.config import parse_settings
from ...runs.run import Outcome
from ..seeds import add_seeds

__all__ = ["CONTENDERS", "PUBLISHED"]

_ONE_LAYER = {"layers": "penultimate"}
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "deterministic": ("bayes", {"guide": "delta"}),
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
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path(
        "experiments/results/variance"
    ),
    data: Annotated[str, typer.Option(help="A data set.")] = "mnist",
    data_root: Annotated[str | None, typer.Option("--data-root", metavar="FOLDER")] = None,
    network: Annotated[str, typer.Option(help="That the methods take.")] = "lenet-5-caffe",
    contenders: Annotated[str, typer.Option(help="By commas.")] = ",".join(CONTENDERS),
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    epochs: Annotated[int, typer.Option(min=1)] = 20,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")] = "auto",
    runs: Annotated[Path | None, typer.Option(help="Keep the runs here.")] = None,
) -> None:
    """Run what is missing, and write one JSON file for each contender."""
    torch.set_num_threads(threads)
    common = {"epochs": epochs, "lr": 1e-3, "batch_size": 200}
    if network == "lenet-5-caffe":
        common["batch_norm"] = True
    common |= parse_settings(sets or [])
    for name in contenders.split(","):
        if name not in CONTENDERS:
            raise typer.BadParameter(unknown_name("contender", name, CONTENDERS))
        method, options = CONTENDERS[name]
        path = out / f"{data}-{network}-{name}.json"
        same = (data, network) == ("mnist", "lenet-5-caffe")
        published = PUBLISHED.get(name) if same else None
        add_seeds(
            path, seeds, method, data, row=_row, numbers=_numbers,
            say=partial(_line, name), runs=runs, device=device, network=network,
            data_root=data_root, sets={**common, **options}, beside={"published": published},
        )  # fmt: skip


def _numbers(one: dict[str, Any]) -> dict[str, float]:
    return {**{how: m["accuracy"] for how, m in one["test"].items()}, **one["numbers"]}


def _row(outcome: Outcome) -> dict[str, Any]:
    """What is kept of a run."""
    metrics = outcome.metrics
    fit: Any = outcome.fit
    numbers: dict[str, float] = {}
    worth: dict[str, float] = {}
    if fit.guide.handler is not None:  # weights that are points have no such bound
        bound = evidence(fit.model, fit.guide, fit.data)
        numbers = {"elbo": bound.elbo, "elbo_error": bound.error, "kl": bound.kl}
        if not fit.guide.zero_mean:
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


def _line(name: str, row: dict[str, Any]) -> str:
    shown = ", ".join(f"{how} {m['accuracy']:.2f} %" for how, m in row["test"].items())
    elbo = f", ELBO {row['numbers']['elbo']:.3g}" if row["numbers"] else ""
    return f"{name} seed {row['seed']}: {shown}{elbo}, {row['seconds']:.0f} s"


if __name__ == "__main__":
    typer.run(main)
