"""Figures of a learnt depth: its posterior, what each depth computes, and how it compares."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..posterior import DepthStructure
from .canvas import (
    MANY_POINTS,
    WIDTH,
    Array,
    floats,
    legend_above,
    log_if_wide,
    mean_sd,
    new_figure,
)
from .style import CYCLE, DIVERGING, GREY, INK, MARKERS, styled

_FIXED, _FULL, _CUT = "fixed depth, mean ± sd", "learnt depth, all depths", "learnt depth, cut"


@styled
def depth_posterior(
    found: DepthStructure,
    nll_by_depth: Mapping[str, Array] | None = None,
    unit: str = "nats per row",
) -> Figure:
    """The learnt distribution over depth, and how good each depth is on its own.

    Upper panel: bars of q(d), the exact posterior as an outline, the chosen depths as
    vertical lines. Lower panel, on the same depths: negative log-likelihood of the network
    cut at each depth; its axis is logarithmic where the values span more than a factor of 30.

    Arguments:
        found: q(d), the exact posterior (of random weights the mean of other estimates) and the
            depths chosen by both.
        nll_by_depth: for each split, e.g. "train" and "test", D+1 values;
            nothing or an empty mapping leaves the lower panel out.
        unit: of these values.
    """
    curves = {k: floats(v) for k, v in (nll_by_depth or {}).items()}
    heights, reference = floats(found.depth_probs), floats(found.exact_depth_probs)
    beside = "exact posterior" if found.agreement is None else "mean of other draws"
    n = len(heights)
    fig = new_figure(3.9 if curves else 2.5)
    depths = np.arange(n)
    if curves:
        top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=[1.25, 1.0])
    else:
        top = bottom = fig.subplots()
    top.bar(depths, heights, width=0.8, color=CYCLE[0], alpha=0.75, label="q(d)")
    top.stairs(reference, np.arange(n + 1) - 0.5, color=CYCLE[1], linewidth=1.5, label=beside)
    top.set_ylabel("probability")
    top.set_ylim(bottom=0)
    lines: list[tuple[int, Any, str]] = [
        (found.depth_chosen, "-", f"chosen by q: {found.depth_chosen}"),
        (found.depth_chosen_exact, (0, (2, 1.6)), f"by {beside}: {found.depth_chosen_exact}"),
    ]
    for ax in {id(a): a for a in (top, bottom)}.values():
        for depth, dashes, label in lines:
            ax.axvline(depth, color=INK, linestyle=dashes, linewidth=1.3, label=label, zorder=3)
    wide = found.agreement is not None  # long names would run out of the figure
    legend_above(top, ["q(d)", beside, *(label for _, _, label in lines)], 2 if wide else 4)

    if curves:
        for (name, values), colour, marker in zip(
            curves.items(), cycle(CYCLE[2:] + CYCLE[:2]), cycle(MARKERS), strict=False
        ):
            bottom.plot(
                depths, values, color=colour, marker=marker if n <= MANY_POINTS else "", label=name
            )
        bottom.set_ylabel(f"NLL\n({unit})" if "," in unit else f"NLL ({unit})")
        log_if_wide(bottom, curves.values())
        legend_above(bottom, list(curves))
    bottom.set_xlabel("depth d")
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    bottom.set_xlim(-0.7, n - 0.3)
    return fig


@styled
def spiral_functions(
    x_train: Array,
    y_train: Array,
    grid_x: Array,
    grid_y: Array,
    probs: Array,
    depths: Sequence[int],
    q: Array | None = None,
    depth_chosen: int | None = None,
) -> Figure:
    """The functions learnt at several depths of one network, side by side.

    Arguments:
        x_train: inputs in the plane, shape (N, 2).
        y_train: labels 0 or 1, shape (N,).
        grid_x: first coordinate of the grid, increasing, shape (G,).
        grid_y: second coordinate of the grid, increasing, shape (H,); H may equal G.
        probs: probability of class 1, shape (K, H, G): ``probs[k, i, j]`` is the k-th shown
            depth at the point (grid_x[j], grid_y[i]).
        depths: the K depths shown.
        q: probability of each shown depth, shape (K,), which is written above it; it need not sum
            to one.
        depth_chosen: a shown depth to frame, if any.
    """
    points, labels, first, second, surfaces = map(floats, (x_train, y_train, grid_x, grid_y, probs))
    names = [f"d = {depth}" for depth in depths]
    if q is not None:
        names = [f"{name},  q {_probability(p)}" for name, p in zip(names, floats(q), strict=True)]
    columns = min(4, len(depths))
    rows = math.ceil(len(depths) / columns)
    fig = new_figure(0.12 + rows * (0.25 + 0.97 * (WIDTH - 0.8) / columns))
    panels = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    mesh = None
    for ax, depth, name, surface in zip(panels, depths, names, surfaces, strict=False):
        mesh = ax.pcolormesh(
            first,
            second,
            surface,
            cmap=DIVERGING,
            vmin=0,
            vmax=1,
            shading="nearest",
            rasterized=True,
        )
        if surface.min() < 0.5 < surface.max():  # matplotlib warns of a level it cannot find
            ax.contour(first, second, surface, levels=[0.5], colors=INK, linewidths=0.9)
        for value, colour, marker in ((0, "#8f3f00", "s"), (1, "#00456e", "o")):
            ax.scatter(
                *points[labels == value].T,
                s=7,
                color=colour,
                marker=marker,
                edgecolors="white",
                linewidths=0.35,
                zorder=3,
            )
        chosen = depth_chosen is not None and depth == depth_chosen
        ax.set_title(
            name,
            fontweight="bold" if chosen else "normal",
            fontsize=8.5,
            pad=3.5,
        )
        ax.set(aspect="equal", xticks=[], yticks=[])
        ax.set_xlim(first[0], first[-1])
        ax.set_ylim(second[0], second[-1])
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set(visible=True, color=INK if chosen else GREY, linewidth=1.8 if chosen else 0.6)
    for ax in panels[len(depths) :]:
        ax.remove()
    assert mesh is not None
    bar = fig.colorbar(mesh, ax=panels[: len(depths)].tolist(), fraction=0.03, pad=0.02, aspect=28)
    bar.set_label("p(class 1)")
    bar.set_ticks([0, 0.5, 1])
    return fig


@styled
def depth_comparison(
    ddn: Mapping[int, Sequence[float]],
    ldn_full: Sequence[float],
    ldn_pruned: Sequence[tuple[int, float]],
    ylabel: str,
) -> Figure:
    """Deterministic networks of several depths against one network of learnt depth.

    Arguments:
        ddn: for each depth, the score of every deterministic network trained at it. Drawn as
            mean and sample standard deviation, the single runs faint behind.
        ldn_full: score of every learnt depth network, averaged over all its depths; drawn as
            a horizontal line, with a band of one standard deviation.
        ldn_pruned: (chosen depth, score) of every learnt depth network after the cut; drawn
            as points.
        ylabel: name of the score, with its unit.
    """
    scores, order = floats(ldn_full), sorted(ddn)
    columns = [floats(ddn[depth]) for depth in order]
    chosen = np.array(ldn_pruned, dtype=np.float64)
    fig = new_figure(3.3)
    ax = fig.subplots()
    mean, sd = mean_sd(scores)
    ax.axhspan(mean - sd, mean + sd, color=CYCLE[0], alpha=0.15, linewidth=0)
    ax.axhline(mean, color=CYCLE[0], label=_FULL)
    for depth, column in zip(order, columns, strict=True):
        if len(column) > 1:
            at = [depth] * len(column)
            ax.plot(at, column, ".", color=CYCLE[1], alpha=0.35, markersize=4)
    spread = np.array([mean_sd(column) for column in columns])
    ax.errorbar(
        order, spread[:, 0], yerr=spread[:, 1], color=CYCLE[1], marker=MARKERS[1], capsize=2.5,
        elinewidth=1.0, label=_FIXED,
    )  # fmt: skip
    ax.plot(
        *chosen.T, "*", color=CYCLE[0], markeredgecolor="white", markeredgewidth=0.7,
        markersize=12, label=_CUT, zorder=4,
    )  # fmt: skip
    ax.set_xlabel("depth")
    ax.set_ylabel(ylabel)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    log_if_wide(ax, [scores, *columns, chosen[:, 1]])
    legend_above(ax, [_FIXED, _FULL, _CUT])
    return fig


def _probability(p: float) -> str:
    return f"= {p:.2f}" if p >= 0.095 else f"= {p:.3f}" if p >= 0.0005 else "< 0.001"
