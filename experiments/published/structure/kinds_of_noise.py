"""Which noise the source's table of hyperparameters has: the same networks under four kinds of it.

    python -m experiments.published.structure.kinds_of_noise --data-root FOLDER

The source gives errors "at noise" of 0.25 and 0.5 and does not say what is noisy. Here the weights
have it, in their own units or each in proportion to itself, or the inputs have it, as the data are
measured or as the network takes them. Networks are those of the table by random search and by the
greedy method, where rows are held out. A finished seed is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer
from pyroccam.data import Dataset
from pyroccam.inference import select
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import evaluate_net
from torch import Tensor, nn

from .. import options
from ..runner import ResultFile, Row
from .hyperparameters import METHODS, NOISES, PROBLEMS, pair_of, settings_of, under_noise

__all__ = ["KINDS", "PUBLISHED"]

# structure.md, section 2 (Bakhteev's thesis): accuracy or RMSE without noise, at 0.25 and
# at 0.5; of cross-validation.
PUBLISHED = {
    "polynomial": {"random": (1.367, 1.410, 1.555), "greedy": (1.421, 1.439, 1.536)},
    "wisdm": {"random": (0.660, 0.670, 0.690), "greedy": (0.707, 0.723, 0.769)},
    "mnist": {"random": (0.981, 0.966, 0.866), "greedy": (0.979, 0.962, 0.860)},
}
DRAWS = 10

Pair = tuple[nn.Module, Dataset]
Noisy = Callable[[nn.Module, Dataset, float, int], Pair]


def _on_weights(net: nn.Module, data: Dataset, sd: float, seed: int) -> Pair:
    return under_noise(net, sd, seed), data


def _in_proportion(
    net: nn.Module, data: Dataset, sd: float, seed: int
) -> tuple[nn.Module, Dataset]:
    normal = _normals(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.0 + sd * normal(p))
    return net, data


def _on_inputs(net: nn.Module, data: Dataset, sd: float, seed: int) -> Pair:
    x = data.x_test
    return net, replace(data, x_test=x + sd * _normals(seed)(x))


def _as_measured(net: nn.Module, data: Dataset, sd: float, seed: int) -> Pair:
    x = data.x_test
    unit: Tensor = data.x_std.reshape(-1, *(1,) * (x.dim() - 2)).to(x)
    return net, replace(data, x_test=x + sd * _normals(seed)(x) / unit)


def _normals(seed: int) -> Callable[[Tensor], Tensor]:
    """Standard normal numbers, as many as a tensor has, one after another."""
    generator = torch.Generator().manual_seed(seed)
    return lambda like: torch.randn(like.shape, generator=generator).to(like)


KINDS: dict[str, Noisy] = {
    "weights": _on_weights,
    "weights, in proportion": _in_proportion,
    "inputs as measured": _as_measured,
    "inputs of the network": _on_inputs,
}


def main(
    out: options.Out = options.RESULTS / "kinds_of_noise",
    data_root: options.DataRoot = None,
    problems: Annotated[str, options.BY_COMMAS] = ",".join(PROBLEMS),
    methods: Annotated[str, options.BY_COMMAS] = "random,greedy",
    seeds: options.Count = 3,
    threads: options.Count = 1,
) -> None:
    """Run what is missing; write a JSON file for each problem and method."""
    torch.set_num_threads(threads)
    for problem in options.listed("problem", problems, PROBLEMS):
        for method in options.listed("method", methods, METHODS):
            settings = settings_of(problem)
            file = ResultFile(out / f"{problem}-{method}.json", config=settings)
            published = PUBLISHED[problem].get(method)
            for seed in file.missing(range(seeds)):
                row = _row(problem, method, seed, data_root, settings)
                file.add(row, lambda rows: mean_spread([r["test"] for r in rows]),
                         published=published)  # fmt: skip
                shown = ", ".join(f"{name} {value:.3f}" for name, value in row["test"].items())
                print(f"{problem} {method} seed {seed}: {shown}", flush=True)


def _row(problem: str, method: str, seed: int, root: str | None, settings: dict[str, Any]) -> Row:
    model, guide, data, levels = pair_of(problem, "holdout", "weight", seed, root)
    select(model, guide, data, *levels, method=METHODS[method], seed=seed, **settings)
    measure = "rmse" if data.classes is None else "accuracy"
    whole = evaluate_net(mean_network(model, guide), model, data)[measure]
    found = {"none": whole}
    for kind, noisy in KINDS.items():
        for sd in NOISES:
            values = []
            for draw in range(DRAWS):
                net, rows = noisy(mean_network(model, guide), data, sd, draw)
                values.append(evaluate_net(net, model, rows)[measure])
            found[f"{kind} {sd}"] = sum(values) / DRAWS
    return {"seed": seed, "test": found}


if __name__ == "__main__":
    typer.run(main)
