"""Networks for every weight λ of the KL, from one fit: the published table, and what we get.

    python -m experiments path_of_lambda --again --data-root FOLDER

A network of 784-50-10 units is fitted for each λ by itself (``direct``), and once for all of them,
by parameters that are functions of log λ, of every form of FORMS. Of each network the weights with
the least μ²/σ² are set to zero, layer by layer, and the rest classify the test rows. Seconds are of
the processor, for all λ of a row. A finished seed is kept: the same command goes on where an
earlier one stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pyroccam.data import Dataset, load
from pyroccam.guides import MeanField
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.inference.training.fitting import fit
from pyroccam.inference.training.result import Fit
from pyroccam.models import BayesianNetwork
from pyroccam.models.priors import Normal
from torch import nn

from .compression import short
from .forms import FORMS
from .markdown import header, mean_sd, read_all, row
from .runner import Choice, File, Given, Row, Spec, seeds

__all__ = ["PUBLISHED", "ROWS", "SETTINGS", "SPEC", "pruned"]

SHARES = (0, 60, 80, 90)
"""Of the weights of a layer, in %, that are set to zero."""

# Grebenkova, Bakhteev, Strijov (github.com/Intelligent-Systems-Phystech/VarHyperNet, the results
# that are committed there): accuracy in %, mean of five starts, by λ and by SHARES.
PUBLISHED: dict[str, dict[str, list[float]]] = {
    "direct": {
        "0.001": [96.3, 94.0, 76.7, 44.0], "0.1": [96.4, 94.0, 77.2, 47.6],
        "1": [96.2, 94.3, 80.9, 52.0], "10": [94.7, 94.0, 87.1, 60.8],
        "100": [80.1, 82.6, 84.2, 80.4],
    },
    "piecewise": {
        "0.001": [96.8, 93.8, 65.8, 41.2], "0.1": [96.9, 94.3, 65.3, 40.2],
        "1": [96.6, 94.0, 73.4, 57.2], "10": [92.2, 92.7, 87.5, 75.3],
        "100": [80.3, 85.5, 86.9, 78.3],
    },
    "linear": {
        "0.001": [96.9, 93.1, 71.6, 58.9], "0.1": [95.5, 94.5, 83.0, 77.9],
        "1": [93.8, 93.9, 82.8, 77.8], "10": [92.0, 93.3, 83.6, 75.5],
        "100": [89.4, 92.3, 84.9, 75.7],
    },
}  # fmt: skip


WEIGHTS = (0.001, 0.1, 1.0, 10.0, 100.0)
"""λ of the table."""

ROWS = ("direct", *FORMS)
"""Each λ by itself, and the forms of functions of all."""

ORDER = ("direct", "piecewise", "linear", "low-rank", "film")
"""Of the table, whatever forms there are by now."""

# Published: Adam at a rate of 5e-4, 25 epochs of each λ, and 50 of all in common with five draws of
# λ in a step, log10 λ uniform from -3 to 2. A higher rate that falls needs fewer epochs; ours
# have one λ in a step.
SETTINGS: dict[str, Any] = {"batch_size": 256, "optimizer": "adam", "lr": 2e-3, "epochs": 10}

COMMON = 4
"""Epochs of all λ in common, in those of one."""


def files(given: Given) -> Iterable[File]:
    """One of each row."""
    for form in given.rows:
        times = 1 if form == ROWS[0] else given.common
        suffix = "" if form == ROWS[0] or times == COMMON else f"-x{times}"
        config = {"data": given.data, "form": form, "common": times, "settings": given.set}
        run_one = partial(_row, given, form, times)
        yield File(f"{short(given.data)}-{form}{suffix}", {"config": config}, run_one, seeds(given))


def _row(given: Given, form: str, times: int, seed: int) -> Row:
    place = {} if given.data_root is None else {"data_root": given.data_root}
    data: Dataset = load(given.data, seed=seed, **place)
    how = {**given.set, "device": given.device}
    begun = time.process_time()
    accuracy = {
        f"{weight:g}": [100 * pruned(one, share / 100) for share in SHARES]
        for weight, one in _fits(data, form, times, seed, how)
    }
    return {"accuracy": accuracy, "seconds": time.process_time() - begun}


def _fits(
    data: Dataset, form: str, times: int, seed: int, given: Mapping[str, Any]
) -> Iterator[tuple[float, Fit[Any, Any]]]:
    """The fit of each λ: by itself, or out of one of them all."""
    how = {**given, "seed": seed, "evaluations": 1, "progress": False}
    if form == ROWS[0]:
        for weight in WEIGHTS:
            yield weight, fit(*_pair(data, seed), data, kl_weight=weight, **how)
        return
    model, guide = _pair(data, seed)
    low, high, pivots = min(WEIGHTS), max(WEIGHTS), 2 if form == "linear" else 6
    all_of_them = FORMS[form](guide, low=low, high=high, pivots=pivots)
    found = fit(model, all_of_them, data, **{**how, "epochs": times * how["epochs"]})
    for weight in WEIGHTS:
        yield weight, found.at(weight)


def _pair(data: Dataset, seed: int) -> tuple[BayesianNetwork, MeanField]:
    """Weights as torch draws them, deviations of e⁻³ beside a prior of 1, as published."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(data.input_shape), 50), nn.ReLU(),
        nn.Linear(50, data.outputs),
    )  # fmt: skip
    model = BayesianNetwork(net, data, prior=Normal(1.0))
    return model, MeanField(model, scale=math.exp(-3.0))


