"""Depth, widths and bits for every weight of the KL, from one fit.

    python -m experiments.trials.every_size --data fashion-mnist --data-root FOLDER

A stack of residual blocks is trained as numbers, then as a posterior for every weight λ
(``guides.Conditional`` around a ``models.BayesianStack``). Of some λ the posterior of the depth,
the small network and its file are read off, without any further training (``inference.path``), and
the small network is scored on the test rows. Seconds are of the processor, and of all together.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import typer
from pyroccam import guides, inference, models
from pyroccam.data import Dataset, load
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import evaluate_net

from ..published import options
from ..published.runner import ResultFile, Row

__all__ = ["RANGE", "SETTINGS", "WEIGHTS", "main"]

WEIGHTS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""λ that are read off."""

RANGE = (0.02, 1.0)
"""λ that are trained."""

# As the method occam has them; a fifth of the steps before as numbers.
SETTINGS: dict[str, Any] = {
    "optimizer": "adam", "schedule": "linear", "weight_decay": 0.0, "lr": 3e-3, "kl_warmup": 0.3,
    "batch_size": 256, "steps": 20_000, "guide_lr": 0.03,
}  # fmt: skip
NUMBERS = 0.2

MEASURES = ("depth", "error", "nll", "file_bytes", "parameters")


def main(
    out: options.Out = options.RESULTS / "every_size",
    data: options.Data = "fashion-mnist",
    data_root: options.DataRoot = None,
    width: options.Count = 100,
    max_depth: options.Count = 10,
    seeds: options.Count = 3,
    sets: options.Sets = None,
    threads: options.Count = 1,
    device: options.Device = "auto",
) -> None:
    """Run the seeds that the file lacks."""
    torch.set_num_threads(threads)
    settings = options.settings_of(sets, SETTINGS)
    config = {"data": data, "width": width, "max_depth": max_depth, "settings": settings}
    file = ResultFile(out / f"{data}-{max_depth}.json", config=config)
    place: dict[str, Any] = {} if data_root is None else {"data_root": data_root}
    for seed in file.missing(range(seeds)):
        dataset = load(data, seed=seed, **place)
        how = {**settings, "epochs": None, "seed": seed, "device": device, "progress": False}
        begun = time.process_time()
        points = _points(dataset, width, max_depth, how)
        seconds = time.process_time() - begun
        file.add({"seed": seed, "points": points, "seconds": seconds}, _spread)
        for one in points:
            print(
                f"seed {seed}, λ = {one['weight']:g}: depth {one['depth']}, {one['error']:.2f} %, "
                f"{one['file_bytes']:,} bytes",
                flush=True,
            )


def _points(data: Dataset, width: int, max_depth: int, how: dict[str, Any]) -> list[Row]:
    torch.manual_seed(how["seed"])
    shape = {"width": width, "max_depth": max_depth}
    stack = models.networks.residual_mlp(data.input_shape, data.outputs, **shape)
    numbers = models.BayesianStack(stack, data, prior=models.priors.Normal(1.0))
    start = guides.Delta(numbers, structure=guides.StructureFamily(hold=0.99))
    first = max(1, round(NUMBERS * how["steps"]))
    inference.fit(numbers, start, data, **{**how, "steps": first, "kl_warmup": 0.0})
    trained = mean_network(numbers, start)
    model = models.BayesianStack(trained, data, prior=models.priors.GroupNormalJeffreys())
    inner = guides.MeanField(model, scale=0.1)
    guide = guides.Conditional(inner, low=RANGE[0], high=RANGE[1])
    fit = inference.fit(model, guide, data, **{**how, "steps": how["steps"] - first})
    rows = []
    for point in inference.path(fit, WEIGHTS):
        test = evaluate_net(point.small.net, point.fit.model, data)
        assert point.fit.structure is not None
        probs = point.fit.structure.depth_probs.tolist()
        error = 100 * (1 - test["accuracy"])
        rows.append({**point.to_json(), "depth_probs": probs, "error": error, "nll": test["nll"]})
    return rows


def _spread(runs: list[Row]) -> dict[str, Any]:
    """By λ, over the seeds."""
    return {
        f"{weight:g}": mean_spread(
            [{name: float(run["points"][k][name]) for name in MEASURES} for run in runs]
        )
        for k, weight in enumerate(WEIGHTS)
    }


if __name__ == "__main__":
    typer.run(main)
