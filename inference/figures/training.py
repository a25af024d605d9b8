"""Figure of a training, or of several that repeat each other."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, TypeAlias, cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...models import as_number
from .canvas import MANY_POINTS, legend_above, log_if_wide, new_figure
from .style import CYCLE, MARKERS, styled

History: TypeAlias = Sequence[Mapping[str, Any]]


@styled
def training_curve(
    history: History | Sequence[History],
    columns: Sequence[str] | None = None,
    unit: str = "nats per row",
) -> Figure:
    """The records of a training, or of several.

    Arguments:
        history: one mapping per record. "epoch" gives the position, or "step" if there is no
            epoch, or else the number of the record. Values may be missing, None or nan; a
            line then joins the values there are. Or several such histories, of repeats: each is a
            thin line, and their mean, at the positions where all have a value, a thick one.
        columns: which columns to draw, in that order; all numeric ones if None.
        unit: of losses and likelihoods.
    """
    single = isinstance(history[0], Mapping)
    histories = cast("list[History]", [history] if single else list(history))
    position = next((key for key in ("epoch", "step") if key in histories[0][0]), None)
    frames = [_numbers(one, position) for one in histories]
    names = columns or list(dict.fromkeys(name for one in frames for name in one))
    frames = [one.reindex(columns=names) for one in frames]
    series = {name: [one[name].dropna() for one in frames] for name in names}
    nats = [name for name in series if name.endswith(("loss", "nll"))]
    panels = ([nats] if nats else []) + [[name] for name in series if name not in nats]
    fig = new_figure(0.9 + 1.25 * len(panels) + (0.8 if nats else 0.0))
    ratios = [1.7 if panel is nats else 1.0 for panel in panels]
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    looks = dict(zip(series, zip(cycle(CYCLE), cycle(MARKERS), strict=False), strict=False))
    for ax, panel in zip(axes, panels, strict=True):
        for name in panel:
            _lines(ax, name.replace("_", " "), series[name], *looks[name])
        log_if_wide(ax, [one.to_numpy() for name in panel for one in series[name]])
        if panel is nats:
            ax.set_ylabel(unit)
            legend_above(ax, [name.replace("_", " ") for name in panel])
        else:
            ax.set_ylabel(panel[0].replace("_", " "))
    axes[-1].set_xlabel(position or "record")
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    if len(histories) > 1:
        note = f"thin: each of {len(histories)} repeats; thick: their mean"
        axes[0].set_title(note, loc="right", pad=22)
    fig.align_ylabels(axes.tolist())
    return fig


def _numbers(history: History, position: str | None) -> pd.DataFrame:
    """The columns with finite numbers in them, by position."""
    found = pd.DataFrame(
        [{name: as_number(value) for name, value in row.items()} for row in history]
    )
    found = found.replace([math.inf, -math.inf], math.nan).dropna(axis=1, how="all")
    if position:
        found = found.set_index(position)
    return found.drop(columns=["epoch", "step"], errors="ignore")


def _lines(ax: Axes, label: str, each: Sequence[pd.Series], colour: str, marker: str) -> None:
    """One history as a line; several as thin ones, with their mean."""
    mean = each[0]
    if len(each) > 1:
        for one in each:
            ax.plot(one, color=colour, linewidth=0.7, alpha=0.5)
        # Where some have ended already, a mean of the others would jump.
        mean = pd.concat(each, axis=1, join="inner").mean(axis=1).sort_index()
    shown = marker if len(mean) <= MANY_POINTS else ""
    width = 1.6 if len(each) == 1 else 2.2
    ax.plot(mean, color=colour, marker=shown, linewidth=width, label=label)
