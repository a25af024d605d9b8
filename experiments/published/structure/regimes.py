r"""Three models compete for one curve: which of them the prior, the data, or both prefer.

    python -m experiments.published.structure.regimes

The models and their fits are those of :mod:`~experiments.published.structure.competing`;
:math:`λ`, the weight of the KL, says who decides: at 100 the prior (and it should take the
constant), at 1 neither (simple), at 0.01 the likelihood (complex).

What the winner at λ = 100 means: the constant is not the one maximum of the bound. Where variances
of the prior are learnt, all three primitives can be switched off at no cost (the prior shrinks to
the posterior), and where they are not, q(Γ) returns to p(Γ). The constant is chosen by the way that
leads there: under a broad prior each weight costs :math:`\log σ_p / σ_q`, most for the primitive of
twelve weights and least for that of one, until the prior has shrunk.

The structure transition starts where the toy ends at λ = 100 and T = 1, with the first prior again,
:math:`N(0, σ²)` with σ from 1. Q gets the terms :math:`+ KL(p(Γ \mid h) \| p')` for two p' near the
first and the last vertex, so that the middle one is what remains. Under :math:`N(0, γ² σ²)` the
posterior stays: the weights of a primitive that is switched off are as narrow as the floor, under
which σ has no gradient, and to bring them back costs what it cost before. Repelling from every
structure that was found, in turn, is an exhaustive search.

References:
    Bakhteev, Strijov, Bayesian selection of deep learning model structure; the thesis of the first
    author (2019), for the settings.
"""

from __future__ import annotations

import copy
import csv
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from matplotlib.figure import Figure
from pyroccam import inference
from pyroccam.data import Dataset
from pyroccam.inference import figures
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.structure import simplex_panels
from pyroccam.inference.figures.style import CYCLE, MARKERS, styled
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.models.contexts import seeded
from pyroccam.models.distributions.relaxed import ExpRelaxedCategorical
from pyroccam.models.priors.structure import GumbelSoftmax
from torch import Tensor

from .. import options
from ..runner import ResultFile, Row, renew
from .competing import PRIMITIVES, Pair, Protocol, learn, look, spread_prior

__all__ = ["REGIMES", "cell", "repelled", "search", "transition"]

REGIMES = {"prior": 100.0, "equal": 1.0, "likelihood": 0.01}
EXPECTED = {"prior": "constant", "equal": "simple", "likelihood": "complex"}
NAMES = {"prior": "prior ≫ data", "equal": "equal", "likelihood": "data ≫ prior"}
PARTS = ("toy", "cold", "transition")
COLD = 0.01  # at which nothing may turn NaN in single precision
NEAR = (0.99, 0.05)  # weights of p' near a vertex, and of the other vertices
T_NEAR = 0.1
LR = 0.05  # of the transition
DRAWS = 120  # of q in the figure, by seed


def cell(regime: str, temperature: float, seeds: int, protocol: Protocol) -> dict[str, Any]:
    """The runs of a regime at a temperature of the prior."""
    start = time.process_time()
    made, finite = learn(temperature, REGIMES[regime], range(seeds), protocol)
    seconds = (time.process_time() - start) / seeds
    runs = [{"seed": seed, **look(pair)} for seed, (pair, _) in enumerate(made)]
    q = torch.tensor([run["q"] for run in runs])
    found = {
        "regime": regime,
        "kl_weight": REGIMES[regime],
        "temperature": temperature,
        "expected": EXPECTED[regime],
        "mean_q": [round(v, 4) for v in q.mean(0).tolist()],
        "winners": {name: sum(run["winner"] == name for run in runs) for name in PRIMITIVES},
        "spread": mean_spread([{"q_expected": run["q"][_expected(regime)]} for run in runs]),
        "finite": finite and all(run["finite"] for run in runs),
        "cpu_seconds_per_fit": round(seconds, 2),
        "runs": runs,
    }
    print(
        f"{regime}, T {temperature:g}: q {found['mean_q']}, winners {found['winners']}, "
        f"{seconds:.1f} s of CPU a fit",
        flush=True,
    )
    return found


def _expected(regime: str) -> int:
    return PRIMITIVES.index(EXPECTED[regime])


# -- the structure transition ----------------------------------------------------------------------


def near(vertex: int) -> GumbelSoftmax:
    """p' near a vertex."""
    return GumbelSoftmax(T_NEAR, probs=[NEAR[0] if k == vertex else NEAR[1] for k in range(3)])


