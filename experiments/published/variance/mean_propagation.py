"""Can the mean be propagated? How many weights have to be drawn, and which.

    python -m experiments.published.variance.mean_propagation --data-root FOLDER

Networks of several posteriors are trained; the weights of greatest curvature
(``inference.posterior.curvature``) are drawn, the others set to their means, for a growing share of
weights. Beside it stand the shares with the largest deviations first, and in a random order. A
finished seed is kept.
"""

from __future__ import annotations

import json
import textwrap
from typing import Annotated, Any

import torch
import typer
from matplotlib.figure import Figure
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.inference import figures, fit
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import styled
from pyroccam.inference.fits.fitting import Fit
from pyroccam.inference.posterior import Curvature, Curvatures
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import mixture_log_probs
from pyroccam.models.contexts import seeded
from torch import Tensor

from .. import options
from ..runner import ResultFile, Row, renew, untrained

__all__ = ["CONTENDERS", "SHARES", "curve", "share_figure"]

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


@styled
def share_figure(curves: dict[str, list[dict[str, Any]]]) -> Figure:
    """Accuracy over the share of weights drawn: a panel for each posterior, mean over seeds."""
    figure = new_figure(2.6)
    axes = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    place = [*range(len(SHARES))]
    for axis, (name, runs) in zip(axes, curves.items(), strict=True):
        for number, order in enumerate(ORDERS):
            values = torch.tensor([one[order]["accuracy"] for one in runs])
            axis.plot(place, values.mean(0), color=f"C{number}", label=order, lw=1.2)
            if len(values) > 1:
                low, high = values.min(0).values, values.max(0).values
                axis.fill_between(place, low, high, color=f"C{number}", alpha=0.15, lw=0)
        axis.set_title(textwrap.fill(name, 14))
        axis.set_xticks(place[::2], [f"{100 * s:g}" for s in SHARES[::2]])
        axis.set_xlabel("weights drawn, %")
    axes[0].set_ylabel("accuracy, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def main(
    out: options.Out = options.RESULTS / "mean_propagation",
    data: options.Data = "mnist",
    data_root: options.DataRoot = None,
    network: options.Network = "lenet-300-100",
    contenders: Annotated[str, typer.Option(help="By semicolons.")] = ";".join(CONTENDERS),
    seeds: options.Count = 3,
    epochs: options.Count = 30,
    draws: options.Count = 50,
    sets: options.Sets = None,
    threads: options.Count = 1,
    device: options.Device = "auto",
) -> None:
    """Run what is missing; write a JSON file, and a figure."""
    torch.set_num_threads(threads)
    asked = parse_settings(sets or [])
    common = {"epochs": epochs, "lr": 1e-3, **asked}
    settings = {"common": common, "draws": draws, "shares": list(SHARES)}
    file = ResultFile(out / f"{data}-{network}.json", {"runs": {}}, settings=settings)
    found: dict[str, list[Row]] = file.content["runs"]
    for name in options.listed("contender", contenders, CONTENDERS, ";"):
        method, own = CONTENDERS[name]
        runs = found.setdefault(name, [])
        for seed in range(len(runs), seeds):
            config, dataset = RunConfig.resolve(
                method, data, network=network, data_root=data_root, seed=seed,
                sets={**common, **own, **asked},
            )  # fmt: skip
            result = fit(*untrained(config, dataset), dataset, device=device, **config.settings)
            runs.append({"seed": seed, **curve(result, draws)})
            file.write(spread={n: mean_spread([*map(_numbers, rows)]) for n, rows in found.items()})
            print(name, "seed", seed, json.dumps(_numbers(runs[-1])), flush=True)
    picture = share_figure({name: runs for name, runs in found.items() if runs})
    target = file.path.with_suffix("")
    renew(target.with_suffix(".png"), figures.save, picture, target)


def _numbers(run: Row) -> dict[str, float]:
    """Numbers that are averaged over seeds."""
    known = run[ORDERS[0]]
    numbers = {
        "deterministic": known["accuracy"][0],
        "ensemble": known["accuracy"][-1],
        "kappa_half_sum": run["kappa_half_sum"],
        "nll_deterministic": known["nll"][0],
        "nll_ensemble": known["nll"][-1],
    }
    for order in ORDERS:
        share = needed(run[order])
        numbers[f"share, {order}"] = 1.0 if share is None else share
    return numbers


if __name__ == "__main__":
    typer.run(main)
