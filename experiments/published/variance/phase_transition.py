"""How a network becomes a variance network: variational dropout, looked at while it trains.

    python -m experiments phase_transition --again --data-root FOLDER

One dropout rate is learnt for a layer, from a small one: the network begins as a usual one. At each
evaluation stand the rate, the bound and the accuracy of the posterior, those of the posterior
without its means (``inference.shrinking.without_means``), and the accuracy when the deviations of
the layer change places at random, which costs nothing as long as they say nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam.data import Dataset
from pyroccam.guides import MeanField, VariationalDropout, ZeroMean
from pyroccam.guides.base import NetworkGuide
from pyroccam.inference import fit
from pyroccam.inference.elbo.full_data import evidence
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import styled
from pyroccam.inference.posterior.draws import draw_outputs
from pyroccam.models import BayesianNetwork

from ..markdown import read_all
from ..runner import File, Given, Made, Row, Spec, resolve, untrained

__all__ = ["SPEC", "permuted", "transition_figure", "watch"]

DRAWS = 10


def watch(rows: int) -> Any:
    """A function for ``track=`` of a fit by :class:`~pyroccam.guides.VariationalDropout`.

    Arguments:
        rows: of the validation rows that are looked at.
    """

    def look(model: BayesianNetwork, guide: VariationalDropout, data: Dataset) -> dict[str, float]:
        x, y = (part[:rows] for part in data.split("val"))
        found = {f"log_alpha {name}": rate for name, rate in log_alphas(model, guide).items()}
        for name, one in (
            ("", guide),
            ("zero_mean_", ZeroMean(model, begin=guide)),
            ("permuted_", permuted(model, guide)),
        ):
            found[f"{name}accuracy"] = accuracy(model, one, x, y)
            if name != "permuted_":
                bound = evidence(model, one, data, split="val", rows=rows, passes=2)
                found[f"{name}log_likelihood"] = bound.log_likelihood / len(x)
                found[f"{name}kl"] = bound.kl
        return found

    return look


@torch.no_grad()
def log_alphas(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, float]:
    """The mean of log α over the weights, by layer."""
    found = {}
    for name in model.layers:
        q = guide.posterior(f"{name}.weight").base_dist
        found[name] = float((2.0 * (q.scale.log() - q.loc.abs().clamp_min(1e-30).log())).mean())
    return found


def accuracy(
    model: BayesianNetwork, guide: NetworkGuide, x: torch.Tensor, y: torch.Tensor
) -> float:
    """Accuracy of the ensemble, noise as in training."""
    noise: Any = "activations" if guide.handler is not None else "weights"
    outputs = draw_outputs(model, guide, x, DRAWS, noise=noise)
    return float((outputs.softmax(-1).mean(0).argmax(-1) == y).double().mean())


@torch.no_grad()
def permuted(model: BayesianNetwork, guide: NetworkGuide) -> MeanField:
    """The posterior with the deviations of each layer in random places; the rest stays."""
    own = MeanField(model).to(next(guide.parameters()).device)
    factors = own.part("factors")
    for site, (_, name) in model.sites.items():
        if name != "weight":
            factors[own.key(site)] = copy.deepcopy(guide.factor_of(site))
    for name in model.layers:
        q = guide.posterior(f"{name}.weight").base_dist
        factor: Any = own.factor_of(f"{name}.weight")
        order = torch.randperm(q.scale.numel(), device=q.scale.device)
        factor.loc.copy_(q.loc)
        factor.log_scale.copy_(q.scale.flatten()[order].reshape(q.scale.shape).log())
    return own


def with_bounds(row: dict[str, float], size: int) -> dict[str, float]:
    """A row with the evidence lower bounds, in nats an observation: of the posterior, and without
    its means, where the KL is the constant that a log-uniform prior makes of it."""
    bounds = {
        f"{who}bound": row[f"{who}log_likelihood"] - row[f"{who}kl"] / size
        for who in ("", "zero_mean_")
    }
    return {**row, **bounds}


@styled
def transition_figure(histories: Sequence[Sequence[dict[str, float]]], size: int) -> Figure:
    """Rate, bound, likelihood and accuracy over the epochs, a line for each run.

    Arguments:
        histories: what :func:`watch` found, by run and evaluation.
        size: training rows, over which a KL is spread.
    """
    histories = [[with_bounds(row, size) for row in history] for history in histories]
    figure = new_figure(4.2)
    axes = figure.subplots(2, 2, sharex=True).flatten()
    layers = [name for name in histories[0][0] if name.startswith("log_alpha")]
    panels: tuple[tuple[str, dict[str, str]], ...] = (
        ("mean log alpha", {name: name.removeprefix("log_alpha ") for name in layers}),
        ("accuracy", {"accuracy": "posterior", "zero_mean_accuracy": "without means",
                      "permuted_accuracy": "deviations permuted"}),
        ("log-likelihood, nats a row", {"log_likelihood": "", "zero_mean_log_likelihood": ""}),
        ("bound, nats a row", {"bound": "", "zero_mean_bound": ""}),
    )  # fmt: skip
    for axis, (label, lines) in zip(axes, panels, strict=True):
        for number, (what, name) in enumerate(lines.items()):
            for run, history in enumerate(histories):
                epochs = [row["epoch"] for row in history]
                values = [row[what] for row in history]
                shown = name if run == 0 and len(lines) > 1 else None
                axis.plot(epochs, values, color=f"C{number}", label=shown, lw=1.2)
        axis.set_title(label)
    axes[0].axhline(0.0, color="0.7", lw=0.8, zorder=0)
    for axis in axes[2:]:
        axis.set_yscale("symlog", linthresh=0.1)
        axis.set_ylim(top=0.0)
        axis.set_xlabel("epoch")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def files(given: Given) -> Iterable[File]:
    """One of each seed."""
    sets = {"epochs": given.epochs, "evaluations": given.epochs, "lr": 1e-3}
    sets |= {"layers": given.layers, **given.set}
    for seed in range(given.seeds):
        config, data = resolve(
            "variational-dropout", given.data, seed, network=given.network,
            data_root=given.data_root, sets=sets,
        )  # fmt: skip
        says = {**config.without_seed(), "log_alpha": given.log_alpha, "rows": given.rows}
        run_one = partial(_history, config, data, given)
        yield File(f"{given.data}-{given.network}-{seed}", {"config": says}, run_one)


def _history(config: Any, data: Dataset, given: Given) -> Row:
    """What was seen during a fit."""
    model, _ = untrained(config, data)
    guide = VariationalDropout(model, rate="layer", log_alpha=given.log_alpha)
    how = {"device": given.device, "track": watch(given.rows), **config.settings}
    return {"history": fit(model, guide, data, **how).history}


def drawn(given: Given) -> Mapping[str, Made]:
    """All runs."""
    stem = f"{given.data}-{given.network}"

    def made() -> Figure:
        _, data = resolve(
            "variational-dropout", given.data, network=given.network,
            data_root=given.data_root, sets=given.set,
        )  # fmt: skip
        found = read_all(given.out, f"{stem}-[0-9]*").values()
        return transition_figure([one["history"] for one in found], data.N)

    return {stem: made}


SPEC = Spec(
    "experiments.published.variance.phase_transition", "Phase transition", "phase_transition",
    {
        "data": "mnist", "data_root": str, "network": "lenet-300-100", "layers": "penultimate",
        "log_alpha": -5.0, "epochs": 60, "rows": 2000, "set": {}, "device": "auto",
    },
    files, lambda folder: [], drawn,
    small="--data digits --network perceptron --set hidden=[40,40] --set evaluations=2 "
    "--set lr=0.01 --set batch_size=64 --epochs 4 --seeds 1 --log-alpha 6 --rows 140",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
