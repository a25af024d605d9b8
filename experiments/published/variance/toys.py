"""Two toys of variance networks: bands of a regression with a gap, and codes of four blobs.

    python -m experiments toys --again

The regression has 400 rows on both sides of a gap, and three networks of two hidden layers: the
layer between them has weights without means, or binary dropout before it, or all layers have a
mean-field posterior. Coverage is the share of fresh targets in the central 95 % of the predictive
distribution: between the training rows, in the gap, and beyond them. The mean field has 30 units in
place of 100, and begins with small variances: a wide one gives up the data for its prior, as it is
known to (arXiv:2106.07052).

The blobs are four classes in the plane, and the only way to the last layers is a layer of two units
that has variances and nothing else, not even a bias: which class it is must be told by the standard
deviations of two numbers. The source (arXiv:1803.03764) trains by Adam at 1e-4 for 21,000 steps;
here 1e-3, falling to zero, over 3,000 steps do. A finished seed is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import CYCLE, GREY, INK, MARKERS, styled
from pyroccam.inference.posterior.draws import Noise
from pyroccam.inference.training.result import Fit
from pyroccam.models.contexts import seeded
from torch import Tensor, nn

from ..markdown import column, header, plus_minus, read_all, row
from ..runner import Choice, File, Given, Made, Row, Spec, seeds

__all__ = ["SPEC", "blobs", "code", "coverage", "gap"]

PARTS = ("regression", "blobs")
CONTENDERS = ("variance", "dropout", "mean field")
SIDES = ((-2.0, -0.7), (0.7, 2.0))  # where the training rows are
REGIONS = {"between rows": SIDES, "gap": ((-0.6, 0.6),), "beyond": ((-3.0, -2.1), (2.1, 3.0))}
NOISE = 0.1
CENTRES = ((3.0, 3.0), (3.0, 10.0), (10.0, 3.0), (10.0, 10.0))
CODE = "variance"  # name of the layer of the blobs

TRAINING: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "checkpoint": "last",
    "evaluations": 1,
    "compile": False,
}


def curve(x: Tensor) -> Tensor:
    """The curve that the regression is to find."""
    return torch.sin(2.5 * x) + 0.3 * x


def inputs(sides: Sequence[tuple[float, float]], n: int, generator: torch.Generator) -> Tensor:
    """Uniform on intervals of one length, ``(n, 1)``."""
    which = torch.arange(n) % len(sides)
    low, high = torch.tensor(sides).T
    u = torch.rand(n, generator=generator)
    return (low[which] + u * (high - low)[which])[:, None]


def gap(seed: int, n: int = 400) -> Dataset:
    """The regression: rows on both sides of a gap, and as many for testing."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for _ in ("train", "test"):
        x = inputs(SIDES, n, generator)
        parts += [x, curve(x) + NOISE * torch.randn(n, 1, generator=generator)]
    return Dataset.from_tensors(*parts, task="regression", val_fraction=0.0, name="gap")


def regression(name: str, data: Dataset, seed: int, steps: int, width: int) -> tuple[Fit, Noise]:
    """A contender, and how its noise is drawn."""
    width = min(width, 30) if name == "mean field" else width
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dropout = [nn.Dropout(0.1)] if name == "dropout" else []
        net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), *dropout, nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1),
        )  # fmt: skip
    priors = models.priors
    guide: guides.ZeroMean | guides.Delta | guides.MeanField
    if name == "variance":
        model = models.BayesianNetwork(
            net, data, prior=priors.LogUniform(), layers=["2"], random_biases=False
        )
        guide = guides.ZeroMean(model)
    else:
        model = models.BayesianNetwork(net, data, prior=priors.Normal(1.0))
        guide = guides.MeanField(model, scale=0.05) if name == "mean field" else guides.Delta(model)
    settings = {**TRAINING, "lr": 1e-2, "batch_size": 100, "steps": steps, "seed": seed}
    settings["kl_warmup"] = 0.3
    fit = inference.fit(model, guide, data, device="cpu", progress=False, **settings)
    return fit, "activations" if name == "variance" else "weights"


