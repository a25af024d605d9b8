"""Distributions over three alternatives as points in a triangle."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .canvas import Array, Floats, checked_array, new_figure
from .style import CYCLE, GREY, INK, styled

__all__ = ["simplex_panels"]

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])


@styled
def simplex_panels(
    panels: Mapping[str, Mapping[str, Array]],
    corners: Sequence[str],
    *,
    shares: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
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

    Raises:
        ValueError: for points that are not in the simplex, other than three corners, or rows with
            other columns.
    """
    if len(corners) != 3:
        raise ValueError(f"corners: got {len(corners)} names, expected 3")
    columns = list(next(iter(panels.values())))
    fig = new_figure(height)
    axes = fig.subplots(len(panels), len(columns), squeeze=False)
    for i, (row, cells) in enumerate(panels.items()):
        if list(cells) != columns:
            raise ValueError(f"panels: row {row!r} has {list(cells)}, expected {columns}")
        for j, (column, points) in enumerate(cells.items()):
            ax = axes[i, j]
            _triangle(ax, corners, None if shares is None else shares[row][column])
            x, y = (_checked(f"{row}, {column}", points) @ CORNERS).T
            look = {"color": CYCLE[i % len(CYCLE)], "markersize": 3.5, "alpha": 0.35, "mew": 0}
            ax.plot(x, y, ".", rasterized=True, **look)  # thousands of points in an SVG are large
            if i == 0:
                ax.set_title(column, pad=14)
            if j == 0:
                ax.set_ylabel(row)
    return fig


def _triangle(ax: Axes, corners: Sequence[str], shares: Sequence[float] | None) -> None:
    ax.grid(False)
    ax.set(xticks=[], yticks=[], aspect="equal", xlim=(-0.22, 1.22), ylim=(-0.16, 1.0))
    ax.spines[:].set_visible(False)
    ax.fill(*CORNERS.T, facecolor="#f7f8fa", edgecolor=GREY, linewidth=0.8, zorder=0)
    for k, ((x, y), name) in enumerate(zip(CORNERS, corners, strict=True)):
        top = k == 2
        largest = shares is not None and shares[k] == max(shares)
        ax.annotate(
            name if shares is None else f"{name} {shares[k]:.2f}",
            (x, y),
            (0, 3 if top else -4),
            textcoords="offset points",
            ha="center",
            va="bottom" if top else "top",
            fontsize=7.5,
            fontweight="bold" if largest else "normal",
            color=INK,
            annotation_clip=False,
        )


def _checked(name: str, value: Array) -> Floats:
    points = checked_array(name, value, 2)
    odd = points.shape[1] != 3 or points.min() < 0 or np.abs(points.sum(1) - 1).max() > 1e-3
    if odd:
        raise ValueError(
            f"{name}: shape {points.shape}, expected (N, 3), none negative, each row of sum 1"
        )
    return points
