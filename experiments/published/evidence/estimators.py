"""The evidence of small models by every estimator, against a referee and held-out rows.

    python -m experiments estimators --again

Four ladders of models: the degree of a polynomial, the width and the depth of a network, the inputs
that a unit sees. The referee is the closed form of polynomials, and annealing of the others.
Whatever is random has a standard normal prior, and the noise of a regression is known. A finished
model is kept: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam.guides import MeanField
from pyroccam.inference import evidence
from pyroccam.inference import marginal_likelihood as ml
from pyroccam.inference.figures import CYCLE, INK, new_figure, styled
from pyroccam.inference.marginal_likelihood import Estimator
from pyroccam.inference.training.fitting import fit
from pyroccam.inference.training.result import Fit
from torch import Tensor

from ..markdown import header, read_all, row
from ..runner import Choice, File, Given, Made, Row, Spec
from .candidates import LADDERS, ROWS

__all__ = ["ESTIMATORS", "SPEC", "table"]

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


def files(given: Given) -> Iterable[File]:
    """One of each ladder."""
    for name in given.ladders:
        ladder = LADDERS[name]
        chosen = {name: ESTIMATORS[name] for name in given.estimators}
        by = {key: _said(*one) for key, one in chosen.items()}
        says = {"settings": given.set, "estimators": by, "says": ladder.says}
        keys = [{"seed": s, "member": m} for s in range(given.seeds) for m in ladder.members]
        yield File(name, says, partial(_row, name, given), keys)


def _said(kind: type[Estimator], given: Row) -> Row:
    """The options of an estimator, and the settings of its fits beside them."""
    own = {name: value for name, value in given.items() if name != "settings"}
    return {"by": kind.name, **own, **given.get("settings", {})}


def _row(ladder: str, given: Given, seed: int, member: str) -> Row:
    """All estimates of a model, and what its fit predicts of rows that it has not seen."""
    model, rows = LADDERS[ladder].build(member, seed)
    guide = MeanField(model)
    found = fit(model, guide, rows, seed=seed, device="cpu", progress=False, **given.set)
    return {
        "weights": sum(p.numel() for p in model.start_network().parameters()),
        "held_out": found.evaluate("test", draws=200)["nll"],
        "estimates": {name: _estimate(found, name) for name in given.estimators},
    }


def _estimate(found: Fit[Any, Any], name: str) -> Row:
    """An estimate, or why there is none."""
    kind, given = ESTIMATORS[name]
    if kind is not ml.Exact:  # which draws nothing
        given = {**given, "seed": found.settings.seed}
    try:
        made: Any = evidence(found, by=kind(**given))
    except ValueError as error:
        return {"refused": str(error)}
    kept = ("value", "error", "direction", "passes", "seconds", "doubt")
    details = {k: v for k, v in made.details.items() if math.isfinite(v)}
    return {**{name: getattr(made, name) for name in kept}, "details": details}


REFEREES = ("exact", "annealed")


def table(folder: Path) -> Iterator[str]:
    """For each ladder: how far estimates are from the referee, and which member each would take.

    An estimate is above by more than its error where it exceeds the referee by more than twice the
    standard error of both: no lower bound should be.
    """
    for name, content in read_all(folder).items():
        runs = content["runs"]
        yield f"**{name}** ({content['says']}):"
        yield ""
        yield from header(
            "estimator", "less the referee, nats", "largest difference",
            "above by more than its error", "of models", "takes what predicts best", "seconds",
        )  # fmt: skip
        for estimator in content["estimators"]:
            yield from _line(estimator, runs)
        yield ""


def _line(estimator: str, runs: list[Row]) -> Iterator[str]:
    found = [(r["estimates"][estimator], _referee(r)) for r in runs]
    found = [(own, other) for own, other in found if "value" in own]
    if not found:
        return
    apart = [own["value"] - other["value"] for own, other in found]
    above = sum(
        own["value"] - other["value"] > 2 * (own["error"] ** 2 + other["error"] ** 2) ** 0.5 + 1e-6
        for own, other in found
    )
    seeds = sorted({r["seed"] for r in runs})
    right = sum(_taken(estimator, runs, s) == _best(runs, s) for s in seeds)
    yield row(
        estimator,
        f"{fmean(apart):+.2f}",
        f"{max(apart, key=abs):+.2f}",
        "" if estimator in REFEREES else above,
        len(found),
        f"{right} of {len(seeds)}" if len(found) == len(runs) else "",  # of some it cannot choose
        f"{median(own['seconds'] for own, _ in found):.2g}",
    )


def _referee(run: Row) -> Row:
    estimates = run["estimates"]
    return next(estimates[name] for name in REFEREES if "value" in estimates[name])


def _taken(estimator: str, runs: list[Row], seed: int) -> str | None:
    values = {
        r["member"]: r["estimates"][estimator]["value"]
        for r in runs
        if r["seed"] == seed and "value" in r["estimates"][estimator]
    }
    return max(values, key=values.__getitem__, default=None)


def _best(runs: list[Row], seed: int) -> str:
    losses = {r["member"]: r["held_out"] for r in runs if r["seed"] == seed}
    return min(losses, key=losses.__getitem__)


def drawn(given: Given) -> Mapping[str, Made]:
    """A figure of the polynomials."""
    found = read_all(given.out).get("degree")
    return {} if found is None else {"degree": partial(figure, found["runs"])}


@styled
def figure(runs: list[Row]) -> Figure:
    """Three polynomials at the mean of their posterior, for the rows of the last seed, and the
    evidence of each degree beside the likelihood of other rows."""
    drawn_ = new_figure(2.7)
    left, right = drawn_.subplots(1, 2)
    seed, ladder = runs[-1]["seed"], LADDERS["degree"]
    own = [run for run in runs if run["seed"] == seed]
    grid = torch.linspace(-1.0, 1.0, 200)[:, None]
    for k, member in enumerate((own[0]["member"], "3", own[-1]["member"])):
        _, rows = ladder.build(member, seed)
        x, curve = (_with_ones(ladder.inputs(v, member)) for v in (rows.x_train[:, :1], grid))
        assert ladder.noise is not None
        # The prior is standard normal: A = X'X / noise^2 + 1.
        gram = x.T @ x / ladder.noise**2 + torch.eye(x.shape[1])
        mean = torch.linalg.solve(gram, x.T @ rows.y_train) / ladder.noise**2
        left.plot(grid, curve @ mean, color=CYCLE[k], label=f"degree {member}")
    left.plot(rows.x_train[:, 0], rows.y_train, ".", color=INK, markersize=4)
    left.set_ylim(float(rows.y_train.min()) - 0.3, float(rows.y_train.max()) + 0.3)
    left.set_title("a cubic and noise")
    left.legend(fontsize="small")
    degrees = [int(run["member"]) for run in own]
    evidences = [run["estimates"]["exact"]["value"] for run in own]
    right.plot(degrees, evidences, "o-", color=CYCLE[0])
    best = max(range(len(own)), key=evidences.__getitem__)
    right.axvline(degrees[best], color=INK, linewidth=1.0)
    right.set_title("log evidence, nats")
    right.set_xlabel(f"degree ({degrees[best]} has the most)")
    drawn_.suptitle(f"Polynomials by their evidence ({ROWS} rows)", fontsize=10.5)
    return drawn_


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)


SPEC = Spec(
    "experiments.published.evidence.estimators", "Evidence", "evidence",
    {
        "ladders": Choice(LADDERS), "estimators": Choice(ESTIMATORS, separator=";"),
        "set": SETTINGS,
    },
    files, table, drawn,
    small="--ladders degree --estimators exact;bound --seeds 1 --set steps=20 --set compile=false",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
