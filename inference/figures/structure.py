"""Figures of random structure: a graph with its posterior, and distributions in triangles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from ...models.networks import StructureGraph
from .canvas import WIDTH, Array, floats, new_figure
from .style import CYCLE, GREY, INK, styled

_THIN, _WIDE = 0.6, 6.0  # points, of the lines of probabilities 0 and 1
_GAP = 0.24  # between the primitives of an edge; columns are 2 apart
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])


@styled
def structure_graph(
    graph: StructureGraph,
    probs: Mapping[str, Mapping[str, float]],
    chosen: Mapping[str, Sequence[str]],
) -> Figure:
    """Vertices from left to right; of every edge a line for each primitive, as wide as it is
    probable.

    Arguments:
        graph: that is drawn.
        probs: of the primitives, by edge; an edge that is not named has one primitive.
        chosen: names of the primitives in colour with their labels in bold, by edge.
    """
    level = _levels(graph)
    columns: dict[int, list[str]] = {}
    for vertex in graph.order:
        columns.setdefault(level[vertex], []).append(vertex)
    lines = max(len(names) for names in graph.primitives.values())
    place = {
        vertex: (2.0 * number, (_GAP * lines + 0.6) * (k - (len(column) - 1) / 2))
        for number, column in columns.items()
        for k, vertex in enumerate(column)
    }
    heights = [y for _, y in place.values()]
    arrows, labels = [], []
    for edge in graph.edge_list:
        names = graph.primitives[edge.name]
        (x0, y0), (x1, y1) = place[edge.source], place[edge.target]
        passed = level[edge.target] - level[edge.source]
        # An edge over several columns goes around what lies between, above or below in turn.
        around = (passed - 1) * (_GAP * lines + 0.12) * (1 if passed % 2 == 0 else -1)
        for k, name in enumerate(names):
            p = probs.get(edge.name, {}).get(name, 1.0)
            picked = name in chosen.get(edge.name, ())
            height = (k - (len(names) - 1) / 2) * _GAP + around
            arrows.append(
                FancyArrowPatch(
                    (x0, y0), (x1, y1), connectionstyle=f"arc3,rad={-height / passed}",
                    arrowstyle="-|>", mutation_scale=8, shrinkA=11, shrinkB=11,
                    linewidth=_THIN + (_WIDE - _THIN) * p,
                    color=CYCLE[k % len(CYCLE)] if picked else GREY,
                    alpha=1.0 if picked else 0.55, zorder=1,
                )
            )  # fmt: skip
            middle = (x0 + x1) / 2, (y0 + y1) / 2 + height
            heights.append(middle[1])
            labels.append((f"{name} {p:.2f}", middle, "bold" if picked else "normal"))
    low, high = min(heights) - 0.3, max(heights) + 0.3
    wide = 2.0 * max(columns) + 0.7
    figure = new_figure(max(1.2, WIDTH * (high - low) / wide))
    axis = figure.subplots()
    axis.axis("off")
    axis.set_aspect("equal")  # arcs bend in inches, labels stand in units of the data
    for arrow in arrows:
        axis.add_patch(arrow)
    for text, middle, weight in labels:
        axis.annotate(
            text, middle, ha="center", va="center", fontsize=7, color=INK, fontweight=weight,
            zorder=3, bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none",
                            "alpha": 0.85},
        )  # fmt: skip
    for vertex, (x, y) in place.items():
        axis.plot([x], [y], "o", ms=19, mfc="white", mec=INK, mew=1.1, zorder=2)
        axis.annotate(vertex, (x, y), ha="center", va="center", fontsize=8, zorder=4)
    axis.set_xlim(-0.35, wide - 0.35)
    axis.set_ylim(low, high)
    return figure


def _levels(graph: StructureGraph) -> dict[str, int]:
    """The number of edges on the longest way to every vertex."""
    level: dict[str, int] = {}
    for vertex in graph.order:
        before = [level[edge.source] for edge in graph.edge_list if edge.target == vertex]
        level[vertex] = 1 + max(before) if before else 0
    return level


@styled
def simplex_panels(
    panels: Mapping[str, Mapping[str, Array]],
    corners: Sequence[str],
    shares: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    height: float = 4.9,
) -> Figure:
    """A grid of triangles with points in them.

    Arguments:
        panels: by row and column, points ``(N, 3)`` that are not negative and have sum one. All
            rows have the same columns.
        corners: names of the three alternatives: left, right, top.
        shares: by row and column, a number for each corner that is written beside its name, the
            largest bold. Points that lie on each other in a corner do not show how many they are.
        height: in inches.
    """
    columns = list(next(iter(panels.values())))
    fig = new_figure(height)
    axes = fig.subplots(len(panels), len(columns), squeeze=False)
    for i, (row, cells) in enumerate(panels.items()):
        for j, (column, points) in enumerate(cells.items()):
            ax = axes[i, j]
            _triangle(ax, corners, shares[row][column])
            x, y = (floats(points) @ CORNERS).T
            look = {"color": CYCLE[i % len(CYCLE)], "markersize": 3.5, "alpha": 0.35, "mew": 0}
            ax.plot(x, y, ".", rasterized=True, **look)  # thousands of points in an SVG are large
            if i == 0:
                ax.set_title(column, pad=14)
            if j == 0:
                ax.set_ylabel(row)
    return fig


def _triangle(ax: Axes, corners: Sequence[str], shares: Sequence[float]) -> None:
    ax.grid(False)
    ax.set(xticks=[], yticks=[], aspect="equal", xlim=(-0.22, 1.22), ylim=(-0.16, 1.0))
    ax.spines[:].set_visible(False)
    ax.fill(*CORNERS.T, facecolor="#f7f8fa", edgecolor=GREY, linewidth=0.8, zorder=0)
    for k, ((x, y), name) in enumerate(zip(CORNERS, corners, strict=True)):
        top = k == 2
        ax.annotate(
            f"{name} {shares[k]:.2f}",
            (x, y),
            (0, 3 if top else -4),
            textcoords="offset points",
            ha="center",
            va="bottom" if top else "top",
            fontsize=7.5,
            fontweight="bold" if shares[k] == max(shares) else "normal",
            color=INK,
            annotation_clip=False,
        )