def repelled(
    pair: Pair,
    data: Dataset,
    vertices: Iterable[int],
    weight: float,
    steps: int,
    *,
    with_gamma: bool = False,
    seed: int = 0,
) -> Pair:
    """A copy of a pair that goes on with Q against structures; λ is that of the prior's regime.

    The prior of the weights is the first one again, :math:`N(0, σ²)` with σ from 1.

    Arguments:
        vertices: near which p' are.
        weight: of their terms, negative to drive p(Γ | h) away.
        steps: of θ and h together.
        with_gamma: go on with the prior as it is, :math:`N(0, γ² σ²)`.
    """
    model, guide = copy.deepcopy(pair)
    if not with_gamma:
        spread_prior(model, 0.0, None)
    ratio = REGIMES["prior"]
    inference.select(
        model,
        guide,
        data,
        inference.selection.Level(prior=ratio),
        inference.selection.Level(
            likelihood=1.0 / ratio,
            structure=[inference.selection.Against(near(k), weight) for k in vertices],
        ),
        method=inference.selection.OneLevel(),
        outer_steps=1,  # Q decides among outer steps, and here the last is wanted
        inner_steps=steps,
        lr=LR,
        outer_lr=LR,
        particles=3,
        draws=1,
        seed=seed,
        device="cpu",
        progress=False,
    )
    return model, guide


def transition(
    weights: Sequence[float], seeds: int, steps: int, protocol: Protocol
) -> Iterator[dict[str, Any]]:
    """Path from where the toy ends, with the prior's regime and T = 1, to the middle model.

    Yields:
        after each seed what there is by then: ``start``, what the toy leaves; ``sweep``, a row for
        each weight and seed, repelled from the first and the last vertex; ``with_gamma``, the same
        for the strongest weight under the prior with γ²; ``search``, by seed the structures in the
        order of their being found.
    """
    made, _ = learn(1.0, REGIMES["prior"], range(seeds), protocol)
    found: dict[str, Any] = {
        "start": [{"seed": seed, **look(pair)} for seed, (pair, _) in enumerate(made)],
        "sweep": [],
        "with_gamma": [],
        "search": [],
    }
    outer = (0, len(PRIMITIVES) - 1)
    for seed, (pair, data) in enumerate(made):
        for weight in weights:
            moved = repelled(pair, data, outer, weight, steps, seed=seed)
            found["sweep"].append({"weight": weight, "seed": seed, **look(moved)})
            print(f"repelled by {weight:g}, seed {seed}: q {found['sweep'][-1]['q']}", flush=True)
        strongest = min(weights)
        stuck = repelled(pair, data, outer, strongest, steps, with_gamma=True, seed=seed)
        found["with_gamma"].append({"weight": strongest, "seed": seed, **look(stuck)})
        found["search"].append(search(pair, data, strongest, steps, seed))
        print(f"search, seed {seed}: {found['search'][-1]['order']}", flush=True)
        yield found


def search(pair: Pair, data: Dataset, weight: float, steps: int, seed: int) -> dict[str, Any]:
    """As many passes as there are structures, each repelled from all that were found."""
    rows = [look(pair)]
    for _ in PRIMITIVES[1:]:
        before = [PRIMITIVES.index(row["winner"]) for row in rows]
        pair = repelled(pair, data, dict.fromkeys(before), weight, steps, seed=seed)
        rows.append(look(pair))
    return {"seed": seed, "weight": weight, "order": [r["winner"] for r in rows], "passes": rows}


# -- figures ---------------------------------------------------------------------------------------


def draws_of(run: Mapping[str, Any]) -> Tensor:
    """Draws of γ from q, ``(DRAWS, 3)``."""
    with seeded(run["seed"], torch.device("cpu")):
        q = ExpRelaxedCategorical(run["temperature"], logits=torch.tensor(run["logits"]))
        return q.rsample((DRAWS,)).exp()


