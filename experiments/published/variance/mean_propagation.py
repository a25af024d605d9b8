"""Can the mean be propagated? How many weights have to be drawn, and which.

    python -m experiments mean_propagation --again --data-root FOLDER

Networks of several posteriors are trained; the weights of greatest curvature
(``Posterior.curvature``) are drawn, the others set to their means, for a growing share of
weights. Beside it stand the shares with the largest deviations first, and in a random order. A
finished seed is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam.inference import fit
from pyroccam.inference.posterior.mean_propagation import Curvature, Curvatures
from pyroccam.inference.posterior.predict import mixture_log_probs
from pyroccam.inference.training.result import Fit
from pyroccam.models.contexts import seeded
from torch import Tensor

from ..lines import panels
from ..markdown import header, mean_sd, read_all, row
from ..runner import Choice, File, Given, Made, Row, Spec, resolve, seeds, untrained

__all__ = ["CONTENDERS", "SHARES", "SPEC", "curve", "share_figure"]

SHARES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean field, N(0, 1)": (
        "bayes",
        {"random_biases": False, "start": 0.0, "finish": 0.0, "batch_size": 256},
    ),
    "mean field, log-uniform": ("variational-dropout", {"guide": "mean-field"}),
    "variational dropout": ("variational-dropout", {"layers": "penultimate"}),
    "variance": ("variance", {"layers": "penultimate"}),
}
# How weights are ordered: the first are drawn first.
ORDERS = ("curvature at the means", "curvature over the posterior", "deviation", "random")


def curve(result: Fit, draws: int = 50, rows: int = 512, probes: int = 64) -> dict[str, Any]:
    """Accuracy and negative log-likelihood of the ensemble over the share of weights drawn.

    Returns:
        by order of the weights ``accuracy`` in % and ``nll``, one number for each of ``SHARES``;
        and ``kappa_half_sum``, to second order what drawing all of them does to the log-likelihood
        of an observation.
    """
    at_means = result.posterior.curvature(rows=rows, probes=probes, seed=result.settings.seed)
    with seeded(result.settings.seed, result.weights.device):
        chance = {name: torch.rand_like(one.kappa) for name, one in at_means.items()}
    orders = {
        "curvature at the means": at_means,
        "curvature over the posterior": result.posterior.curvature(
            at="posterior", rows=rows, probes=probes, seed=result.settings.seed
        ),
        "deviation": _as_order({name: m.variance for name, m in result.posterior.layers.items()}),
        "random": _as_order(chance),
    }
    x, y = result.data.split("test")
    found: dict[str, Any] = {}
    for order, values in orders.items():
        each = []
        for share in SHARES:
            out = result.posterior.outputs(x, draws, only=values.to_sample(share=share))
            log_p = mixture_log_probs(out, torch.full((draws,), 1.0 / draws, device=out.device))
            right = (log_p.argmax(-1) == y).double().mean()
            each.append((100 * float(right), -float(log_p[torch.arange(len(y)), y].mean())))
        found[order] = {"accuracy": [a for a, _ in each], "nll": [n for _, n in each]}
    kappas = torch.cat([one.kappa.flatten() for one in at_means.values()])
    found["kappa_half_sum"] = 0.5 * float(kappas.sum())
    return found


def needed(curve: dict[str, list[float]], within: float = 0.1) -> float | None:
    """The least share of weights, of ``SHARES``, whose drawing gives the accuracy of drawing all,
    within that many per cent points; ``None`` if it takes all."""
    target = curve["accuracy"][-1] - within
    for share, accuracy in zip(SHARES, curve["accuracy"], strict=True):
        if accuracy >= target:
            return share if share < 1.0 else None
    return None


def _as_order(values: dict[str, Tensor]) -> Curvatures:
    return Curvatures({n: Curvature(v, torch.zeros_like(v), 0) for n, v in values.items()})


def share_figure(curves: Mapping[str, list[Row]]) -> Figure:
    """Accuracy over the share of weights drawn: a panel for each posterior, mean over seeds."""
    place = [*range(len(SHARES))]
    found = {
        name: {order: (place, [one[order]["accuracy"] for one in runs]) for order in ORDERS}
        for name, runs in curves.items()
    }
    figure = panels(found, "weights drawn, %", "accuracy, %")
    for axis in figure.axes:
        axis.set_xticks(place[::2], [f"{100 * s:g}" for s in SHARES[::2]])
    return figure


def files(given: Given) -> Iterable[File]:
    """One, in which each contender has its rows."""
    common = {"epochs": given.epochs, "lr": 1e-3, **given.set}
    settings = {"common": common, "draws": given.draws, "shares": list(SHARES)}
    for name in given.contenders:
        run_one = partial(_curve, name, common, given)
        yield File(f"{given.data}-{given.network}", {"settings": settings}, run_one, seeds(given),
                   ("runs", name))  # fmt: skip


def _curve(name: str, common: Row, given: Given, seed: int) -> Row:
    """The row of a contender."""
    method, own = CONTENDERS[name]
    config, data = resolve(
        method, given.data, seed, network=given.network, data_root=given.data_root,
        sets={**common, **own, **given.set},
    )  # fmt: skip
    result = fit(*untrained(config, data), data, device=given.device, **config.settings)
    return curve(result, given.draws)


def drawn(given: Given) -> Mapping[str, Made]:
    """Shares of all that is in the file."""
    stem = f"{given.data}-{given.network}"
    return {stem: lambda: share_figure(read_all(given.out, stem)[stem]["runs"])}


def table(folder: Path) -> Iterable[str]:
    """How many weights have to be drawn, by the order in which they are."""
    for stem, found in read_all(folder).items():
        yield from header(
            f"{stem}, posterior (seeds)", "means, %", "all drawn, %",
            *(f"by {order}" for order in ORDERS),
        )  # fmt: skip
        for name, runs in found["runs"].items():
            known = [run[ORDERS[0]]["accuracy"] for run in runs]
            shares = ([needed(run[order]) for run in runs] for order in ORDERS)
            yield row(
                f"{name} ({len(runs)})",
                mean_sd([one[0] for one in known], 2),
                mean_sd([one[-1] for one in known], 2),
                *(mean_sd([1.0 if s is None else s for s in own], 1, 100) for own in shares),
            )


SPEC = Spec(
    "experiments.published.variance.mean_propagation", "Mean propagation", "mean_propagation",
    {
        "data": "mnist", "data_root": str, "network": "lenet-300-100",
        "contenders": Choice(CONTENDERS, separator=";"), "epochs": 30, "draws": 50, "set": {},
        "device": "auto",
    },
    files, table, drawn,
    small="--data digits --network perceptron --set hidden=[10,8] --set batch_size=100 "
    "--contenders variance --epochs 2 --draws 3 --seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
