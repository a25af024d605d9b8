"""Pictures of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from pyroccam.inference.figures.style import CYCLE, GREY, INK, styled

from .harness import Measured, Report
from .report import brief, number
from .workloads.contenders import AROUND

__all__ = ["bars"]

WIDTH = 7.0  # inches
OURS, OTHERS = CYCLE[0], "#b9bec6"


def _figure(height: float) -> Figure:
    fig = Figure(
        figsize=(WIDTH, height), dpi=100, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    )
    FigureCanvasAgg(fig)
    return fig


@styled
def bars(reports: Sequence[Report]) -> Figure:
    """Time of a step over that of the base, one panel for each workload.

    The axis is logarithmic and bars start at 1: as long to the left as to the right means as many
    times faster as slower. Whiskers are quartiles over rounds; what failed is named. What is a
    part of a step has no bar among the steps.
    """
    if not reports:
        raise ValueError("bars: got no reports, expected at least one")
    reports = [
        replace(report, contenders=[row for row in report.contenders if row.name != AROUND])
        for report in reports
    ]
    counts = [len(report.contenders) for report in reports]
    fig = _figure(0.5 + sum(0.45 + 0.21 * n for n in counts))
    axes = fig.subplots(len(reports), 1, squeeze=False, sharex=True, height_ratios=counts)[:, 0]
    for ax, report in zip(axes, reports, strict=True):
        _panel(ax, report)
    ends = [
        value
        for report in reports
        for row in report.contenders
        if row.ratio is not None
        for value in (row.ratio.lower, row.ratio.upper, 1.0)
    ]
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    room = max((high / low) ** 0.28, 1.6)  # for the numbers at the ends of the bars
    axes[-1].set_xlim(low / room, high * room)
    axes[-1].set_xlabel("time of a step for each network, over that of the base (log scale)")
    return fig


def _panel(ax: Axes, report: Report) -> None:
    ax.set_xscale("log")
    ax.grid(True, axis="x")
    ax.grid(False, axis="y")
    ax.set_title(report.title, loc="left").set_in_layout(False)
    places = range(len(report.contenders))
    names = [row.name for row in report.contenders]
    ax.set_yticks(places, [f"{n} (base)" if n == report.base else n for n in names])
    ax.set_ylim(len(report.contenders) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.axvline(1.0, color=INK, linewidth=0.8, zorder=3)
    for place, row in zip(places, report.contenders, strict=True):
        _bar(ax, place, row)


def _bar(ax: Axes, place: int, row: Measured) -> None:
    if row.ratio is None:
        said = f"fails: {brief(row.error, 68)}" if row.ms is None else "no base to compare with"
        ax.text(
            0.01, place, said, transform=ax.get_yaxis_transform(), va="center", color=GREY,
            fontsize=7.5, fontstyle="italic", zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        ).set_in_layout(False)  # fmt: skip
        return
    ratio = row.ratio
    ours = row.name.startswith("pyroccam")
    ax.barh(
        place, ratio.median - 1.0, left=1.0, height=0.62, color=OURS if ours else OTHERS, zorder=2
    )
    ax.plot([ratio.lower, ratio.upper], [place, place], color=INK, linewidth=1.0, zorder=4)
    right = ratio.median >= 1.0
    ax.annotate(
        f"{number(ratio.median)}", (ratio.upper if right else ratio.lower, place),
        (4 if right else -4, 0), textcoords="offset points", va="center",
        ha="left" if right else "right", fontsize=8.0,
    ).set_in_layout(False)  # fmt: skip
