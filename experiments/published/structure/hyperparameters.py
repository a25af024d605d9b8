"""Ways to hyperparameters: the published table, on problems with one precision for each weight.

    python -m experiments hyperparameters --again --data-root FOLDER

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
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam import data as datasets
from pyroccam import guides, models
from pyroccam.inference import select
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.inference.selection import Greedy, Implicit, Level, Random, SelfTuning
from pyroccam.models.contexts import seeded
from pyroccam.models.networks.plain import perceptron
from torch import nn

from ..lines import panels
from ..markdown import header, mean_sd, plus_minus, read_all, row
from ..runner import Choice, File, Given, Made, Row, Spec, seeds

__all__ = ["CRITERIA", "METHODS", "PROBLEMS", "SPEC", "passing", "reached", "under_noise"]

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


def files(given: Given) -> Iterable[File]:
    """One of each problem, criterion and method."""
    more = {k: v for k in ("outer_steps", "inner_steps") if (v := getattr(given, k)) is not None}
    for parts in itertools.product(given.problems, given.criteria, given.methods):
        problem, criterion, method = parts
        config = {**PROBLEMS[problem][2], **more, "rows": given.rows}
        if (learn := _learnt(criterion, method)) != "weight":
            config["learn"] = learn
        yield File(
            "-".join(parts), {"config": config},
            partial(_row, problem, criterion, method, given, more), seeds(given),
        )  # fmt: skip


def _row(
    problem: str, criterion: str, method: str, given: Given, more: dict[str, int], seed: int
) -> Row:
    learn = _learnt(criterion, method)
    model, guide, data, levels = pair_of(
        problem, criterion, learn, seed, given.data_root, given.rows
    )
    settings = {**PROBLEMS[problem][2], "outer_lr": 0.05, "lr": 0.01, **more}
    try:
        found = select(model, guide, data, *levels, method=METHODS[method], seed=seed, **settings)
    except (FloatingPointError, RuntimeError) as error:  # said in the table, as the source does not
        return {"failed": f"{type(error).__name__}: {error}"}
    net = mean_network(model, guide)
    tests = {"test": evaluate_net(net, model, data)}
    for sd in NOISES:
        noisy = [under_noise(mean_network(model, guide), sd, k) for k in range(10)]
        tests[f"noise {sd}"] = _mean([evaluate_net(one, model, data) for one in noisy])
    return {
        "Q": found.Q,
        "history": [round(row["Q"], 3) for row in found.history],
        "reached": reached(found.history),
        "seconds": found.fit.seconds,
        **tests,
    }


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def table(folder: Path) -> Iterable[str]:
    """The objective that each method reached, how fast, and what its network is worth."""
    for problem, criterion in itertools.product(PROBLEMS, CRITERIA):
        stem = f"{problem}-{criterion}-"
        every = {n.removeprefix(stem): f["runs"] for n, f in read_all(folder, f"{stem}*").items()}
        whole = {n: [run for run in runs if "failed" not in run] for n, runs in every.items()}
        whole = {name: whole[name] for name in COMPARED if whole.get(name)}
        if whole:
            yield from _criterion(problem, criterion, every, whole)
            yield ""


def _criterion(
    problem: str, criterion: str, every: dict[str, list[Row]], whole: dict[str, list[Row]]
) -> Iterable[str]:
    """Rows of a problem and criterion, of runs that did not fail."""
    first = next(iter(whole.values()))[0]
    measure = "accuracy" if "accuracy" in first["test"] else "rmse"
    digits, scale = (1, 100.0) if measure == "accuracy" else (2, 1.0)
    yield from header(
        f"{problem}, {criterion} (seeds)", "Q", "outer steps to 99 % of the gain",
        "to the best of random search", "accuracy, %" if measure == "accuracy" else "RMSE",
        *(f"with noise {sd}" for sd in NOISES),
    )  # fmt: skip
    for method, runs in whole.items():
        parts = ["test", *(f"noise {sd}" for sd in NOISES)]
        failed = len(every[method]) - len(runs)
        count = f"{len(runs)}" + (f", {failed} failed" if failed else "")
        yield row(
            f"`{method}` ({count})", plus_minus(runs, "Q", 1), plus_minus(runs, "reached", 0),
            "" if method == "random" else _passed(runs, whole.get("random", [])),
            *(plus_minus(runs, f"{part}/{measure}", digits, scale) for part in parts),
        )  # fmt: skip


def _passed(runs: list[Row], random: list[Row]) -> str:
    """Outer steps until Q is that of the best of all tries at random, seed by seed: mean, sd, and
    of how many seeds."""
    best = {run["seed"]: run["Q"] for run in random}
    steps = [passing(run["history"], best[run["seed"]]) for run in runs if run["seed"] in best]
    passed = [step for step in steps if step is not None]
    if not passed:
        return "never" if random else ""
    shown = mean_sd(passed, 1)
    return shown if len(passed) == len(steps) else f"{shown} ({len(passed)} of {len(steps)})"


def passing(history: Sequence[float], value: float) -> int | None:
    """The outer step at which Q is at least a value; ``None`` if it never is."""
    return next((k for k, q in enumerate(history, start=1) if q >= value), None)


def drawn(given: Given) -> Mapping[str, Made]:
    """A figure of each problem."""
    found = {
        problem: read_all(given.out, f"{problem}-elbo-*")
        for problem in given.problems
    }  # fmt: skip
    return {name: partial(figure, name, own) for name, own in found.items() if own}


def figure(problem: str, found: Mapping[str, Row]) -> Figure:
    """Minus the best bound so far over the outer steps, by method; bands are ranges over seeds."""
    lines = {}
    for name, content in found.items():
        runs = [run["history"] for run in content["runs"] if "history" in run]
        best = [[-q for q in itertools.accumulate(history, max)] for history in runs]
        steps = min(map(len, best))
        method = name.removeprefix(f"{problem}-elbo-")
        lines[method] = (range(1, steps + 1), [one[:steps] for one in best])
    made = panels({f"{problem}: the best bound so far": lines}, "outer step", "-bound (nats)")
    made.axes[0].set_yscale("log")
    return made


SPEC = Spec(
    "experiments.published.structure.hyperparameters", "Hyperparameters", "hyperparameters",
    {
        "data_root": str, "problems": Choice(PROBLEMS), "criteria": Choice(CRITERIA),
        "methods": Choice(METHODS), "seeds": 5, "outer_steps": int, "inner_steps": int, "rows": int,
    },
    files, table, drawn,
    small="--problems polynomial --criteria elbo,folds --methods random,greedy --seeds 1 "
    "--outer-steps 3 --inner-steps 4",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
