"""The figure of strangers: differences of NLL beside shares of the parameters that are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from pyroccam.inference.figures.style import CYCLE, GREY, INK, styled

from .differences import intervals, left_by_channels, left_by_magnitude, left_by_ours, over_seeds

__all__ = ["draw"]

_COLOURS = {"win": CYCLE[0], "tie": GREY, "loss": CYCLE[1], "one seed": GREY}

_LINEAR = 0.1
"""Nats of a difference up to which the scale is linear."""

_HOLLOW = {"markerfacecolor": "none"}

_LEFT: tuple[tuple[Any, dict[str, Any]], ...] = (
    (left_by_magnitude, {"marker": "x", "color": GREY, "label": "by magnitude"}),
    (left_by_channels, {**_HOLLOW, "marker": "^", "color": CYCLE[2], "label": "by channels"}),
    (left_by_ours, {"marker": "o", "color": CYCLE[0], "label": "ours"}),
)


@styled
def draw(cells: dict[tuple[str, str, str], list[dict[str, Any]]], path: Path) -> None:
    """Differences of NLL with their intervals, those of one seed hollow, and shares left."""
    if not cells:
        return
    figure = Figure(figsize=(9, 1.2 + 0.24 * len(cells)), layout="constrained")
    one, other = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for k, of in enumerate(reversed(cells.values())):
        _difference(one, k, of)
    for left, look in _LEFT:
        shares = [over_seeds(left, of) for of in reversed(cells.values())]
        there = [(share, k) for k, share in enumerate(shares) if share is not None]
        if there:
            other.plot(*zip(*there, strict=True), linestyle="", markersize=5, **look)
    names = [f"{name}, {network}" for _, name, network in reversed(cells)]
    one.set_yticks(range(len(names)), names)
    one.set_ylim(-0.8, len(names) - 0.2)
    tuned = sum(key[0] == "tuned" for key in cells)
    said = ["hollow: one seed"] if any(len(of) == 1 for of in cells.values()) else []
    if 0 < tuned < len(cells):
        said.insert(0, "above the line: tuned; below: kept aside")
        for axes in (one, other):
            axes.axhline(len(cells) - tuned - 0.5, color=INK, linewidth=0.8)
    one.axvline(0, color=INK, linewidth=0.8)
    if max(map(abs, one.get_xlim())) > _LINEAR:
        one.set_xscale("symlog", linthresh=_LINEAR)
    one.set_xlabel("NLL of the test rows, ours minus ordinary, nats")
    one.set_title("; ".join(said), fontsize="medium")
    other.set_xscale("log")
    other.xaxis.set_minor_formatter(NullFormatter())  # labels would overlap
    low, high = other.get_xlim()
    other.set_xlim(min(0.08, low), max(1.1, high))  # two ticks with a label, at least
    other.set_xlabel("share of the parameters left")
    # Above the axes, as a share may lie anywhere within.
    other.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize="small")
    figure.savefig(path, dpi=110)


def _difference(axes: Axes, k: int, cells: list[dict[str, Any]]) -> None:
    found = intervals(cells)["NLL"]
    several = found.seeds > 1
    colour = _COLOURS[found.verdict]
    axes.errorbar(
        found.mean,
        k,
        xerr=found.half if several else None,
        fmt="o",
        color=colour,
        markerfacecolor=colour if several else "none",
        markersize=4,
    )
