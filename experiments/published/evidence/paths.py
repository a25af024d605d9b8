"""Gradient descent and Langevin dynamics as posteriors, on the sets of their sources.

    python -m experiments paths --again --data-root FOLDER

Six ways to end a training, as in the thesis of Bakhteev: after the last step, where validation rows
say so, the same with the prior in the objective, where the bound of gradient descent is highest,
Langevin dynamics where its bound is, and independent normals. A prediction is the mean over the
starts. The noise is that of the normals' fit, for all of them. A finished seed is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyroccam.data import Dataset, load
from pyroccam.guides import MeanField
from pyroccam.inference.elbo.full_data import evidence
from pyroccam.inference.marginal_likelihood import Descent, Langevin
from pyroccam.inference.marginal_likelihood.joint import Joint, joint
from pyroccam.inference.marginal_likelihood.optimisers import STEEPEST, TooSteep, Walk
from pyroccam.inference.marginal_likelihood.optimisers import Path as Walked
from pyroccam.inference.training.fitting import fit
from pyroccam.inference.training.result import Fit
from pyroccam.models import BayesianNetwork
from pyroccam.models.contexts import plain_kernels, seeded
from pyroccam.models.priors import Normal
from torch import Tensor, nn

from ..markdown import header, plus_minus, read_all, row
from ..runner import Choice, File, Given, Row, Spec, seeds

__all__ = ["PUBLISHED", "SETS", "SPEC", "WAYS", "table"]

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


def files(given: Given) -> Iterable[File]:
    """One of each set."""
    for name in given.sets:
        own = SETS[name] if given.steps is None else replace(SETS[name], steps=given.steps)
        settings = {**asdict(own), "hidden": [*own.hidden]}
        settings |= {} if given.set == NORMALS else {"normals": given.set}
        yield File(name, {"settings": settings}, partial(_row, name, own, given), seeds(given))


def _row(name: str, own: _Set, given: Given, seed: int) -> Row:
    """All ways on one split, with one seed."""
    rows = _data(name, seed, given.data_root)
    model, normals = _normals(rows, own, given.set, seed)
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
    scores = {
        part: {way: walk.scores[end][part] for way, (walk, end) in ends.items()}
        | {"normals": _score(rows, normals.outputs(x, draws=own.starts))}
        for part, x in (("test", rows.x_test), ("noisy", _noisy(rows.x_test)))
    }
    lower = evidence(model, normals.guide, rows, passes=20, seed=seed)
    best = {way: seen[k].path.best() for way, k in _BOUNDED.items()}
    bounds = {way: value for way, (value, *_) in best.items()} | {"normals": lower.elbo}
    return {
        "rows": rows.N,
        "noise": _noise(model),
        **scores,
        "steps": {way: end for way, (_, end) in ends.items()},
        "bounds": {way: value / rows.N for way, value in bounds.items()},
        "errors": {way: error / rows.N for way, (_, error, *_) in best.items()},
        "rates": {key: one.lr for key, one in seen.items()},
        "curves": {key: one.curve(rows.N, own.starts) for key, one in seen.items()},
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


def _normals(
    rows: Dataset, own: _Set, how: Row, seed: int
) -> tuple[BayesianNetwork, Fit[Any, Any]]:
    """The model, and its fit by independent normals, which learns the noise too."""
    sizes = [*rows.input_shape, *own.hidden]
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for place, width in enumerate(own.hidden):
            layers += [nn.Linear(sizes[place], width), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(sizes[-1], rows.outputs))
    model = BayesianNetwork(net, rows, prior=Normal("fan_in"))
    found = fit(model, MeanField(model), rows, seed=seed, device="cpu", progress=False, **how)
    return model, found


@dataclass(frozen=True)
class _Walk:
    """A path, and how well its starts together predict at each of its times."""

    path: Walked
    scores: dict[int, dict[str, float]]
    lr: float

    def best_on_validation(self) -> int:
        """The step at which the validation rows would stop."""
        return min(self.scores, key=lambda t: self.scores[t]["val_nll"])

    def curve(self, rows: int, starts: int) -> Row:
        """Bounds and scores at all its times."""
        return {
            "steps": self.path.times,
            "bound": (self.path.bounds(torch.arange(starts)) / rows).tolist(),
            "test": [self.scores[t]["test"] for t in self.path.times],
            "val_nll": [self.scores[t]["val_nll"] for t in self.path.times],
        }


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


def table(folder: Path) -> Iterable[str]:
    """The ways to end a training, beside the published ones."""
    for name, found in read_all(folder).items():
        runs = found["runs"]
        measure = "accuracy" if name == "seven-nine" else "RMSE"
        yield from header(f"{name} ({len(runs)} seeds), {measure}", *WAYS)
        for part, label in (("test", "test rows"), ("noisy", "noise of 0.5 on the inputs")):
            yield row(label, *(plus_minus(runs, f"{part}/{way}", 3) for way in WAYS))
            if (published := PUBLISHED[name].get(part)) is not None:
                yield row("published", *(f"{value:g}" for value in published))
        yield row("bound, nats a row", *(plus_minus(runs, f"bounds/{way}", 3) for way in WAYS))
        steps = (sorted({run["steps"].get(way, "") for run in runs}) for way in WAYS)
        yield row("ended after step", *(", ".join(map(str, one)) for one in steps))
        yield ""


SPEC = Spec(
    "experiments.published.evidence.paths", "Evidence by optimisers", "evidence-paths",
    {"data_root": str, "sets": Choice(SETS), "steps": int, "set": NORMALS}, files, table,
    small="--sets boston --seeds 1 --steps 8 --set steps=5 --set compile=false",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
