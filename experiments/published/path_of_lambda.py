r"""Networks for every weight λ of the KL, from one fit: the published table, and what we get.

    python -m experiments.published.path_of_lambda --data-root FOLDER
    python -m experiments.published.path_of_lambda --data-root FOLDER \
        --data experiments.sets:cifar10_part --network conv --width 0.125 --images 5000 \
        --rows direct,piecewise --seeds 1 --common 3 --set epochs=20 --set batch_size=64

A network of 784-50-10 units, or a convolutional one of three λ (``conv``), is fitted for each λ by
itself (``direct``), and once for all of them, by parameters that are functions of log λ, of every
form of FORMS. Of each network the weights with the least μ²/σ² are set to
zero, layer by layer, and the rest classify the test rows. Seconds are of the processor, for all λ
of a row. A finished seed is kept: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

import torch
import typer
from pyroccam.data import Dataset, load
from pyroccam.guides import MeanField
from pyroccam.inference.fits.fitting import Fit, fit
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.models import BayesianNetwork
from pyroccam.models.priors import Normal
from torch import nn

from . import options
from .compression import short
from .forms import FORMS
from .runner import ResultFile, Row

__all__ = ["PUBLISHED", "ROWS", "SETTINGS", "main", "pruned"]

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


@dataclass(frozen=True)
class Network:
    """A network of the source.

    Attributes:
        make: from the shape of an input, the number of outputs and a factor on all widths.
        weights: λ of the table.
        pivots: of broken lines.
        width: the factor.
    """

    make: Callable[[Sequence[int], int, float], nn.Module]
    weights: tuple[float, ...]
    pivots: int = 6
    width: float = 1.0


def _perceptron(shape: Sequence[int], outputs: int, width: float) -> nn.Module:
    units = max(1, round(50 * width))
    hidden = nn.Linear(math.prod(shape), units)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(units, outputs))


def _conv(shape: Sequence[int], outputs: int, width: float) -> nn.Module:
    """3 x 3 convolutions of 48, 96, 192 and 256 channels, with two poolings, and 512 and 64
    units."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise typer.BadParameter(
            f"network conv takes images of 4 x 4 or more, not inputs of shape {tuple(shape)}.\n"
            "Take other --data, or --network perceptron."
        )
    channels = [shape[0], *(max(1, round(n * width)) for n in (48, 96, 192, 256))]
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(pairwise(channels), 1):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if k % 2 == 0 else []
    units = [channels[-1] * (shape[1] // 4) * (shape[2] // 4)]
    units += [max(1, round(n * width)) for n in (512, 64)]
    layers.append(nn.Flatten())
    for before, after in pairwise(units):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(units[-1], outputs))


NETWORKS = {
    "perceptron": Network(_perceptron, (0.001, 0.1, 1.0, 10.0, 100.0)),
    "conv": Network(_conv, (0.01, 0.1, 1.0), pivots=3),
}

ROWS = ("direct", *FORMS)
"""Each λ by itself, and the forms of functions of all."""

# Published: Adam at a rate of 5e-4, 25 epochs of each λ, and 50 of all in common with five draws of
# λ in a step, log10 λ uniform from -3 to 2. A higher rate that falls needs fewer epochs; ours
# have one λ in a step.
SETTINGS: dict[str, Any] = {"batch_size": 256, "optimizer": "adam", "lr": 2e-3, "epochs": 10}

COMMON = 4
"""Epochs of all λ in common, in those of one."""


def main(
    out: options.Out = options.RESULTS / "path",
    data: options.Data = "mnist",
    data_root: options.DataRoot = None,
    network: Annotated[str, typer.Option(help="perceptron (784-50-10) or conv.")] = "perceptron",
    width: Annotated[float, typer.Option(min=0.01, help="Factor on all widths.")] = 1.0,
    images: Annotated[int, typer.Option(min=0, help="Training rows; 0 takes all.")] = 0,
    rows: Annotated[str, options.BY_COMMAS] = ",".join(ROWS),
    seeds: options.Count = 3,
    common: Annotated[
        int, typer.Option(min=1, help="Epochs of all λ in common, in those of one.")
    ] = COMMON,
    sets: options.Sets = None,
    threads: options.Count = 1,
    device: options.Device = "auto",
) -> None:
    """Run what is missing, and write one JSON file for each row."""
    torch.set_num_threads(threads)
    options.listed("network", network, NETWORKS)
    chosen = replace(NETWORKS[network], width=width)
    given = {"network": network, "width": width, "images": images}
    usual = {"network": "perceptron", "width": 1.0, "images": 0}
    more = {name: value for name, value in given.items() if value != usual[name]}
    stem = "-".join([short(data), *map(str, more.values())])
    place: dict[str, Any] = {} if data_root is None else {"data_root": data_root}
    place |= {"n_train": images} if images else {}
    for name in options.listed("row", rows, ROWS):
        settings = options.settings_of(sets, SETTINGS)
        times = 1 if name == ROWS[0] else common
        config = {"data": data, "form": name, "common": times, "settings": settings, **more}
        suffix = "" if name == ROWS[0] or times == COMMON else f"-x{times}"
        file = ResultFile(out / f"{stem}-{name}{suffix}.json", config=config)
        for seed in file.missing(range(seeds)):
            dataset = load(data, seed=seed, **place)
            how = {**settings, "device": device}
            row = _row(dataset, chosen, name, times, seed, how)
            published = PUBLISHED.get(name) if stem == "mnist" else None
            file.add(row, _spread, published=published, shares=list(SHARES))
            file.write(seconds=mean_spread([{"all": one["seconds"]} for one in file.runs])["all"])
            for weight, found in row["accuracy"].items():
                shown = "/".join(f"{one:.1f}" for one in found)
                print(f"{name} seed {seed}, lambda {weight}: {shown} %", flush=True)


def _row(
    data: Dataset, network: Network, form: str, times: int, seed: int, how: Mapping[str, Any]
) -> Row:
    begun = time.process_time()
    accuracy = {
        f"{weight:g}": [100 * pruned(one, share / 100) for share in SHARES]
        for weight, one in _fits(data, network, form, times, seed, how)
    }
    return {"seed": seed, "accuracy": accuracy, "seconds": time.process_time() - begun}


def _fits(
    data: Dataset, network: Network, form: str, times: int, seed: int, given: Mapping[str, Any]
) -> Iterator[tuple[float, Fit[Any, Any]]]:
    """The fit of each λ: by itself, or out of one of them all."""
    how = {**given, "seed": seed, "evaluations": 1, "progress": False}
    if form == ROWS[0]:
        for weight in network.weights:
            yield weight, fit(*_pair(data, network, seed), data, kl_weight=weight, **how)
        return
    model, guide = _pair(data, network, seed)
    low, high = min(network.weights), max(network.weights)
    pivots = 2 if form == "linear" else network.pivots
    all_of_them = FORMS[form](guide, low=low, high=high, pivots=pivots)
    found = fit(model, all_of_them, data, **{**how, "epochs": times * how["epochs"]})
    for weight in network.weights:
        yield weight, found.at(weight)


def _pair(data: Dataset, network: Network, seed: int) -> tuple[BayesianNetwork, MeanField]:
    """Weights as torch draws them, deviations of e⁻³ beside a prior of 1, as published."""
    torch.manual_seed(seed)
    net = network.make(data.input_shape, data.outputs, network.width)
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


def _spread(runs: list[Row]) -> dict[str, Any]:
    """Mean and deviation over the seeds, by λ and share."""
    return {
        weight: {
            str(share): mean_spread([{"accuracy": run["accuracy"][weight][i]} for run in runs])
            for i, share in enumerate(SHARES)
        }
        for weight in runs[0]["accuracy"]
    }


if __name__ == "__main__":
    typer.run(main)
