"""Structures for every price of a parameter, from one fit, beside structures at random.

    python -m experiments.published.structure.path_of_costs --data-root FOLDER

Weights are numbers, which all structures share. The prior of a primitive falls by a tenth of a nat
of every 100 parameters, and the KL of the structure has a weight λ, of which the logits of every
edge are piecewise linear functions (``guides.Conditional``). The most probable structure of some λ
is trained afresh, and so are structures that are drawn with equal probabilities, of any size. A
finished seed is kept: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from pyroccam.data import Dataset, load
from pyroccam.guides import Conditional, Delta, MeanField, StructureFamily
from pyroccam.inference.cutting.cost import count_parameters
from pyroccam.inference.cutting.surgery import ROWS
from pyroccam.inference.fits.fitting import fit
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.structures import Choice
from pyroccam.inference.pruning.graph import choose_structure, random_structures
from pyroccam.models import BayesianNetwork, StructuredNetwork
from pyroccam.models.distributions.temperature import Annealed
from pyroccam.models.networks.discrete import discretised, primitive_sizes
from pyroccam.models.networks.graphs import GRAPHS
from pyroccam.models.priors import GumbelSoftmax, Normal

from .. import options
from ..runner import ResultFile, Row

__all__ = ["PRICE", "SETTINGS", "WEIGHTS", "front", "main"]

PRICE = 1e-3
"""Nats that a parameter costs, at λ = 1."""

WEIGHTS = (1.0, 10.0, 30.0, 100.0, 300.0)
"""λ whose structures are trained afresh."""

SETTINGS: dict[str, Any] = {
    "optimizer": "adam", "lr": 5e-3, "schedule": "linear", "weight_decay": 1e-4, "batch_size": 256,
    "epochs": 15,
}  # fmt: skip

COMMON = 2
"""Epochs of all λ in common, in those of a structure that is trained afresh."""


def main(
    out: options.Out = options.RESULTS / "structure_path",
    data: options.Data = "fashion-mnist",
    data_root: options.DataRoot = None,
    network: str = "cell-graph",
    seeds: options.Count = 1,
    random: options.Count = 20,
    rows: Annotated[int, typer.Option(min=0, help="Training rows; 0 takes all.")] = 10_000,
    sets: options.Sets = None,
    threads: options.Count = 1,
    device: options.Device = "auto",
) -> None:
    """Run what is missing, and write one JSON file."""
    torch.set_num_threads(threads)
    settings = options.settings_of(sets, SETTINGS)
    config = {"data": data, "rows": rows, "network": network, "price": PRICE, "settings": settings}
    file = ResultFile(Path(out) / f"{data}-{network}.json", config=config)
    place: dict[str, Any] = {} if data_root is None else {"data_root": data_root}
    place |= {"n_train": rows} if rows else {}
    for seed in file.missing(range(seeds)):
        dataset = load(data, seed=seed, **place)
        how = {**settings, "seed": seed, "device": device, "evaluations": 1, "progress": False}
        row = _row(dataset, network, random, seed, how)
        file.add(row, _spread)
        for name, ones in row["networks"].items():
            for one in ones:
                print(f"seed {seed}, {name}: {one['parameters']:,} parameters, "
                      f"{100 * one['accuracy']:.2f} %", flush=True)  # fmt: skip


def _row(data: Dataset, network: str, random: int, seed: int, how: Mapping[str, Any]) -> Row:
    torch.manual_seed(seed)
    net = GRAPHS[network](data.input_shape, data.outputs)
    probs = {
        edge: [math.exp(-PRICE * (size - min(sizes.values()))) for size in sizes.values()]
        for edge, sizes in primitive_sizes(net).items()
    }
    prior = GumbelSoftmax(Annealed(1.0, 0.2), probs=probs)
    model = StructuredNetwork(net, data, structure=prior)
    inner = MeanField(model, structure=StructureFamily())
    guide = Conditional(inner, low=min(WEIGHTS), high=max(WEIGHTS), pivots=6)
    search = {**how, "guide_lr": 0.02, "epochs": COMMON * how["epochs"]}
    found = fit(model, guide, data, **search)
    choices = [choose_structure(found.at(weight)).chosen for weight in WEIGHTS]
    others = random_structures(model, random, example=data.x_train[:ROWS], seed=seed)
    at_random = [_afresh(network, data, one, seed, how) for one in others]
    # What several weights choose is trained once.
    fresh: list[tuple[Choice, dict[str, Any]]] = []
    path = []
    for weight, choice in zip(WEIGHTS, choices, strict=True):
        known = next((one for had, one in fresh if had == choice), None)
        one = _afresh(network, data, choice, seed, how) if known is None else known
        fresh.append((choice, one))
        path.append({"weight": weight, "choice": choice, **one})
    return {
        "seed": seed,
        "networks": {"path": path, "random": at_random},
        "front": front(path, at_random),
        "seconds": found.seconds,
    }


def _afresh(
    network: str, data: Dataset, choice: Choice, seed: int, how: Mapping[str, Any]
) -> dict[str, Any]:
    """What a structure is worth, trained from the beginning."""
    torch.manual_seed(seed)
    plain = discretised(GRAPHS[network](data.input_shape, data.outputs), choice)
    model = BayesianNetwork(plain, data, prior=Normal(1.0))
    one = fit(model, Delta(model), data, **how)
    parameters = count_parameters(model.start_network())
    return {"parameters": parameters, "accuracy": one.evaluate()["accuracy"]}


def front(path: list[dict[str, Any]], random: list[dict[str, Any]]) -> dict[str, float]:
    """How the structures of the path stand beside those at random.

    Returns:
        ``beaten``, the mean share of random structures with as many parameters or fewer that are
        worse; ``gain``, by how much accuracy the path is above the best of these, on average. Of
        points that no random structure is as small as, nothing is counted.
    """
    shares, gains = [], []
    for one in path:
        rivals = [r["accuracy"] for r in random if r["parameters"] <= one["parameters"]]
        if rivals:
            shares.append(sum(a < one["accuracy"] for a in rivals) / len(rivals))
            gains.append(one["accuracy"] - max(rivals))
    counted = max(len(shares), 1)
    return {"beaten": sum(shares) / counted, "gain": sum(gains) / counted}


def _spread(runs: list[Row]) -> dict[str, Any]:
    return mean_spread([run["front"] for run in runs])


if __name__ == "__main__":
    typer.run(main)
