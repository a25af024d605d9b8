r"""Three models compete for one curve: which of them the prior, the data, or both prefer.

    python -m experiments regimes --again

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
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam import inference
from pyroccam.data import Dataset
from pyroccam.inference.figures.structure import simplex_panels
from pyroccam.inference.posterior import posterior_of
from pyroccam.models.contexts import seeded
from pyroccam.models.distributions.relaxed import ExpRelaxedCategorical
from pyroccam.models.priors.structure import GumbelSoftmax
from torch import Tensor

from ..lines import deviation, panels
from ..markdown import header, read_all, row
from ..runner import Choice, File, Given, Made, Row, Spec
from .competing import PRIMITIVES, Pair, Protocol, learn, look, spread_prior

__all__ = ["REGIMES", "SPEC", "predicted", "repelled", "search", "transition"]

REGIMES = {"prior": 100.0, "equal": 1.0, "likelihood": 0.01}
EXPECTED = {"prior": "constant", "equal": "simple", "likelihood": "complex"}
NAMES = {"prior": "prior ≫ data", "equal": "equal", "likelihood": "data ≫ prior"}
PARTS = ("toy", "transition", "predictions")
NEAR = (0.99, 0.05)  # weights of p' near a vertex, and of the other vertices
T_NEAR = 0.1
LR = 0.05  # of the transition
DRAWS = 120  # of q in the figure, by seed
GRID = [k / 10 for k in range(-30, 31)]


def files(given: Given) -> Iterable[File]:
    """One of the toy, and one of the transition."""
    protocol = Protocol(steps=given.steps)
    toy = {"config": {"seeds": given.seeds, **asdict(protocol)}}
    if "toy" in given.parts:
        cells = product(given.regimes, given.temperatures)
        keys = [{"regime": regime, "temperature": t} for regime, t in cells]
        yield File("toy", toy, partial(cell, given.seeds, protocol), keys, ("cells",))
    if "predictions" in given.parts:
        keys = [{"regime": regime} for regime in given.regimes]
        yield File("predictions", toy, partial(predicted, given.seeds, protocol), keys)
    if "transition" in given.parts:
        weights, count, steps = given.weights, given.transition_seeds, given.transition_steps
        config = {"weights": weights, "seeds": count, "steps": steps, "lr": LR}
        run_one = partial(transition, weights, count, steps, protocol)
        yield File("transition", {"config": {**config, "toy": asdict(protocol)}}, run_one)


def cell(seeds: int, protocol: Protocol, regime: str, temperature: float) -> Row:
    """The runs of a regime at a temperature of the prior."""
    start = time.process_time()
    made, finite = learn(temperature, REGIMES[regime], range(seeds), protocol)
    seconds = (time.process_time() - start) / seeds
    runs = [{"seed": seed, **look(pair)} for seed, (pair, _) in enumerate(made)]
    q = torch.tensor([run["q"] for run in runs])
    return {
        "kl_weight": REGIMES[regime],
        "expected": EXPECTED[regime],
        "mean_q": [round(v, 4) for v in q.mean(0).tolist()],
        "winners": {name: sum(run["winner"] == name for run in runs) for name in PRIMITIVES},
        "finite": finite and all(run["finite"] for run in runs),
        "cpu_seconds_per_fit": round(seconds, 2),
        "runs": runs,
    }


@torch.no_grad()
def predicted(seeds: int, protocol: Protocol, regime: str) -> Row:
    """Errors on new rows of each seed, at the temperature 1; of the first, draws over the input
    that counts, with the other inputs at zero."""
    with torch.enable_grad():
        made, _ = learn(1.0, REGIMES[regime], range(seeds), protocol)
    errors, draws = [], torch.empty(0)
    for (model, guide), data in made:
        posterior = posterior_of(model, guide, data)
        means = posterior.outputs(data.x_test, DRAWS, seed=0).mean(0)
        errors.append(float((means - data.y_test).square().mean().sqrt()))
        if not len(draws):
            x = torch.zeros(len(GRID), data.x_test.shape[1])
            x[:, 0] = torch.tensor(GRID)
            draws = posterior.outputs(x, DRAWS, seed=0)[..., 0]
    shown = [[round(v, 3) for v in one] for one in draws.tolist()]
    return {"rmse": errors, "draws": shown}


def predictions_figure(found: Row) -> Figure:
    """The mean prediction of each regime, and a standard deviation of draws to both sides."""
    curve = ("tanh x, the truth", (GRID, [[math.tanh(v) for v in GRID]]))
    lines = {
        NAMES[run["regime"]]: dict([("draws of the posterior", (GRID, run["draws"])), curve])
        for run in found["runs"]
    }
    return panels(lines, "the input that counts", "target", deviation)


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


def transition(weights: Sequence[float], seeds: int, steps: int, protocol: Protocol) -> Row:
    """Path from where the toy ends, with the prior's regime and T = 1, to the middle model.

    Returns:
        ``start``, what the toy leaves; ``sweep``, a row for each weight and seed, repelled from the
        first and the last vertex; ``with_gamma``, the same for the strongest weight under the prior
        with γ²; ``search``, by seed the structures in the order of their being found.
    """
    made, _ = learn(1.0, REGIMES["prior"], range(seeds), protocol)
    outer, strongest = (0, len(PRIMITIVES) - 1), min(weights)
    found: dict[str, list[Row]] = {"start": [], "sweep": [], "with_gamma": [], "search": []}
    for seed, (pair, data) in enumerate(made):
        found["start"].append({"seed": seed, **look(pair)})
        for weight in weights:
            moved = repelled(pair, data, outer, weight, steps, seed=seed)
            found["sweep"].append({"weight": weight, "seed": seed, **look(moved)})
        stuck = repelled(pair, data, outer, strongest, steps, with_gamma=True, seed=seed)
        found["with_gamma"].append({"weight": strongest, "seed": seed, **look(stuck)})
        found["search"].append(search(pair, data, strongest, steps, seed))
    return found


def search(pair: Pair, data: Dataset, weight: float, steps: int, seed: int) -> dict[str, Any]:
    """As many passes as there are structures, each repelled from all that were found."""
    rows = [look(pair)]
    for _ in PRIMITIVES[1:]:
        before = [PRIMITIVES.index(row["winner"]) for row in rows]
        pair = repelled(pair, data, dict.fromkeys(before), weight, steps, seed=seed)
        rows.append(look(pair))
    return {"seed": seed, "weight": weight, "order": [r["winner"] for r in rows], "passes": rows}


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


def transition_figure(found: Mapping[str, Any]) -> Figure:
    """p(Γ | h) and q(Γ) over the weight of the repulsion; a band is the range over seeds."""
    weights = sorted({row["weight"] for row in found["sweep"]}, reverse=True)

    def values(which: str) -> Tensor:
        rows = [[r[which] for r in found["sweep"] if r["weight"] == w] for w in weights]
        return torch.tensor(rows).permute(2, 1, 0)  # (primitives, seeds, weights)

    lines = {
        title: {name: (weights, own) for name, own in zip(PRIMITIVES, values(which), strict=True)}
        for which, title in (("p", "prior, p(Γ | h)"), ("q", "posterior, q(Γ)"))
    }
    figure = panels(lines, "weight of the terms against both others", "probability")
    for ax in figure.axes:
        ax.invert_xaxis()
    return figure


def drawn(given: Given) -> Mapping[str, Made]:
    """Of each part."""
    found = read_all(given.out)
    made: dict[str, Made] = {}
    if cells := found.get("toy", {}).get("cells"):
        order = list(REGIMES)
        cells.sort(key=lambda one: (order.index(one["regime"]), one["temperature"]))
        made["toy"] = partial(toy_figure, cells)
    if "predictions" in found:
        made["predictions"] = partial(predictions_figure, found["predictions"])
    if "transition" in found:
        made["transition"] = partial(transition_figure, found["transition"])
    return made


def table(folder: Path) -> Iterable[str]:
    """How probable the expected model is, and in how many seeds it is the winner."""
    found = read_all(folder, "toy").get("toy")
    if found is None:
        return
    cells: dict[str, dict[float, Row]] = {}
    for one in found["cells"]:
        cells.setdefault(one["regime"], {})[one["temperature"]] = one
    temperatures = sorted({t for own in cells.values() for t in own})
    yield from header(
        "mean q of the expected model (seeds won)", *(f"T = {t:g}" for t in temperatures)
    )
    for regime, own in cells.items():
        expected = EXPECTED[regime]
        shown = []
        for t in temperatures:
            won = own[t]["winners"]
            q = own[t]["mean_q"][PRIMITIVES.index(expected)]
            shown.append(f"{q:.2f} ({won[expected]}/{sum(won.values())})")
        yield row(f"{NAMES[regime]} (λ = {REGIMES[regime]:g}): {expected}", *shown)


SPEC = Spec(
    "experiments.published.structure.regimes", "Regimes", "regimes",
    {
        "parts": Choice(PARTS), "regimes": Choice(REGIMES), "temperatures": (0.2, 1.0, 10.0),
        "seeds": 5, "steps": Protocol.steps, "weights": (0.0, -0.5, -1.0, -2.0, -5.0),
        "transition_seeds": 3, "transition_steps": 300,
    },
    files, table, drawn,
    small="--regimes equal --temperatures 0.2 --seeds 1 --steps 2 --transition-seeds 1 "
    "--weights=0,-1 --transition-steps 2",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
