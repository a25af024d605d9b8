"""Figures of a cut: where groups or weights are cut, what is left, and what it takes in a file."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..rounding import LayerBits
from .canvas import Array, Floats, floats, legend_above, log_axis, new_figure
from .style import AMOUNT, CYCLE, GREY, INK, styled

BINS = 50
MOST = 200  # intervals that can be told apart at 600 pixels
FINEST = 192  # squares along a side: what a panel shows at 600 pixels
COLUMNS = 3
LETTERS = 25


def end_of(name: str) -> str:
    """The name of a layer; of a long one the end, which tells more than where it begins."""
    parts = name.split(".")
    while len(parts) > 1 and sum(map(len, parts)) + len(parts) > LETTERS:
        del parts[0]
    end = ".".join(parts)
    return end if end == name else f"…{end}"


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
    """
    fig = new_figure(0.6 + 1.25 * len(found))
    axes = fig.subplots(len(found), 1, squeeze=False)[:, 0]
    for ax, (name, one) in zip(axes, found.items(), strict=True):
        own, threshold = floats(one.values.flatten()), thresholds[name]
        stays, finite = np.asarray(left[name]).reshape(-1), np.isfinite(own)
        edges = np.histogram_bin_edges(own[finite], bins=BINS)
        kept, gone = own[stays & finite], own[~stays & finite]
        ax.hist([kept, gone], edges, stacked=True, color=[CYCLE[0], GREY], linewidth=0)
        if threshold <= edges[-1]:  # beyond, nothing is cut by it
            ax.axvline(threshold, color=INK, linewidth=1.1)
        what = "groups" if one.grouped else "weights"
        title = f"layer {end_of(name)}: {len(kept):,} of {finite.sum():,} {what} kept"
        ax.set_title(title, loc="left")
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
    """
    fig = new_figure(0.75 + 1.5 * len(scales))
    axes = fig.subplots(len(scales), 1, squeeze=False)[:, 0]
    for ax, (name, one) in zip(axes, scales.items(), strict=True):
        values = floats(found[name].values.flatten())
        ends = [floats(end.flatten()) for end in (one.low, one.median, one.high)]
        what = "groups" if found[name].grouped else "weights"
        number, step = _intervals(ax, one, ends, values, thresholds[name])
        every = "" if step == 1 else f", one of {step} drawn"
        title = f"layer {end_of(name)}: {number:,} of {len(values):,} {what} kept{every}"
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


@styled
def sparsity_maps(
    found: Mapping[str, Any], inputs: Array | None = None, names: Sequence[str] = ()
) -> Figure:
    """A panel for each layer: the weights it had, those that are left dark.

    Which unit of a hidden layer is which means nothing, so rows (outputs) and columns (inputs, each
    with its kernel) are sorted by how many weights they have left: the network that is left stands
    in the upper left corner of the one before. Large layers are drawn in squares of several
    weights, as dark as the share of them that is left.

    Arguments:
        found: what :func:`pyroccam.inference.shrinking.remains` returns.
        inputs: how many weights of the first layer each pixel of an image still goes into, ``(H,
            W)`` or ``(C, H, W)``, of which the channels are added, or each column of a table: what
            :func:`pyroccam.inference.shrinking.input_use` returns. It is a map of its own.
        names: of these columns, of which the 12 with the most weights are shown.
    """
    pixels = None if inputs is None else floats(inputs)
    if pixels is not None and pixels.ndim == 3:
        pixels = pixels.sum(0)
    count = len(found) + (pixels is not None)
    # Names such as layer2.0.downsample.0 would run into the next panel.
    longest = max(len(end_of(name)) for name in found)
    columns = 2 if count == 4 or longest > 18 else min(COLUMNS, count)
    rows = math.ceil(count / columns)
    fig = new_figure(0.75 + 1.75 * rows)
    axes = fig.subplots(rows, columns, squeeze=False)
    panels = list(axes.flat)
    look = {"cmap": AMOUNT, "vmin": 0.0, "vmax": 1.0, "interpolation": "nearest"}
    if pixels is not None and names:
        ax = panels.pop(0)
        most = np.argsort(-pixels, kind="stable")[:12][::-1]
        ax.barh([textwrap.shorten(names[k], 14) for k in most], pixels[most], color=CYCLE[0])
        ax.set_title(f"{int((pixels > 0).sum()):,} of {pixels.size:,} columns", loc="left")
        ax.set_xlabel("weights left")
    elif pixels is not None:
        ax = panels.pop(0)
        shown = ax.imshow(pixels / max(pixels.max(), 1.0), **look)
        ax.set_title(f"{int((pixels > 0).sum()):,} of {pixels.size:,} pixels", loc="left")
        ax.set_xlabel("darker: more weights")
        ax.set(xticks=[], yticks=[])
    for ax, (name, one) in zip(panels, found.items(), strict=False):
        height, width = one.before
        extent = (0.5, width + 0.5, height + 0.5, 0.5)
        shown = ax.imshow(_shares(one), aspect="auto", extent=extent, **look)
        split = "\n" if longest > 12 else " "
        ax.set_title(f"{end_of(name)}:{split}{100 * one.fraction:.3g} % left", loc="left")
        ax.set(xlabel="inputs", ylabel="outputs")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))
    for ax in axes.flat:
        ax.grid(False)
        ax.spines[:].set_visible(True)
    for ax in panels[len(found) :]:
        ax.axis("off")
    bar = fig.colorbar(shown, ax=axes, shrink=0.8, aspect=30, pad=0.02)
    bar.set_label("share of weights left")
    bar.outline.set_visible(False)
    return fig


def _shares(one: Any) -> Floats:
    """The layer in at most FINEST squares along a side, each the share of its weights left."""
    kept = floats(one.kept)
    kept = kept[np.argsort(-kept.sum(1), kind="stable")]
    kept = kept[:, np.argsort(-kept.sum(0), kind="stable")]
    whole = np.zeros(one.before)
    whole[: kept.shape[0], : kept.shape[1]] = kept
    for axis in (0, 1):
        size = whole.shape[axis]
        edges = np.linspace(0, size, min(size, FINEST) + 1).round().astype(int)
        sums = np.add.reduceat(whole, edges[:-1], axis)
        whole = sums / np.expand_dims(np.diff(edges), 1 - axis)
    return whole


@styled
def bits_per_layer(
    bits: Mapping[str, LayerBits], weights: Mapping[str, int], parts: Mapping[str, float]
) -> Figure:
    """Left: bits of a weight of each layer as the posterior knows them, and as they are in the file
    after entropy coding. Right: what each layer and the rest take of the file.

    Arguments:
        bits: by layer. Of weights that share values it is the index, without sign and exponent.
        weights: that are left, by layer; those that are not zero.
        parts: bytes in the file, of the layers first, then of whatever else is in it: what
            :func:`pyroccam.inference.shrinking.bytes_by_part` returns.
    """
    total = sum(parts.values())
    layers, names = list(bits), list(parts)
    fig = new_figure(1.15 + 0.3 * len(names))
    left, right = fig.subplots(1, 2, sharey=False)
    place = np.arange(len(layers))
    start = np.zeros(len(layers))
    shared = all(b.sign == 0 and b.exponent == 0 for b in bits.values())
    digits = "index of a shared value" if shared else "significand"
    kinds = {
        digits: [b.significand for b in bits.values()],
        "exponent": [b.exponent for b in bits.values()],
        "sign": [b.sign for b in bits.values()],
    }
    shades = (CYCLE[0], CYCLE[4], GREY)
    for (label, values), colour in zip(kinds.items(), shades, strict=True):
        if any(values):
            left.barh(place, values, left=start, height=0.62, color=colour, label=label)
        start = start + np.array(values)
    coded = [8 * parts[name] / weights[name] if weights[name] else 0.0 for name in layers]
    left.plot(
        coded, place, "D", color=INK, markersize=5, markerfacecolor="white", label="in the file"
    )
    left.set_yticks(place, map(end_of, layers))
    left.set(xlabel="bits of a weight that is left", ylabel="layer")
    legend_above(left, [*kinds, "in the file"], columns=2)

    share = [100 * parts[name] / total for name in names]
    colours = [CYCLE[0] if name in bits else GREY for name in names]
    right.barh(np.arange(len(names)), share, height=0.62, color=colours)
    for row, (name, percent) in enumerate(zip(names, share, strict=True)):
        size = parts[name]
        said = f"{size:,.0f} B" if size < 1e6 else f"{size / 1e6:.1f} MB"
        right.annotate(
            said, (percent, row), (3, 0), textcoords="offset points", va="center", fontsize=7.5
        )
    right.set_yticks(np.arange(len(names)), map(end_of, names))
    # Room for the labels, which may be beyond 100 %: more where long names leave less of the panel.
    long = max(map(len, names)) > 15
    right.set_xlim(0, (3.6 if long else 1.3) * max(share))
    ticks = [t for t in MaxNLocator(4).tick_values(0, max(share)) if 0 <= t <= 100]
    right.set_xticks(ticks[:: len(ticks) - 1] if long else ticks)
    right.set_xlabel(f"percent of {total:,.0f} bytes", loc="right")
    for ax in (left, right):
        ax.invert_yaxis()
        ax.grid(True, axis="x")
        ax.grid(False, axis="y")
    return fig
