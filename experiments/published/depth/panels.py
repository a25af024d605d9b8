"""Figure of scans: which depth is chosen, and how well it predicts, as one setting is varied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, MaxNLocator, NullLocator
from pyroccam.inference.figures.canvas import floats, mean_sd, new_figure
from pyroccam.inference.figures.style import CYCLE, INK, MARKERS, styled

__all__ = ["ScanPanel", "scan_panels"]

_DEPTH, _ERROR, _RUN = "chosen depth, mean ± sd", "test error, mean ± sd", "one seed"


@dataclass(frozen=True)
class ScanPanel:
    """One scan.

    Attributes:
        title: of the panel.
        xlabel: the setting that is varied, with its unit.
        values: of that setting, none negative.
        error: for each value the test error of every run, in percent.
        depth: for each value the chosen depth of every run; ``None`` where none is learnt.
        reference: chosen depths from elsewhere, by value.
        ticks: values to label; all if there are none.
        log: a logarithmic axis of the values (linear below 1, if 0 is among them).
    """

    title: str
    xlabel: str
    values: Sequence[float]
    error: Sequence[Sequence[float]]
    depth: Sequence[Sequence[float]] | None = None
    reference: Mapping[float, float] = field(default_factory=dict)
    ticks: Sequence[float] = ()
    log: bool = True


@styled
def scan_panels(panels: Sequence[ScanPanel], reference: str = "reference") -> Figure:
    """Several scans in two columns: chosen depth above, test error below, on one axis of values.

    Arguments:
        panels: the scans, in reading order.
        reference: what the panels' references are, for the legend.

    Returns:
        The figure: mean and sample standard deviation over the runs, the single runs faint behind,
        references hollow. The legend stands after the last panel.
    """
    rows = len(panels) // 2 + 1
    fig = new_figure(0.15 + 2.25 * rows)
    grid = fig.add_gridspec(2 * rows, 2, height_ratios=[1.15, 1.0] * rows)
    handles: dict[str, Any] = {}
    for k, panel in enumerate(panels):
        row, column = 2 * (k // 2), k % 2
        if panel.depth is None:
            top = bottom = fig.add_subplot(grid[row : row + 2, column])
        else:
            bottom = fig.add_subplot(grid[row + 1, column])
            top = fig.add_subplot(grid[row, column], sharex=bottom)
            top.tick_params(labelbottom=False)
            _draw(top, panel.values, panel.depth, 0, _DEPTH)
            top.set_ylabel("depth\n(blocks)")
            if panel.reference:
                x, y = zip(*sorted(panel.reference.items()), strict=True)
                top.plot(
                    x, y, MARKERS[3], markerfacecolor="none", markeredgecolor=INK, markersize=6.0,
                    label=reference, zorder=4, clip_on=False,
                )  # fmt: skip
        _draw(bottom, panel.values, panel.error, 1, _ERROR)
        bottom.set_ylabel("error\n(%)")
        bottom.set_xlabel(panel.xlabel)
        _scale(bottom, panel)
        top.set_title(panel.title)
        for ax in dict.fromkeys((bottom, top)):
            highest = ax.get_ylim()[1]
            ax.set_ylim(-0.06 * highest, 1.04 * highest)  # markers at both ends are whole
            ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=ax is not bottom))
            handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        fig.align_ylabels([top, bottom])
    place = fig.add_subplot(grid[-2:, len(panels) % 2])
    place.axis("off")
    names = [name for name in (_DEPTH, _ERROR, _RUN, reference) if name in handles]
    shown = [handles[name] for name in names]
    legend = place.legend(shown, names, loc="center", labelspacing=0.9)
    legend.set_in_layout(False)  # its width is not to be taken from the panels
    return fig


def _draw(
    ax: Axes, values: Sequence[float], columns: Sequence[Sequence[float]], look: int, label: str
) -> None:
    """Mean and spread over the runs at each value, and the runs behind."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    x = [values[i] for i in order]
    runs = [floats(columns[i]) for i in order]
    for i, (value, column) in enumerate(zip(x, runs, strict=True)):
        at, name = [value] * len(column), "_" if i else _RUN
        ax.plot(at, column, ".", color=CYCLE[look], alpha=0.35, markersize=4, label=name)
    mean, sd = zip(*(mean_sd(column) for column in runs), strict=True)
    ax.errorbar(
        x, mean, yerr=sd, color=CYCLE[look], marker=MARKERS[look], capsize=2.5, elinewidth=1.0,
        label=label,
    )  # fmt: skip


def _scale(ax: Axes, panel: ScanPanel) -> None:
    """The axis of the values, with a label at each tick asked for."""
    if panel.log and min(panel.values) > 0:
        ax.set_xscale("log")
    elif panel.log:
        ax.set_xscale("symlog", linthresh=1, linscale=0.4)
    ax.xaxis.set_major_locator(FixedLocator(panel.ticks or panel.values))
    ax.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.xaxis.set_minor_locator(NullLocator())
