"""Figures of predictions beside what was observed."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter
from scipy.special import ndtri

from ..posterior import Bands, Reliability
from .canvas import FEW_ROWS, Array, Floats, floats, legend_above, new_figure
from .style import AMOUNT, CYCLE, GREY, INK, MARKERS, styled

_LEVEL = 0.95
_LEVELS = np.linspace(0.05, 0.95, 19)
_MOST = 400  # rows with an interval each


@styled
def predictive_bands(
    grid: Array,
    bands: Bands,
    x: Array,
    y: Array,
    at_rows: Bands | None = None,
    *,
    ylabel: str = "target",
) -> Figure:
    """The predictive mean over one input, with two 95 % bands: of the mean, which is unsure because
    the network is, and of a row, noise included.

    Arguments:
        grid: values of the input, increasing, ``(G,)``.
        bands: predicted there, each ``(G,)`` or ``(G, 1)``.
        x, y: observed rows, ``(N,)``.
        at_rows: predicted at ``x``, to say how many of the rows lie within the band of a row.
        ylabel: of the axis of targets.
    """
    points, rows, observed = floats(grid), floats(x), floats(y)
    mean, epistemic, total = _parts(bands)
    z = float(ndtri((1 + _LEVEL) / 2))
    fig = new_figure(3.4)
    ax = fig.subplots()
    inner, outer = "95 % band of the mean", "95 % band of a row"
    if at_rows is not None:
        own = _parts(at_rows)
        outer += f", holds {100 * _held(observed, own[0], own[2], z):.3g} % of them"
    ax.fill_between(
        points, mean - z * total, mean + z * total, color=CYCLE[5], alpha=0.3, linewidth=0,
        label=outer,
    )  # fmt: skip
    ax.fill_between(
        points, mean - z * epistemic, mean + z * epistemic, color=CYCLE[0], alpha=0.45,
        linewidth=0, label=inner,
    )  # fmt: skip
    ax.plot(points, mean, color=CYCLE[0], label="mean")
    ax.plot(
        rows, observed, ".", color=INK, markersize=3.5, alpha=0.7, rasterized=len(rows) > 5000,
        label="test rows",
    )  # fmt: skip
    ax.set(xlabel="input", ylabel=ylabel, xlim=(points[0], points[-1]))
    legend_above(ax, ["mean", "test rows", inner, outer], columns=2)
    return fig


@styled
def predicted_observed(y: Array, bands: Bands, *, label: str = "target") -> Figure:
    """Predicted against observed values of a regression of many inputs, and whether its intervals
    hold as many rows as they say.

    Left: a row for each point, with its 95 % interval as a line (of 400 rows at most, evenly by
    their prediction); on the diagonal a prediction is right. Right: how many rows lie within
    central intervals of 5 % to 95 %; below the diagonal the network is too sure.

    Arguments:
        y: observed, ``(N,)``.
        bands: predicted, each ``(N,)`` or ``(N, 1)``.
        label: of the target.
    """
    observed = floats(y)
    mean, _, total = _parts(bands)
    fig = new_figure(3.1)
    left, right = fig.subplots(1, 2, width_ratios=[1.25, 1.0])
    z = float(ndtri((1 + _LEVEL) / 2))
    order = np.argsort(mean, kind="stable")
    shown = order[np.linspace(0, len(order) - 1, min(_MOST, len(order))).round().astype(int)]
    outside = np.abs(observed - mean) > z * total
    for missed, colour, name in ((False, CYCLE[0], "within"), (True, CYCLE[1], "outside")):
        some = shown[outside[shown] == missed]
        left.vlines(
            observed[some], (mean - z * total)[some], (mean + z * total)[some], color=colour,
            linewidth=0.8, alpha=0.3,
        )  # fmt: skip
        left.plot(
            observed[some], mean[some], "X" if missed else "o", color=colour, linestyle="",
            markersize=4.0 if missed else 2.4, markeredgewidth=0, label=name,
        )  # fmt: skip
    ends = [float(min(observed.min(), mean.min())), float(max(observed.max(), mean.max()))]
    left.plot(ends, ends, color=GREY, linestyle=(0, (4, 3)), linewidth=1.1)
    left.set(xlabel=f"{label}, observed", ylabel="predicted")
    legend_above(left, ["within", "outside"], columns=2)

    held = [_held(observed, mean, total, float(ndtri((1 + c) / 2))) for c in _LEVELS]
    right.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1.1)
    name = f"95 % holds {100 * held[-1]:.3g} % of {len(observed):,}"
    right.plot(_LEVELS, held, color=CYCLE[0], marker="o", markersize=3, label=name)
    right.set(xlabel="probability of an interval", ylabel="share of rows inside")
    right.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    legend_above(right, [name])
    return fig


def _parts(bands: Bands) -> list[Floats]:
    return [floats(values.reshape(-1)) for values in bands]


def _held(observed: Floats, mean: Floats, sd: Floats, z: float) -> float:
    """The share of rows within ``z`` deviations."""
    return float((np.abs(observed - mean) <= z * sd).mean())


@styled
def confusions(counts: Array, names: Sequence[str]) -> Figure:
    """Which classes are taken for which: of the rows of each class, the percentage for each
    predicted one, in squares whose shade says the same.

    Arguments:
        counts: rows ``(C, C)`` by class and by predicted class.
        names: of the classes.
    """
    rows = floats(counts)
    share = 100 * rows / np.maximum(rows.sum(1, keepdims=True), 1)
    fig = new_figure(1.4 + 0.32 * len(names))
    ax = fig.subplots()
    ax.imshow(share, cmap=AMOUNT, vmin=0, vmax=100, aspect="auto")
    for (i, j), value in np.ndenumerate(share):
        if rows[i, j]:
            ax.text(
                j, i, f"{value:.3g}", ha="center", va="center", fontsize=7.5,
                color="white" if value > 50 else INK,
            )  # fmt: skip
    of = [f"{name} ({int(total):,})" for name, total in zip(names, rows.sum(1), strict=True)]
    ax.set_yticks(np.arange(len(names)), of)
    long = max(map(len, names)) * len(names) > 60
    turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if long else {}
    ax.set_xticks(np.arange(len(names)), names, **turned)
    ax.set(xlabel="predicted, % of the rows of a class", ylabel="class (rows)")
    ax.grid(False)
    return fig


@styled
def reliability_diagram(reliabilities: Mapping[str, Reliability]) -> Figure:
    """Accuracy against confidence for several contenders, and how many rows stand behind it.

    Upper panel: a point for each bin with rows, at its mean confidence and its accuracy;
    hollow, and off the line, where fewer than 20 rows make the accuracy unsure. On the dashed
    diagonal, confidence is earned; below it, the network is too sure. Lower panel: rows for
    each bin, on a logarithmic axis.

    Arguments:
        reliabilities: for each contender, what
            :func:`pyroccam.inference.posterior.metrics.reliability` returns. Their numbers of bins
            may differ.
    """
    fig = new_figure(5.0)
    top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=[2.6, 1.0])
    top.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1.1)
    labels: list[str] = []
    unsure: dict[str, Any] = {"linestyle": "", "markerfacecolor": "white"}
    for (name, table), colour, marker in zip(
        reliabilities.items(), cycle(CYCLE), cycle(MARKERS), strict=False
    ):
        counts = floats(table.counts)
        held = counts > 0
        rows = counts[held]
        confidence, accuracy = floats(table.confidence)[held], floats(table.accuracy)[held]
        few = rows < FEW_ROWS
        labels.append(f"{name} (ECE {100 * table.ece:.2g} %)")
        top.plot(confidence[~few], accuracy[~few], color=colour, marker=marker, label=labels[-1])
        top.plot(confidence[few], accuracy[few], color=colour, marker=marker, **unsure)
        edges = np.linspace(0, 1, len(counts) + 1)
        bottom.stairs(counts, edges, color=colour, linewidth=1.4, label=name)
    top.set(ylabel="accuracy", ylim=(-0.02, 1.02), xlim=(-0.01, 1.01))
    if any(
        ((table.counts > 0) & (table.counts < FEW_ROWS)).any() for table in reliabilities.values()
    ):
        labels.append(f"under {FEW_ROWS} rows")
        top.plot([], [], color=GREY, marker="o", label=labels[-1], **unsure)
    legend_above(top, labels, columns=2)
    bottom.set(xlabel="confidence (probability of the predicted class)", ylabel="rows")
    bottom.set_yscale("log")
    bottom.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    bottom.set_ylim(bottom=0.7)
    return fig