def toy_figure(cells: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws of q(Γ) in the simplex, by regime and temperature of the prior; beside the corners the
    mean probability over the seeds."""
    panels: dict[str, dict[str, Tensor]] = {}
    shares: dict[str, dict[str, list[float]]] = {}
    for found in cells:
        row, column = NAMES[found["regime"]], f"prior temperature {found['temperature']:g}"
        draws = torch.cat([draws_of(run) for run in found["runs"]])
        panels.setdefault(row, {})[column] = draws
        shares.setdefault(row, {})[column] = found["mean_q"]
    return simplex_panels(panels, PRIMITIVES, shares=shares)


@styled
def transition_figure(found: Mapping[str, Any]) -> Figure:
    """p(Γ | h) and q(Γ) over the weight of the repulsion; a band is the range over seeds."""
    fig = new_figure(2.7)
    axes = fig.subplots(1, 2, sharey=True)
    weights = sorted({row["weight"] for row in found["sweep"]}, reverse=True)
    for ax, which, title in zip(axes, "pq", ("prior, p(Γ | h)", "posterior, q(Γ)"), strict=True):
        rows = [[r[which] for r in found["sweep"] if r["weight"] == w] for w in weights]
        values = torch.tensor(rows)  # (weights, seeds, primitives)
        for k, name in enumerate(PRIMITIVES):
            own = values[..., k]
            ax.plot(weights, own.mean(1), color=CYCLE[k], marker=MARKERS[k], label=name)
            low, high = own.min(1).values, own.max(1).values
            ax.fill_between(weights, low, high, color=CYCLE[k], alpha=0.15, linewidth=0)
        ax.set_title(title)
        ax.set_xlabel("weight of the terms against both others")
        ax.set_ylim(-0.02, 1.02)
    axes[0].set_ylabel("probability")
    axes[0].invert_xaxis()
    axes[1].invert_xaxis()
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return fig


# -- the command -----------------------------------------------------------------------------------


def main(
    out: options.Out = options.RESULTS / "regimes",
    parts: Annotated[str, options.BY_COMMAS] = ",".join(PARTS),
    regimes: Annotated[str, options.BY_COMMAS] = ",".join(REGIMES),
    temperatures: Annotated[str, typer.Option(help="Of the prior, with commas.")] = "0.2,1,10",
    seeds: options.Count = 5,
    steps: Annotated[int, typer.Option(min=2, help="Of a fit.")] = Protocol.steps,
    weights: Annotated[str, typer.Option(help="Of the repulsion, with commas.")] = (
        "0,-0.5,-1,-2,-5"
    ),
    transition_seeds: options.Count = 3,
    transition_steps: options.Count = 300,
    threads: options.Count = 1,
) -> None:
    """Run what is missing; a JSON file, a table (CSV) and a figure for each part."""
    torch.set_num_threads(threads)
    protocol = Protocol(steps=steps)
    asked = options.listed("part", parts, PARTS)
    who = options.listed("regime", regimes, REGIMES)
    if "toy" in asked:
        values = [float(t) for t in temperatures.split(",")]
        _toy(out, "cells", who, values, seeds, protocol)
    if "cold" in asked:
        _toy(out, "cold", who, [COLD], seeds, protocol)
    if "transition" in asked:
        chosen = [float(w) for w in weights.split(",")]
        _transition(out, chosen, transition_seeds, transition_steps, protocol)


def _toy(
    out: Path,
    kind: str,
    regimes: Sequence[str],
    temperatures: Sequence[float],
    seeds: int,
    protocol: Protocol,
) -> None:
    empty: Row = {"verdict": {}, "cells": [], "cold": []}
    file = ResultFile(out / "toy.json", empty, config={"seeds": seeds, **asdict(protocol)})
    found = file.content
    for regime in regimes:
        for temperature in temperatures:
            if (regime, temperature) not in {(c["regime"], c["temperature"]) for c in found[kind]}:
                found[kind].append(cell(regime, temperature, seeds, protocol))
                order = list(REGIMES)
                found[kind].sort(key=lambda c: (order.index(c["regime"]), c["temperature"]))
                file.write(verdict=_verdict([*found["cells"], *found["cold"]]))
    table, every = out / "toy.csv", (*found["cells"], *found["cold"])
    renew(table, write_table, table, [_row(c, seeds) for c in every])
    if kind == "cells":
        asked = [c for c in found["cells"] if c["regime"] in regimes]
        asked = [c for c in asked if c["temperature"] in temperatures]
        renew(out / "toy.png", figures.save, toy_figure(asked), out / "toy", ("png", "svg"))


def _row(found: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    draws = torch.cat([draws_of(run) for run in found["runs"]])
    return {
        "regime": found["regime"],
        "kl_weight": found["kl_weight"],
        "temperature": found["temperature"],
        **{f"q_{name}": q for name, q in zip(PRIMITIVES, found["mean_q"], strict=True)},
        "expected": found["expected"],
        "seeds_won": found["winners"][found["expected"]],
        "seeds": seeds,
        "q_temperature": round(sum(run["temperature"] for run in found["runs"]) / seeds, 3),
        # 1 where q has a single primitive, 1/3 where it mixes all equally
        "largest_gamma": round(float(draws.amax(-1).mean()), 3),
        "finite": found["finite"],
        "cpu_seconds_per_fit": found["cpu_seconds_per_fit"],
    }


def _verdict(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The probability of the expected primitive in every cell, and where it is below 0.7."""
    found = {
        f"{c['regime']}, T {c['temperature']:g}": c["mean_q"][_expected(c["regime"])] for c in cells
    }
    return {"q_expected": found, "below_0.7": [name for name, q in found.items() if q < 0.7]}


def _transition(
    out: Path, weights: Sequence[float], seeds: int, steps: int, protocol: Protocol
) -> None:
    config = {
        "weights": list(weights), "seeds": seeds, "steps": steps, "lr": LR,
        "toy": asdict(protocol),
    }  # fmt: skip
    file = ResultFile(out / "transition.json", {"search": []}, config=config)
    found = file.content
    if len(found["search"]) < seeds:
        for so_far in transition(weights, seeds, steps, protocol):
            file.write(**so_far)
    rows = [
        {
            "prior": prior, "weight": row["weight"], "seed": row["seed"], "winner": row["winner"],
            **{f"p_{name}": p for name, p in zip(PRIMITIVES, row["p"], strict=True)},
            **{f"q_{name}": q for name, q in zip(PRIMITIVES, row["q"], strict=True)},
        }
        for prior, kind in (("without gamma", "sweep"), ("with gamma", "with_gamma"))
        for row in found[kind]
    ]  # fmt: skip
    target, picture = out / "transition", transition_figure(found)
    renew(target.with_suffix(".csv"), write_table, target.with_suffix(".csv"), rows)
    renew(target.with_suffix(".png"), figures.save, picture, target, ("png", "svg"))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same columns, as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    typer.run(main)
