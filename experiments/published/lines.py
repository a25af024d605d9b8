"""Lines with bands over runs, a panel beside the other."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import CYCLE, MARKERS, styled

__all__ = ["deviation", "extremes", "panels"]

Band = Callable[[Any], tuple[Any, Any]]
"""From values ``(runs, points)`` to the ends of a band."""

Lines = Mapping[str, tuple[Sequence[float], Any]]
"""By name the places, and values ``(runs, points)``."""


def extremes(values: Any) -> tuple[Any, Any]:
    """The least and the greatest."""
    return values.min(0), values.max(0)


def deviation(values: Any) -> tuple[Any, Any]:
    """A standard deviation to both sides of the mean; nothing of one run."""
    sd = values.std(0, ddof=1) if len(values) > 1 else 0.0
    return values.mean(0) - sd, values.mean(0) + sd


@styled
def panels(
    found: Mapping[str, Lines], xlabel: str, ylabel: str, band: Band = extremes, **axes: Any
) -> Figure:
    """Means over runs, and bands, by title of a panel.

    Arguments:
        axes: for ``Figure.subplots``.
    """
    fig = new_figure(2.9)
    grid = fig.subplots(1, len(found), **{"sharey": True, "squeeze": False, **axes})[0]
    for ax, (title, lines) in zip(grid, found.items(), strict=True):
        for k, (name, (x, runs)) in enumerate(lines.items()):
            values = np.asarray(runs, dtype=np.float64)
            marker = MARKERS[k] if len(x) < 20 else None
            ax.plot(x, values.mean(0), color=CYCLE[k], marker=marker, label=name)
            ax.fill_between(x, *band(values), color=CYCLE[k], alpha=0.18, linewidth=0)
        ax.set_title(textwrap.fill(title, 80 // len(found)))
        ax.set_xlabel(xlabel)
    grid[0].set_ylabel(ylabel)
    handles, names = grid[0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=min(3, len(names)))
    return fig
