"""The evidence of small models by every estimator, against a referee and held-out rows.

    python -m experiments.published.evidence.estimators

Four ladders of models: the degree of a polynomial, the width and the depth of a network, the inputs
that a unit sees. The referee is the closed form of polynomials, and annealing of the others.
Whatever is random has a standard normal prior, and the noise of a regression is known. A finished
model is kept: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from pyroccam.guides import MeanField
from pyroccam.inference import marginal_likelihood as ml
from pyroccam.inference.fits.fitting import fit
from pyroccam.inference.fits.result import Fit
from pyroccam.inference.marginal_likelihood import Estimator

from .. import options
from ..runner import ResultFile, Row
from .candidates import LADDERS

__all__ = ["ESTIMATORS"]

SETTINGS: dict[str, Any] = {"steps": 1500, "lr": 0.02, "compile": "graph"}

# Name: the estimator, and its options.
ESTIMATORS: dict[str, tuple[type[Estimator], dict[str, Any]]] = {
    "exact": (ml.Exact, {}),
    "annealed": (ml.Annealed, {"particles": 256, "repeats": 4}),
    "bound": (ml.Bound, {"passes": 50}),
    "importance": (ml.Importance, {"draws": 1000, "repeats": 10}),
    "laplace, hessian": (ml.Laplace, {"curvature": "hessian", "restarts": 5}),
    "laplace, full": (ml.Laplace, {"curvature": "full", "restarts": 5}),
    "laplace, kronecker": (ml.Laplace, {"curvature": "kronecker", "restarts": 5}),
    "laplace, diagonal": (ml.Laplace, {"curvature": "diagonal", "restarts": 5}),
    "descent": (ml.Descent, {"steps": 400, "starts": 20}),
    "langevin": (ml.Langevin, {"steps": 600, "starts": 20}),
    "prequential": (
        ml.Prequential,
        {"shares": (0.1, 0.2, 0.4, 0.7, 1.0), "orders": 2, "settings": {"steps": 400}},
    ),
}


def main(
    out: options.Out = options.RESULTS / "evidence",
    ladders: Annotated[str, options.BY_COMMAS] = "degree,width,depth,structure",
    seeds: options.Count = 3,
    threads: options.Count = 1,
) -> None:
    """Run what is missing, and write one JSON file for each ladder."""
    torch.set_num_threads(threads)
    for name in options.listed("ladder", ladders, LADDERS):
        own = {key: _said(*one) for key, one in ESTIMATORS.items()}
        says = LADDERS[name].says
        file = ResultFile(out / f"{name}.json", settings=SETTINGS, estimators=own, says=says)
        for seed in range(seeds):
            for member in LADDERS[name].members:
                if any((r["seed"], r["member"]) == (seed, member) for r in file.runs):
                    continue
                row = _row(name, member, seed)
                file.runs.append(row)
                file.write()
                print(_line(name, row), flush=True)


def _said(kind: type[Estimator], given: dict[str, Any]) -> Row:
    """The options of an estimator, and the settings of its fits beside them."""
    own = {name: value for name, value in given.items() if name != "settings"}
    return {"by": kind.name, **own, **given.get("settings", {})}


def _row(ladder: str, member: str, seed: int) -> Row:
    """All estimates of a model, and what its fit predicts of rows that it has not seen."""
    model, rows = LADDERS[ladder].build(member, seed)
    guide = MeanField(model)
    found = fit(model, guide, rows, seed=seed, device="cpu", progress=False, **SETTINGS)
    test = found.evaluate("test", draws=200)
    return {
        "seed": seed,
        "member": member,
        "weights": sum(p.numel() for p in model.start_network().parameters()),
        "held_out": test["nll"],
        "estimates": {name: _estimate(found, name) for name in ESTIMATORS},
    }


def _estimate(found: Fit[Any, Any], name: str) -> Row:
    """An estimate, or why there is none."""
    kind, given = ESTIMATORS[name]
    if kind is not ml.Exact:  # which draws nothing
        given = {**given, "seed": found.settings.seed}
    try:
        made = ml.evidence(found, by=kind(**given))
    except ValueError as error:
        return {"refused": str(error)}
    return _kept(made)


def _kept(made: ml.LogEvidence) -> Row:
    return {
        "value": made.value,
        "error": made.error,
        "direction": made.direction,
        "passes": made.passes,
        "seconds": made.seconds,
        "doubt": made.doubt,
        "details": {k: v for k, v in made.details.items() if math.isfinite(v)},
    }


def _line(ladder: str, row: Row) -> str:
    shown: Callable[[Row], str] = lambda e: f"{e['value']:.1f}±{e['error']:.1g}"  # noqa: E731
    each = ", ".join(f"{n} {shown(e)}" for n, e in row["estimates"].items() if "value" in e)
    return f"{ladder} {row['member']} seed {row['seed']}: held out {row['held_out']:.3f}; {each}"


if __name__ == "__main__":
    typer.run(main)