@torch.no_grad()
def pruned(one: Fit[Any, Any], share: float) -> float:
    """The accuracy on the test rows of the means, where the weights of each layer with the least
    μ²/σ² are zero.

    Arguments:
        share: of the weights of a layer.
    """
    net = one.posterior.mean_network()
    for name in one.model.layers:
        q = one.guide.posterior(f"{name}.weight").base_dist
        least = (q.loc / q.scale).abs().flatten().argsort()[: round(share * q.loc.numel())]
        net.get_submodule(name).get_parameter("weight").view(-1)[least] = 0.0
    return evaluate_net(net, one.model, one.data)["accuracy"]


def table(folder: Path) -> Iterable[str]:
    """Accuracies of all λ and shares by form, and what they cost."""
    found = read_all(folder)
    stems = {n: n.rsplit(f"-{one['config']['form']}", 1)[0] for n, one in found.items()}
    for data in sorted(set(stems.values())):
        names = [name for name in found if stems[name] == data]
        names.sort(key=lambda name: (ORDER.index(found[name]["config"]["form"]), name))
        own = {name.removeprefix(f"{data}-"): found[name]["runs"] for name in names}
        pruned = "/".join(map(str, SHARES))
        yield from header(
            f"{data}, λ: accuracy at {pruned} % pruned",
            *(f"{name} ({len(runs)})" for name, runs in own.items()),
        )
        for weight in next(iter(own.values()))[0]["accuracy"]:
            cells = (zip(*(run["accuracy"][weight] for run in runs), strict=True)
                     for runs in own.values())  # fmt: skip
            yield row(weight, *(" / ".join(mean_sd(one, 1) for one in cell) for cell in cells))
            if data == "mnist":
                forms = (found[name]["config"]["form"] for name in names)
                theirs = (PUBLISHED.get(form, {}).get(weight, ["-"]) for form in forms)
                yield row("published", *(" / ".join(map(str, one)) for one in theirs))
        seconds = {name: fmean(run["seconds"] for run in runs) for name, runs in own.items()}
        yield row("seconds", *(f"{one:.0f}" for one in seconds.values()))
        if ROWS[0] in own:
            each = seconds[ROWS[0]] / len(own[ROWS[0]][0]["accuracy"])
            yield row("fits of one λ in that time", *(f"{s / each:.1f}" for s in seconds.values()))
        yield ""


SPEC = Spec(
    "experiments.published.path_of_lambda", "Path of lambda", "path",
    {
        "data": "mnist", "data_root": str,
        "rows": Choice(ROWS), "common": COMMON, "set": SETTINGS, "device": "auto",
    },
    files, table,
    small="--data digits --rows direct,linear --seeds 1 --set epochs=1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