def bands(fit: Fit, x: Tensor, noise: Noise, draws: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws of the predictive distribution of targets ``(S, N)``, and of their means, both in the
    units of the data.

    Arguments:
        x: ``(N, 1)``, in the units of the data.
    """
    data, scale = fit.data, fit.model.likelihood.scale.detach()
    means = fit.outputs((x - data.x_mean) / data.x_std, draws=draws, noise=noise)
    with seeded(seed, means.device):
        drawn = means + scale * torch.randn_like(means)
    unit = [(values * data.y_std + data.y_mean)[..., 0] for values in (drawn, means)]
    return unit[0], unit[1]


def coverage(drawn: Tensor, y: Tensor, level: float = 0.95) -> tuple[float, float]:
    """The share of targets in the central interval of the draws, and its mean width.

    Arguments:
        drawn: ``(S, N)``.
        y: ``(N,)``.
        level: of the interval.
    """
    low, high = drawn.quantile(torch.tensor([0.5 - level / 2, 0.5 + level / 2]), dim=0)
    inside = (y >= low) & (y <= high)
    return float(inside.double().mean()), float((high - low).mean())


def blobs(seed: int, each: int = 500) -> Dataset:
    """Four classes of unit variance in the plane; as many rows for testing."""
    generator = torch.Generator().manual_seed(seed)
    centres, y = torch.tensor(CENTRES), torch.arange(4 * each) % 4
    parts: list[Tensor] = []
    for _ in ("train", "test"):
        parts += [centres[y] + torch.randn(4 * each, 2, generator=generator), y]
    return Dataset.from_tensors(*parts, val_fraction=0.0, name="blobs")


def blob_fit(data: Dataset, seed: int, steps: int, width: int) -> Fit:
    """Four hidden layers, the layer of variances, and a hidden layer after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential()
        for k in range(4):
            net.add_module(f"hidden{k}", nn.Linear(width if k else 2, width))
            net.add_module(f"relu{k}", nn.LeakyReLU())
        net.add_module(CODE, nn.Linear(width, 2, bias=False))
        net.add_module("after", nn.Linear(2, width))
        net.add_module("relu_after", nn.LeakyReLU())
        net.add_module("out", nn.Linear(width, 4))
    model = models.BayesianNetwork(net, data, prior=models.priors.LogUniform(), layers=[CODE])
    settings = {**TRAINING, "batch_size": 500, "steps": steps, "seed": seed, "schedule": "linear"}
    guide = guides.ZeroMean(model)
    return inference.fit(model, guide, data, device="cpu", progress=False, **settings)


@torch.no_grad()
def code(fit: Fit, x: Tensor) -> Tensor:
    """Standard deviations of the layer of variances, ``(N, 2)``: all that it tells of an input.

    Arguments:
        x: ``(N, 2)``, standardised.
    """
    guide: Any = fit.guide
    net, hidden = inference.posterior.layers.mean_network(fit.model, guide), x
    for name, part in net.named_children():
        if name == CODE:
            break
        hidden = part(hidden)
    variance = guide.posterior(f"{CODE}.weight").variance
    return F.linear(hidden.square(), variance).sqrt()


def files(given: Given) -> Iterable[File]:
    """One of each part."""
    both = {
        "regression": (_regression, given.regression_steps, given.band_draws),
        "blobs": (_blobs, given.blob_steps, given.draws),
    }
    for part in given.parts:
        run_one, steps, draws = both[part]
        asked = {"steps": steps, "width": given.width, "draws": draws}
        yield File(part, {"asked": asked}, partial(run_one, asked), seeds(given))


def _regression(asked: Mapping[str, int], seed: int) -> Row:
    data, found = gap(seed), {}
    grid = torch.linspace(-3.0, 3.0, 121)[:, None]
    for name in CONTENDERS:
        fit, noise = regression(name, data, seed, asked["steps"], asked["width"])
        row: dict[str, Any] = {"test": fit.evaluate(draws=asked["draws"], noise=noise)}
        row["noise"] = float(fit.model.likelihood.scale.detach() * data.y_std)
        generator = torch.Generator().manual_seed(10_000 + seed)
        for region, sides in REGIONS.items():
            x = inputs(sides, 400, generator)
            y = curve(x) + NOISE * torch.randn(x.shape, generator=generator)
            share, size = coverage(bands(fit, x, noise, asked["draws"])[0], y[:, 0])
            row[region] = {"coverage": share, "width": size}
        if seed == 0:  # for the figure
            drawn, means = bands(fit, grid, noise, asked["draws"])
            levels = torch.tensor([0.025, 0.25, 0.75, 0.975])
            row["bands"] = [[round(v, 4) for v in q.tolist()] for q in drawn.quantile(levels, 0)]
            row["mean"] = [round(v, 4) for v in means.mean(0).tolist()]
        found[name] = row
    return {"contenders": found}


def _blobs(asked: Mapping[str, int], seed: int) -> Row:
    data = blobs(0)  # one data set: what differs are the runs
    fit = blob_fit(data, seed, asked["steps"], asked["width"])
    run: Row = {"accuracy": {}}
    hows: Sequence[Any] = ("stochastic", "deterministic", "ensemble")
    for how in hows:
        noise: Noise = "weights" if how == "deterministic" else "activations"
        metrics = fit.evaluate("test", how, draws=asked["draws"], noise=noise)
        run["accuracy"][how] = metrics["accuracy"]
    found = code(fit, data.x_test)
    run["code"] = [found[data.y_test == k].log().mean(0).exp().tolist() for k in range(4)]
    run["points"] = [[float(f"{v:.3g}") for v in row] for row in found[:120].tolist()]
    run["labels"] = data.y_test[:120].tolist()
    return run


@styled
def draw_bands(runs: Sequence[Mapping[str, Any]]) -> Figure:
    """Half and 95 % of the predictive distribution, for the first seed."""
    fig = new_figure(2.9)
    axes = fig.subplots(1, len(CONTENDERS), sharey=True)
    data = gap(runs[0]["seed"])
    x_train = data.x_train * data.x_std + data.x_mean
    y_train = data.y_train * data.y_std + data.y_mean
    rows = x_train[:100, 0], y_train[:100, 0]
    x = np.linspace(-3.0, 3.0, len(runs[0]["contenders"][CONTENDERS[0]]["mean"]))
    for k, (ax, name) in enumerate(zip(axes, CONTENDERS, strict=True)):
        row = runs[0]["contenders"][name]
        low, quarter, three, high = row["bands"]
        ax.fill_between(x, low, high, color=CYCLE[k], alpha=0.2, linewidth=0, label="95 %")
        ax.fill_between(x, quarter, three, color=CYCLE[k], alpha=0.3, linewidth=0, label="50 %")
        ax.plot(x, row["mean"], color=CYCLE[k], label="mean")
        ax.plot(x, curve(torch.as_tensor(x)), color=INK, lw=0.9, ls="--", label="truth")
        ax.plot(*rows, ".", color=GREY, markersize=3, label="training rows (1 in 4)")
        ax.set_title(name)
        ax.set_ylim(-3.2, 3.2)
    axes[0].set_ylabel("y")
    axes[1].set_xlabel("x")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return fig


@styled
def draw_codes(runs: Sequence[Mapping[str, Any]]) -> Figure:
    """The two deviations that each input gets, in two runs."""
    fig = new_figure(3.6)
    axes = fig.subplots(1, 2)
    for ax, run in zip(axes, runs[:2], strict=True):
        points, labels = torch.tensor(run["points"]), torch.tensor(run["labels"])
        for k, centre in enumerate(CENTRES):
            a, b = points[labels == k].clamp_min(1e-6).T
            name = f"at ({centre[0]:g}, {centre[1]:g})"
            ax.plot(a, b, MARKERS[k], color=CYCLE[k], markersize=3, alpha=0.6, label=name)
        ax.set(xscale="log", yscale="log", xlabel="standard deviation of unit 1")
        ax.grid(True, axis="both")
        accuracy = run["accuracy"]
        of_draws = f"one draw {accuracy['stochastic']:.3f}, ensemble {accuracy['ensemble']:.3f}"
        ax.set_title(f"seed {run['seed']}, accuracy:\n{of_draws}")
    axes[0].set_ylabel("standard deviation of unit 2")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return fig


def drawn(given: Given) -> Mapping[str, Made]:
    """One of each part."""
    how = {"regression": draw_bands, "blobs": draw_codes}
    found = read_all(given.out)
    return {part: partial(how[part], found[part]["runs"]) for part in given.parts}


def table(folder: Path) -> Iterable[str]:
    """Table of the bands of a regression: how many targets they cover, and how wide they are."""
    for found in read_all(folder, "regression").values():
        runs = [run["contenders"] for run in found["runs"]]
        yield from header(f"95 % band ({len(runs)} seeds)", "RMSE", *REGIONS)
        for name in CONTENDERS:
            bands = (
                f"{plus_minus(runs, f'{name}/{region}/coverage', 2)}, "
                f"{np.mean(column(runs, f'{name}/{region}/width')):.2f} wide"
                for region in REGIONS
            )
            yield row(name, plus_minus(runs, f"{name}/test/rmse", 3), *bands)


SPEC = Spec(
    "experiments.published.variance.toys", "Toys", "variance_toys",
    {
        "parts": Choice(PARTS), "seeds": 5, "regression_steps": 1500, "blob_steps": 3000,
        "draws": 101, "band_draws": 500, "width": 100,
    },
    files, table, drawn,
    small="--seeds 2 --regression-steps 8 --blob-steps 8 --width 6 --draws 5 --band-draws 20",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
