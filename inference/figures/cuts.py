"""Figures of a cut: what the posterior says of groups or weights, and where they are cut."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .canvas import Array, Floats, floats, legend_above, log_axis, new_figure
from .style import CYCLE, GREY, INK, styled

BINS = 50
MOST = 200  # intervals that can be told apart at 600 pixels


@styled
def irrelevance_histograms(
    found: Mapping[str, Any], thresholds: Mapping[str, float], left: Mapping[str, Array]
) -> Figure:
    """A histogram for each layer: what is kept in colour, what is cut in grey, the threshold as a
    line. Two clusters with the line between them are a clear decision.

    Arguments:
        found: what :func:`pyroccam.inference.shrinking.relevance.irrelevance` returns.
        thresholds: by layer; infinite where nothing is cut.
        left: which of these values are of the network that was cut.

    Returns:
        The figure, with an axis for each layer.
    """
    fig = new_figure(0.6 + 1.25 * len(found))
    axes = fig.subplots(len(found), 1, squeeze=False)[:, 0]
    for ax, (name, one) in zip(axes, found.items(), strict=True):
        own, threshold = floats(one.values.flatten()), thresholds[name]
        stays, finite = np.asarray(left[name]).reshape(-1), np.isfinite(own)
        edges = np.histogram_bin_edges(own[finite], bins=BINS)
        kept, gone = own[stays & finite], own[~stays & finite]
        ax.hist([kept, gone], edges, stacked=True, color=[CYCLE[0], GREY], linewidth=0)
        if math.isfinite(threshold):
            ax.axvline(threshold, color=INK, linewidth=1.1)
        what = "groups" if one.grouped else "weights"
        ax.set_title(f"layer {name}: {len(kept):,} of {finite.sum():,} {what} kept", loc="left")
        ax.set_ylabel(what)
        if finite.sum() > 10_000:
            ax.set_yscale("log")
    statistics = {one.statistic for one in found.values()}
    for ax, one in zip(axes, found.values(), strict=True):
        if len(statistics) > 1 or ax is axes[-1]:
            ax.set_xlabel(one.statistic)
    return fig


@styled
def scale_posteriors(
    scales: Mapping[str, Any], found: Mapping[str, Any], thresholds: Mapping[str, float]
) -> Figure:
    """An interval for every group, or weight, of each layer: what is kept in colour with a filled
    point, then what is cut in grey with a hollow one, the cut as a line between them. On both sides
    the largest medians come first.

    Of more than 200 one of two, three, ... is drawn, and the title says so.

    Arguments:
        scales: what :func:`pyroccam.inference.shrinking.scale_intervals` returns.
        found: what :func:`pyroccam.inference.shrinking.relevance.irrelevance` returns, by which
            is cut.
        thresholds: of those, by layer; infinite where nothing is cut.

    Returns:
        The figure, with an axis for each layer, logarithmic for scales that are positive.
    """
    fig = new_figure(0.75 + 1.5 * len(scales))
    axes = fig.subplots(len(scales), 1, squeeze=False)[:, 0]
    for ax, (name, one) in zip(axes, scales.items(), strict=True):
        values = floats(found[name].values.flatten())
        ends = [floats(end.flatten()) for end in (one.low, one.median, one.high)]
        what = "groups" if found[name].grouped else "weights"
        number, step = _intervals(ax, one, ends, values, thresholds[name])
        every = "" if step == 1 else f", one of {step} drawn"
        title = f"layer {name}: {number:,} of {len(values):,} {what} kept{every}"
        # Above the first stands the legend.
        ax.set_title(title, loc="left", pad=20 if ax is axes[0] else None)
    axes[-1].set_xlabel("rank by size, those that are kept first")
    looks = {"kept": CYCLE[0], "cut": "white"}
    for label, colour in looks.items():
        edge = CYCLE[0] if label == "kept" else GREY
        axes[0].plot([], [], "o", color=edge, markerfacecolor=colour, markersize=4, label=label)
    legend_above(axes[0], list(looks))
    return fig


def _intervals(
    ax: Axes, one: Any, ends: list[Floats], values: Floats, threshold: float
) -> tuple[int, int]:
    """Draw one layer; how many are kept, and that every so manieth is drawn."""
    order = np.lexsort((-ends[1], values > threshold))
    step = math.ceil(len(order) / MOST)
    rank = np.arange(0, len(order), step)
    low, median, high = (end[order[rank]] for end in ends)
    kept = values[order[rank]] <= threshold
    width = max(0.7, min(2.2, 300 / len(rank)))
    for chosen, colour, inside in ((kept, CYCLE[0], CYCLE[0]), (~kept, GREY, "white")):
        place = rank[chosen] + 1
        ax.vlines(place, low[chosen], high[chosen], color=colour, linewidth=width, alpha=0.6)
        ax.plot(
            place, median[chosen], "o", color=colour, markersize=1.8 + 0.6 * width,
            markerfacecolor=inside, markeredgewidth=0.7,
        )  # fmt: skip
    number = int((values <= threshold).sum())
    if number < len(values):
        ax.axvline(number + 0.5, color=INK, linewidth=1.1, linestyle=(0, (4, 2)))
    if one.positive:
        log_axis(ax, float(low.min()), float(high.max()))
    else:
        ax.axhline(0, color=GREY, linewidth=0.8, zorder=0.5)
    ax.set_ylabel(f"{one.quantity}, {100 * one.level:.3g} %")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
    ax.set_xlim(0.5 - 0.01 * len(values), len(values) + 0.5 + 0.01 * len(values))
    return number, step
