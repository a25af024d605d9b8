"""Variance networks and variational dropout on MNIST: the published tables, and what we get.

    python -m experiments networks --again --data-root FOLDER

LeNet-5 with batch normalisation, as the authors have it. Random are the weights of the first linear
layer (93 % of all); binary dropout masks the inputs of both linear layers, and in the deterministic
network nothing is random. A finished seed is kept: the same command goes on where an earlier one
stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from pyroccam.cli.runs.execution import Outcome
from pyroccam.inference.elbo.full_data import evidence
from pyroccam.inference.shrinking.variance_network import mean_costs

from ..compression import short
from ..markdown import column, header, plus_minus, read_all, row
from ..runner import Choice, File, Given, Row, Spec, of_method

__all__ = ["CONTENDERS", "PUBLISHED", "SPEC"]

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
    # Other symmetric distributions, and other models that end in them.
    "uniform": ("variance", {**_ONE_LAYER, "guide": "zero-mean-uniform"}),
    "rademacher": ("variance", {**_ONE_LAYER, "guide": "zero-mean-rademacher"}),
    **{
        name: ("variational-dropout", {**_ONE_LAYER, "guide": "dropout-layer:3", "prior": prior})
        for name, prior in (("ard", "ard"), ("student-t", "student-t:0.01"))
    },
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


def files(given: Given) -> Iterable[File]:
    """One of each contender."""
    common: dict[str, Any] = {"epochs": given.epochs, "lr": 1e-3, "batch_size": 200}
    if given.network == "lenet-5-caffe":
        common["batch_norm"] = True
    for name in given.contenders:
        method, own = CONTENDERS[name]
        sets = {**common, **own, **given.set}
        yield of_method(f"{short(given.data)}-{given.network}-{name}", method, kept, given, sets)


def kept(outcome: Outcome) -> Row:
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
        "test": {how: {**m, "accuracy": 100 * m["accuracy"]} for how, m in metrics["test"].items()},
        "numbers": numbers,
        "means_worth_nats": worth,
        "seconds": metrics["seconds"],
        "engine": metrics["engine"],
        "device": metrics["device"],
    }


_WAYS = ("stochastic", "deterministic", "ensemble")


def table(folder: Path) -> Iterable[str]:
    """Accuracies of three ways to predict, and bounds, beside the published."""
    files = read_all(folder)
    if not files:
        return
    yield from header("data, network, contender (seeds)", *(f"{w}, %" for w in _WAYS), "ELBO, nats")
    for name, found in files.items():
        runs = found["runs"]
        cells = [plus_minus(runs, f"test/{way}/accuracy", 2) for way in _WAYS]
        elbo = column(runs, "numbers/elbo")
        yield row(f"{name} ({len(runs)})", *cells, f"{fmean(elbo):.1e}" if elbo else "")
        known = PUBLISHED.get(name.removeprefix("mnist-lenet-5-caffe-"))
        if known is not None:
            shown = [f"{known[way]:g}" if way in known else "" for way in _WAYS]
            yield row("published", *shown, f"{known['elbo']:.1e}" if "elbo" in known else "")


SPEC = Spec(
    "experiments.published.variance.networks", "Variance networks", "variance",
    {
        "data": "mnist", "data_root": str, "network": "lenet-5-caffe",
        "contenders": Choice(CONTENDERS), "epochs": 20, "set": {}, "device": "auto", "runs": str,
    },
    files, table,
    small="--data digits --network perceptron --set hidden=[10,8] --set batch_size=100 "
    "--contenders deterministic,variance,additive --epochs 2 --seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
