"""Gradient descent and Langevin dynamics as posteriors, on the sets of their sources.

    python -m experiments.published.evidence.paths --data-root FOLDER

Six ways to end a training, as in the thesis of Bakhteev: after the last step, where validation rows
say so, the same with the prior in the objective, where the bound of gradient descent is highest,
Langevin dynamics where its bound is, and independent normals. A prediction is the mean over the
starts. The noise is that of the normals' fit, for all of them. A finished seed is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from pyroccam.data import Dataset, load
from pyroccam.guides import MeanField
from pyroccam.inference.elbo.full_data import evidence
from pyroccam.inference.fits.fitting import Fit, fit
from pyroccam.inference.marginal_likelihood import Descent, Langevin
from pyroccam.inference.marginal_likelihood.joint import Joint, joint
from pyroccam.inference.marginal_likelihood.optimisers import STEEPEST, Path, TooSteep, Walk
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.models import BayesianNetwork
from pyroccam.models.contexts import plain_kernels, seeded
from pyroccam.models.priors import Normal
from torch import Tensor, nn

from .. import options
from ..runner import ResultFile, Row

__all__ = ["PUBLISHED", "SETS", "WAYS"]

WAYS = ("plain", "validation", "validation and prior", "descent", "langevin", "normals")

# structure.md, section 2 (Bakhteev's thesis): RMSE, or accuracy for digits, in the order of WAYS;
# "noisy" with normal noise of 0.5 on the inputs.
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "boston": {
        "test": (8.1, 5.9, 5.2, 3.7, 6.7, 5.0),
        "noisy": (43.9, 18.6, 15.8, 11.9, 20.3, 18.2),
    },
    "boston-deep": {"test": (7.1, 4.3, 4.4, 3.2, 4.6, 6.8)},
    "protein": {"test": (5.1, 5.1, 5.1, 5.1, 5.1, 5.0)},
    "seven-nine": {"test": (0.985, 0.984, 0.986, 0.914, 0.979, 0.971)},
}


@dataclass(frozen=True)
class _Set:
    hidden: tuple[int, ...]
    starts: int = 10
    steps: int = 1500
    batch_size: int | None = None


SETS = {
    "boston": _Set((50,)),
    "boston-deep": _Set((50, 50, 50), steps=1000),
    "protein": _Set((100,), steps=1000, batch_size=500),
    "seven-nine": _Set((50,), starts=25),
}
EVALUATIONS = 60
NORMALS: dict[str, Any] = {"steps": 3000, "lr": 0.01, "batch_size": 500, "compile": "graph"}


def main(
    data_root: options.DataRoot = None,
    out: options.Out = options.RESULTS / "evidence-paths",
    sets: Annotated[str, options.BY_COMMAS] = ",".join(SETS),
    seeds: options.Count = 3,
    threads: options.Count = 1,
) -> None:
    """Run what is missing, and write one JSON file for each set."""
    torch.set_num_threads(threads)
    for name in options.listed("set", sets, SETS):
        file = ResultFile(
            out / f"{name}.json", settings={**vars(SETS[name]), "hidden": [*SETS[name].hidden]}
        )
        for seed in file.missing(range(seeds)):
            row = _row(name, seed, data_root)
            file.add(row, _spread, published=PUBLISHED[name])
            print(_line(name, row), flush=True)


def _spread(rows: list[Row]) -> Row:
    parts = ("test", "noisy", "bounds")
    return {part: mean_spread([row[part] for row in rows]) for part in parts}


def _row(name: str, seed: int, data_root: str | None) -> Row:
    """All ways on one split, with one seed."""
    own, rows = SETS[name], _data(name, seed, data_root)
    model, normals = _normals(rows, own, seed)
    steps: dict[str, Any] = {
        "steps": own.steps, "starts": own.starts, "evaluations": EVALUATIONS,
        "batch_size": own.batch_size,
    }  # fmt: skip
    ways = {
        "likelihood": Descent(objective="likelihood", **steps),
        "joint": Descent(objective="joint", **steps),
        "langevin": Langevin(**steps),
    }
    seen = {key: _walk(normals, how, seed) for key, how in ways.items()}
    by_likelihood, by_joint, dynamics = (seen[k] for k in ("likelihood", "joint", "langevin"))
    ends = {
        "plain": (by_likelihood, by_likelihood.path.times[-1]),
        "validation": (by_likelihood, by_likelihood.best_on_validation()),
        "validation and prior": (by_joint, by_joint.best_on_validation()),
        "descent": (by_likelihood, by_likelihood.path.best()[2]),
        "langevin": (dynamics, dynamics.path.best()[2]),
    }
    drawn = normals.outputs(rows.x_test, draws=own.starts)
    drawn_noisy = normals.outputs(_noisy(rows.x_test), draws=own.starts)
    lower = evidence(model, normals.guide, rows, passes=20, seed=seed)
    bounds = {way: seen[k].path.best()[0] for way, k in _BOUNDED.items()} | {"normals": lower.elbo}
    return {
        "seed": seed,
        "rows": rows.N,
        "noise": _noise(model),
        "test": {w: s.scores[t]["test"] for w, (s, t) in ends.items()}
        | {"normals": _score(rows, drawn)},
        "noisy": {w: s.scores[t]["noisy"] for w, (s, t) in ends.items()}
        | {"normals": _score(rows, drawn_noisy)},
        "steps": {way: end for way, (_, end) in ends.items()},
        "bounds": {way: value / rows.N for way, value in bounds.items()},
        "errors": {way: seen[k].path.best()[1] / rows.N for way, k in _BOUNDED.items()},
        "rates": {key: one.lr for key, one in seen.items()},
        "curves": {
            key: {
                "steps": one.path.times,
                "bound": (one.path.bounds(torch.arange(own.starts)) / rows.N).tolist(),
                "test": [one.scores[t]["test"] for t in one.path.times],
                "val_nll": [one.scores[t]["val_nll"] for t in one.path.times],
            }
            for key, one in seen.items()
        },
    }


_BOUNDED = {"descent": "likelihood", "langevin": "langevin"}


def _data(name: str, seed: int, data_root: str | None) -> Dataset:
    if name != "seven-nine":
        table = "protein" if name == "protein" else "boston"
        return load(f"uci/{table}", data_root=data_root, split=seed % 5, seed=seed)
    whole = load("mnist", data_root=data_root, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for split, most in (("train", 500), ("test", 10_000)):
        x, y = whole.split(split)
        chosen = ((y == 7) | (y == 9)).nonzero()[:, 0]
        chosen = chosen[torch.randperm(len(chosen), generator=generator)[:most]]
        parts += [x[chosen].flatten(1), (y[chosen] == 9).long()]
    centre = parts[0].mean(0)
    _, _, directions = torch.linalg.svd(parts[0] - centre, full_matrices=False)
    x, test = ((part - centre) @ directions[:50].T for part in (parts[0], parts[2]))
    return Dataset.from_tensors(x, parts[1], test, parts[3], val_fraction=0.1, seed=seed)


def _normals(rows: Dataset, own: _Set, seed: int) -> tuple[BayesianNetwork, Fit[Any, Any]]:
    """The model, and its fit by independent normals, which learns the noise too."""
    sizes = [*rows.input_shape, *own.hidden]
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for place, width in enumerate(own.hidden):
            layers += [nn.Linear(sizes[place], width), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(sizes[-1], rows.outputs))
    model = BayesianNetwork(net, rows, prior=Normal("fan_in"))
    found = fit(model, MeanField(model), rows, seed=seed, device="cpu", progress=False, **NORMALS)
    return model, found


@dataclass(frozen=True)
class _Walk:
    """A path, and how well its starts together predict at each of its times."""

    path: Path
    scores: dict[int, dict[str, float]]
    lr: float

    def best_on_validation(self) -> int:
        return min(self.scores, key=lambda t: self.scores[t]["val_nll"])


def _walk(found: Fit[Any, Any], how: Walk, seed: int) -> _Walk:
    """The path with the largest of 0.1 / 2^k that bears it."""
    lr = 0.1
    with joint(found, "descent") as density, plain_kernels():
        while True:
            scores: dict[int, dict[str, float]] = {}
            try:
                with seeded(seed, torch.device("cpu")):
                    look = _looking(density, found.data, scores)
                    made = how.path(density, lr, 0.5 * STEEPEST, look)
            except TooSteep:
                lr /= 2
                continue
            return _Walk(made, scores, lr)


def _looking(
    density: Joint, rows: Dataset, scores: dict[int, dict[str, float]]
) -> Callable[[int, Tensor], None]:
    """A function that notes how well the starts together predict."""
    inputs = [x.double() for x in (rows.x_test, _noisy(rows.x_test), rows.x_val)]

    def look(step: int, theta: Tensor) -> None:
        with torch.no_grad():
            test, noisy, val = (
                torch.stack([density.outputs(one, x) for one in theta]) for x in inputs
            )
            log_weights = torch.full((len(theta),), -math.log(len(theta)), dtype=torch.float64)
            each = density.model.likelihood.log_predictive(val, log_weights, rows.y_val)
        scores[step] = {
            "test": _score(rows, test),
            "noisy": _score(rows, noisy),
            "val_nll": -float(each.mean()),
        }

    return look


def _noisy(x: Tensor) -> Tensor:
    """Inputs with normal noise of 0.5 that is always the same."""
    return x + 0.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


def _score(rows: Dataset, outputs: Tensor) -> float:
    """Accuracy, or RMSE in original units, of what outputs ``(S, N, outputs)`` predict together."""
    if rows.classes is not None:
        found = outputs.softmax(-1).mean(0).argmax(-1)
        return float((found == rows.y_test).double().mean())
    squares = (outputs.mean(0) - rows.y_test).square().mean(0)
    return float((squares.sqrt() * rows.y_std).mean())


def _noise(model: BayesianNetwork) -> float | None:
    scale = model.likelihood.normal_scale()
    return None if scale is None else float(scale.detach().mean())


def _line(name: str, row: Row) -> str:
    shown = ", ".join(f"{way} {row['test'][way]:.3f} ({row['noisy'][way]:.3f})" for way in WAYS)
    bounds = ", ".join(f"{way} {value:.3f}" for way, value in row["bounds"].items())
    return f"{name} seed {row['seed']}: {shown}; bounds per row {bounds}"


if __name__ == "__main__":
    typer.run(main)
