"""The figures of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ..data import Dataset
from ..inference import figures
from ..inference.files import Small
from ..inference.posterior import (
    Bands,
    How,
    Reliability,
    mixture_bands,
    nll_of_rows,
    outputs_by_depth,
    reliability,
    streamed,
)
from ..inference.shrinking import (
    at_depth,
    bytes_by_part,
    input_use,
    left_of,
    of_groups,
    remains,
    scale_intervals,
)
from ..inference.training import Fit

_TITLES = {
    "bits": "bits of the weights, and bytes of the file",
    "bytes": "bytes by depth",
    "confusions": "which class is taken for which",
    "depth": "which depth",
    "functions": "functions by depth",
    "irrelevance": "what is cut",
    "path": "networks by the weight of the KL",
    "scales": "scales of the groups",
    "sparsity": "what is left of each layer",
    "structure": "which operations",
    "trade": "errors and costs",
}
_MOST_CLASSES = 20
_MOST_LAYERS = 16
_MOST_TARGETS = 4  # of a regression, with a figure each


def save_figure(picture: Figure, data: Dataset, path: Path, more: str = "") -> list[Path]:
    """Save a figure of a run, with the name of the data and what it shows for a title."""
    shown = _TITLES.get(path.name.partition("-")[0], path.name)
    return figures.save(picture, path, title=f"{data.name}: {shown}{more}")


def draw(
    result: Fit,
    ddn: Fit | None,
    folder: Path,
    before: Sequence[Fit] = (),
    predictor: str = "all depths",
    *,
    every: bool = True,
) -> list[Path]:
    """Draw what every run can show: q(d), functions by depth (inputs in the plane), reliability or
    predictive bands, and the training curve.

    Arguments:
        every: or else q(d) alone.
        predictor: what a prediction is made by; ``deterministic`` where that is one network.
    """
    how: How = "deterministic" if predictor == "deterministic" else "ensemble"
    data = result.data
    written: list[Path] = []
    # Of random weights the method draws it, as its last fit may be of one depth.
    structure = None if result.model.random_weights else result.structure
    if structure is not None:
        written += draw_depth(result, folder)
    if not every:
        return written
    if structure is not None and data.classes == 2 and data.input_shape == (2,):
        written += save_figure(_functions(result), data, folder / "functions")
    if data.task in ("classification", "multi-label"):
        picture = figures.reliability_diagram(_calibration(result, ddn, predictor, how))
        written += save_figure(picture, data, folder / "reliability")
        if 0 < len(data.class_names) <= _MOST_CLASSES:
            written += save_figure(_confusions(result, how), data, folder / "confusions")
    elif result.model.likelihood.has_noise:
        for name, picture in _predictions(result, how).items():
            written += save_figure(picture, data, folder / name)
    history = joined_history([*before, result])
    if history:
        curve = figures.training_curve(history, unit=unit_of(result))
        written += save_figure(curve, data, folder / "training")
    return written


@torch.no_grad()
def draw_depth(result: Fit, folder: Path) -> list[Path]:
    """Draw q(d), beside the losses of the exits; of random weights, those of their means."""
    found = result.structure
    assert found is not None
    outputs: Any = partial(outputs_by_depth, result.model)
    if result.model.random_weights:
        net: Any = result.posterior.mean_network()
        outputs = partial(streamed, net.outputs)
    nll = {
        split: nll_of_rows(result.data, split, outputs, result.model.likelihood)
        for split in ("train", "test")
    }
    picture = figures.depth_posterior(found, nll, unit_of(result))
    return save_figure(picture, result.data, folder / "depth")


def draw_compressed(
    result: Fit, small: Small, folder: Path, first: Fit | None = None, *, every: bool = True
) -> list[Path]:
    """Draw a compressed network: what is left of each layer, what takes the bytes of the file,
    the thresholds, where there are some, and the scales behind them. Of many layers the largest
    are drawn.

    Arguments:
        every: or else what is left of each layer alone.
    """
    before = (first or result).model.layers
    shapes = {name: layer.affine.shape.weight for name, layer in before.items()}
    left = remains(small, shapes)
    shape = result.data.input_shape
    columns = result.data.columns if len(shape) == 1 else ()
    drawable = len(shape) == 3 or columns
    use = input_use(small, next(iter(shapes.values())), shape) if drawable else None
    largest = sorted(left, key=lambda name: -math.prod(left[name].before))[:_MOST_LAYERS]
    few = {name: one for name, one in left.items() if name in largest}
    more = "" if len(few) == len(left) else f", the {len(few)} largest of {len(left)} layers"
    drawn = {"sparsity": figures.sparsity_maps(few, use, columns)}
    if every:
        bits = dict(zip(left, small.report.bits.values(), strict=True))
        nonzero = {name: int(one.kept.sum()) for name, one in left.items()}
        of_parts = bytes_by_part(small, list(left))
        drawn["bits"] = figures.bits_per_layer(bits, nonzero, of_parts)
    judged = small.report.irrelevance if every else {}
    if judged:
        names = dict(zip(judged, left, strict=True))  # as they were before narrowing
        judged = {own: one for own, one in judged.items() if names[own] in few}
        found = {names[own]: one for own, one in judged.items()}
        cut = {names[own]: small.report.thresholds[own] for own in judged}
        layers = result.model.layers
        stays = {names[n]: left_of(small, layers[n], one) for n, one in judged.items()}
        drawn["irrelevance"] = figures.irrelevance_histograms(found, cut, stays)
    if judged and not result.guide.traits.point:
        intervals = scale_intervals(result)
        scales = {names[own]: intervals[own] for own in judged}
        groups = {n: of_groups(one, layers[n]) for n, one in judged.items()}
        gone = {
            names[n]: replace(one, values=(~left_of(small, layers[n], one)).double())
            for n, one in groups.items()
        }
        drawn["scales"] = figures.scale_posteriors(scales, gone, dict.fromkeys(gone, 0.5))
    written = []
    for name, picture in drawn.items():
        own = "" if name == "bits" else more  # which has all layers
        written += save_figure(picture, result.data, folder / name, own)
    return written


def draw_trade(
    result: Fit,
    networks: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    chosen: int,
    folder: Path,
    *,
    others: str = "other depths",
    seconds: str = "seconds_per_batch",
) -> list[Path]:
    """Draw the test error of small networks against what they cost."""
    classes = result.data.task == "classification"
    costs = {
        "file, bytes": [row["file_bytes"] for row in networks],
        "multiply-adds of a row": [max(1, row["multiply_adds"]) for row in networks],
        "ms, 256 rows": [1e3 * row[seconds] for row in networks],
    }
    errors = [
        100 * (1 - row["test"]["accuracy"]) if classes else row["test"]["nll"] for row in networks
    ]
    ylabel = "test error, %" if classes else f"test NLL, {unit_of(result)}"
    picture = figures.trade_off(costs, errors, labels, chosen, ylabel=ylabel, others=others)
    return save_figure(picture, result.data, folder / "trade")


def draw_repeats(runs: Sequence[Sequence[Fit]], folder: Path) -> list[Path]:
    """The training curves of several seeds in one figure."""
    histories = [joined_history(fits) for fits in runs]
    if not all(histories):
        return []
    picture = figures.training_curve(histories, unit=unit_of(runs[0][-1]))
    return save_figure(picture, runs[0][-1].data, folder / "training")


def unit_of(fit: Fit) -> str:
    """The unit of a likelihood, as tables have it."""
    return "nats per row" + (", target units" if fit.data.task == "regression" else "")


def joined_history(fits: Sequence[Fit]) -> list[dict[str, float]]:
    """The records of fits that follow each other, with epochs and steps counted on, and nats of
    targets in original units, as tables have them."""
    rows: list[dict[str, float]] = []
    for fit in fits:
        units = float(fit.data.y_std.double().log().sum())
        done = {name: rows[-1][name] for name in ("epoch", "step") if rows and name in rows[-1]}
        rows += [
            row
            | {name: row[name] + last for name, last in done.items() if name in row}
            | {name: row[name] + units for name in row if name.endswith(("loss", "nll"))}
            for row in fit.history
        ]
    return rows


def _predictions(result: Fit, how: How) -> dict[str, Figure]:
    """A figure for each target: bands over one input, or predicted against observed values."""
    data = result.data
    single = math.prod(data.input_shape) == 1
    found: dict[str, Figure] = {}
    rows = _bands(result, data.x_test, how)
    observed = (data.y_test * data.y_std + data.y_mean).double().cpu()
    names = [""] if data.outputs == 1 else [f"-{k}" for k in range(data.outputs)]
    for k, name in enumerate(names[:_MOST_TARGETS]):
        own = Bands(*(part[:, k] for part in rows))
        label = "target" if not name else f"target {k}"
        if not single:
            found[f"predictive{name}"] = figures.predicted_observed(
                observed[:, k], own, label=label
            )
            continue
        x = data.x_test.reshape(-1)
        seen = torch.cat([data.head(data.N)[0].reshape(-1), x])
        low, high = float(seen.min()), float(seen.max())
        margin = 0.1 * (high - low) or 1.0
        grid = torch.linspace(low - margin, high + margin, 300, device=x.device)
        bands = _bands(result, grid.reshape(-1, *data.input_shape), how)
        scale, shift = (float(t.reshape(-1)[0]) for t in (data.x_std, data.x_mean))
        found[f"predictive{name}"] = figures.predictive_bands(
            grid * scale + shift, Bands(*(part[:, k] for part in bands)),
            x * scale + shift, observed[:, k], own, ylabel=label,
        )  # fmt: skip
    return found


def _bands(result: Fit, x: torch.Tensor, how: How) -> Bands:
    """Moments of the predictive distribution in original units, on the CPU."""
    data, likelihood = result.data, result.model.likelihood
    outputs, shares = result.components(x, how)
    with torch.no_grad():
        means, noise = likelihood.predicted(outputs), likelihood(outputs).variance.sqrt()
    found = mixture_bands(means, shares, noise, data.y_mean, data.y_std)
    return Bands(*(part.cpu() for part in found))


def _confusions(result: Fit, how: How) -> Figure:
    x, y = result.data.split("test")
    names = result.data.class_names
    both = len(names) * y + result.predict(x, how).argmax(-1)
    counts = both.bincount(minlength=len(names) ** 2).view(len(names), -1)
    return figures.confusions(counts, names)


def _calibration(result: Fit, ddn: Fit | None, predictor: str, how: How) -> dict[str, Reliability]:
    x, y = result.data.split("test")
    contenders = {predictor: result.predict(x, how)}
    if result.structure is not None and not result.model.random_weights:
        net = at_depth(result)
        with torch.no_grad():
            contenders[f"cut at depth {net.depth}"] = net(x)
    if ddn is not None:
        contenders["plain network"] = ddn.predict(x)
    if result.data.task == "multi-label":  # every label of every row is one of two classes
        y = y.reshape(-1).long()
        for name, probs in contenders.items():
            p = probs.double().reshape(-1).clamp(1e-12, 1 - 1e-12)
            contenders[name] = torch.stack([torch.log1p(-p), p.log()], -1)
    return {name: reliability(log_probs, y) for name, log_probs in contenders.items()}


def _functions(result: Fit) -> Figure:
    """The probability of class 1 over the plane at the depths around the chosen one."""
    structure, data = result.structure, result.data
    assert structure is not None
    deepest = result.model.max_depth
    depths = list(range(min(structure.depth_chosen + 2, deepest) + 1))
    if len(depths) > 7:
        depths = sorted({round(d) for d in np.linspace(0, depths[-1], 7)})
    depths = sorted({*depths, structure.depth_chosen, deepest})
    low, high = data.x_test.amin(0) - 0.3, data.x_test.amax(0) + 0.3
    side = 120
    grid_x = torch.linspace(float(low[0]), float(high[0]), side)
    grid_y = torch.linspace(float(low[1]), float(high[1]), side)
    yy, xx = torch.meshgrid(grid_y, grid_x, indexing="ij")
    points = torch.stack([xx, yy], -1).reshape(-1, 2).to(data.x_test.device)
    with torch.no_grad():
        by_depth = result.model.likelihood.predicted(outputs_by_depth(result.model, points))
    probs = by_depth.exp()[..., 1]
    surfaces = probs.reshape(-1, side, side)[depths]
    shown = data.first(data.N)
    return figures.spiral_functions(
        shown.x_train, shown.y_train, grid_x, grid_y, surfaces, depths,
        structure.depth_probs[depths], structure.depth_chosen,
    )  # fmt: skip
