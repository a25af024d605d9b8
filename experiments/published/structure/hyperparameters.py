"""Ways to hyperparameters: the published table, on problems with one precision for each weight.

    python -m experiments.published.structure.hyperparameters --data-root FOLDER

Every weight has a prior N(0, 1/a) with an a of its own; for self-tuning, whose best response is a
function of few numbers, the weights and biases of a layer have one in common. Criteria: ``elbo``,
where L and Q are the same bound; ``holdout``, where weights of highest density on three quarters of
the rows (L) are judged by the likelihood of the last quarter (Q); ``folds``, where each quarter is
held out once, from weights of its own, as in the source; ``layers``, where the prior is N(0, 1),
and what is learnt by hold-out is a weight of the KL for each layer of a random posterior. A
finished row is kept: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import torch
import typer
from pyroccam import data as datasets
from pyroccam import guides, models
from pyroccam.inference import select
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.inference.selection import Greedy, Implicit, Level, Random, SelfTuning
from pyroccam.models.contexts import seeded
from pyroccam.models.networks.plain import perceptron
from torch import nn

from .. import options
from ..runner import ResultFile

__all__ = [
    "COMPARED",
    "CRITERIA",
    "METHODS",
    "PROBLEMS",
    "pair_of",
    "reached",
    "settings_of",
    "under_noise",
]

METHODS = {
    "random": Random(),
    "greedy": Greedy(),
    "implicit": Implicit(damping=1e-3),
    "self-tuning": SelfTuning(),
}
COMPARED = ("random", "greedy", "implicit", "drmad", "self-tuning")
"""In the table. A straight line in place of the path (``drmad``; Fu et al. 2016, arXiv:1601.00917)
was worse and is no method any more: its results are of this script at commit a9ba2b7."""

FOLDS = 4
"""As the source has."""
_HELD_OUT = Level(prior=0.0, split="val")
CRITERIA = {
    "elbo": (Level(), Level()),
    "holdout": (Level(), _HELD_OUT),
    "folds": (Level(), Level(prior=0.0, folds=FOLDS)),
    "layers": (Level(prior="layer"), _HELD_OUT),
}
"""The two levels."""
NOISES = (0.25, 0.5)

# Data, hidden units, and what select takes; 50 outer steps as in the source (MNIST 25).
PROBLEMS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "polynomial": ("experiments.sets:polynomial", (), {"outer_steps": 50, "inner_steps": 50}),
    "wisdm": ("experiments.sets:wisdm_series", (10,), {"outer_steps": 50, "inner_steps": 50}),
    "mnist": ("mnist", (300,), {"outer_steps": 25, "inner_steps": 50}),
}


def pair_of(
    problem: str, criterion: str, learn: Any, seed: int, root: str | None, rows: int | None = None
) -> Any:
    """Model, guide, data and the two levels of a problem.

    Arguments:
        learn: what its priors learn.
        root: folder of the data.
        rows: of training data; all if left out.
    """
    name, hidden, _ = PROBLEMS[problem]
    place: dict[str, Any] = {} if problem == "polynomial" else {"data_root": root}
    if rows is not None:
        place["n_train"] = rows
    levels = CRITERIA[criterion]
    fraction = 0.25 if levels[1] is _HELD_OUT else 0.0
    data = datasets.load(name, seed=seed, val_fraction=fraction, **place)
    with seeded(seed, torch.device("cpu")):
        net: nn.Module = perceptron(data.input_shape, data.outputs, hidden=hidden)
        prior = models.priors.Normal(1.0, learn=learn)
        model = models.BayesianNetwork(net, data, prior=prior)
        random = criterion in ("elbo", "layers")
        guide = guides.MeanField(model) if random else guides.Delta(model)
    return model, guide, data, levels


def _learnt(criterion: str, method: str) -> str | None:
    """What the priors learn: of ``layers`` nothing, as only the weights of the KL are learnt."""
    if criterion == "layers":
        return None
    return "scale" if method == "self-tuning" else "weight"


def settings_of(problem: str) -> dict[str, Any]:
    """What :func:`pyroccam.inference.select` takes."""
    return {**PROBLEMS[problem][2], "outer_lr": 0.05, "lr": 0.01}


def reached(history: list[dict[str, float]], share: float = 0.99) -> int:
    """The outer step by which a share of the whole gain in Q was there; 0 without a gain."""
    values = [row["Q"] for row in history]
    first, best = values[0], max(values)
    return next(k for k, v in enumerate(values) if v >= first + share * (best - first))


def under_noise(net: nn.Module, sd: float, seed: int) -> nn.Module:
    """A plain network with normal noise on all its parameters, changed in place."""
    with torch.no_grad(), seeded(seed, torch.device("cpu")):
        for p in net.parameters():
            p.add_(sd * torch.randn(p.shape).to(p))
    return net


def _row(
    problem: str, criterion: str, method: str, seed: int, root: str | None, rows: int | None,
    more: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    learn = _learnt(criterion, method)
    model, guide, data, levels = pair_of(problem, criterion, learn, seed, root, rows)
    settings = settings_of(problem) | more
    try:
        found = select(model, guide, data, *levels, method=METHODS[method], seed=seed, **settings)
    except (FloatingPointError, RuntimeError) as error:  # said in the table, as the source does not
        return {"seed": seed, "failed": f"{type(error).__name__}: {error}"}
    net = mean_network(model, guide)
    tests = {"test": evaluate_net(net, model, data)}
    for sd in NOISES:
        noisy = [under_noise(mean_network(model, guide), sd, k) for k in range(10)]
        tests[f"noise {sd}"] = _mean([evaluate_net(one, model, data) for one in noisy])
    return {
        "seed": seed,
        "Q": found.Q,
        "history": [round(row["Q"], 3) for row in found.history],
        "reached": reached(found.history),
        "seconds": found.fit.seconds,
        **tests,
    }


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def main(
    out: options.Out = options.RESULTS / "hyperparameters",
    data_root: options.DataRoot = None,
    problems: Annotated[str, options.BY_COMMAS] = ",".join(PROBLEMS),
    criteria: Annotated[str, options.BY_COMMAS] = ",".join(CRITERIA),
    methods: Annotated[str, options.BY_COMMAS] = ",".join(METHODS),
    seeds: options.Count = 5,
    outer_steps: Annotated[int | None, typer.Option(help="Instead of 50, or 25.")] = None,
    inner_steps: Annotated[int | None, typer.Option(help="In each, instead of 50.")] = None,
    rows: Annotated[int | None, typer.Option(help="Of training data; all if left out.")] = None,
    threads: options.Count = 1,
) -> None:
    """Run what is missing; write a JSON file for each problem, criterion and method."""
    torch.set_num_threads(threads)
    given = {"outer_steps": outer_steps, "inner_steps": inner_steps}
    more = {name: value for name, value in given.items() if value is not None}
    asked = itertools.product(
        options.listed("problem", problems, PROBLEMS),
        options.listed("criterion", criteria, CRITERIA),
        options.listed("method", methods, METHODS),
    )
    for problem, criterion, method in asked:
        described = {**PROBLEMS[problem][2], **more, "rows": rows}
        if (learn := _learnt(criterion, method)) != "weight":
            described["learn"] = learn
        file = ResultFile(out / f"{problem}-{criterion}-{method}.json", config=described)
        for seed in file.missing(range(seeds)):
            row = _row(problem, criterion, method, seed, data_root, rows, more)
            file.add(row, _spread)
            shown = row.get("failed") or f"Q {row['Q']:.2f}, {row['reached']} outer steps"
            print(f"{problem} {criterion} {method} seed {seed}: {shown}", flush=True)


def _spread(runs: list[dict[str, Any]]) -> dict[str, Any]:
    flat = []
    for run in runs:
        if "failed" in run:
            continue
        row = {name: float(run[name]) for name in ("Q", "reached", "seconds")}
        for part in ("test", *(f"noise {sd}" for sd in NOISES)):
            row |= {f"{part} {name}": value for name, value in run[part].items()}
        flat.append(row)
    return mean_spread(flat) if flat else {}


if __name__ == "__main__":
    typer.run(main)
