"""Figures of a fit: its calibration and its training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, MaxNLocator

from ..metrics import Reliability
from ..style import CYCLE, GREY, MARKERS, styled
from .canvas import (
    FEW_ROWS,
    MANY_POINTS,
    Floats,
    checked_array,
    cycled,
    is_number,
    legend_above,
    log_if_wide,
    new_figure,
)

__all__ = ["reliability_diagram", "training_curve"]


@styled
def reliability_diagram(reliabilities: Mapping[str, Reliability]) -> Figure:
    """Accuracy against confidence for several contenders, and how many rows stand behind it.

    Upper panel: a point for each bin with rows, at its mean confidence and its accuracy;
    hollow, and off the line, where fewer than 20 rows make the accuracy unsure. On the dashed
    diagonal, confidence is earned; below it, the network is too sure. Lower panel: rows for
    each bin, on a logarithmic axis.

    Arguments:
        reliabilities: for each contender, what :func:`pyroccam.inference.metrics.reliability`
            returns. Their numbers of bins may differ.

    Returns:
        The figure, with two axes. The legend gives each expected calibration error.

    Raises:
        ValueError: if there are no contenders, or the four columns of one differ in length.
    """
    if not reliabilities:
        raise ValueError("reliabilities: got none, expected at least one contender")
    tables: dict[str, tuple[Floats, Floats, Floats]] = {}
    for name, table in reliabilities.items():
        lengths = {len(column) for column in table}
        if len(lengths) != 1:
            raise ValueError(
                f"reliabilities[{name!r}]: columns of {sorted(lengths)} bins, expected one length; "
                "pass what metrics.reliability returned"
            )
        counts = checked_array("counts", table.counts, 1)
        if not counts.sum() > 0:
            raise ValueError(f"reliabilities[{name!r}]: all bins are empty, expected some rows")
        held = counts > 0
        confidence = checked_array("confidence", np.asarray(table.confidence)[held], 1)
        accuracy = checked_array("accuracy", np.asarray(table.accuracy)[held], 1)
        tables[name] = (confidence, accuracy, counts)

    fig = new_figure(5.0)
    top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=[2.6, 1.0])
    top.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1.1)
    hollow, labels = False, list[str]()
    for (name, (confidence, accuracy, counts)), colour, marker in zip(
        tables.items(), cycled(CYCLE), cycled(MARKERS), strict=False
    ):
        rows = counts[counts > 0]
        ece = float((np.abs(accuracy - confidence) * rows).sum() / rows.sum())
        few = rows < FEW_ROWS
        hollow = hollow or bool(few.any())
        labels.append(f"{name} (ECE {100 * ece:.2g} %)")
        top.plot(confidence[~few], accuracy[~few], color=colour, marker=marker, label=labels[-1])
        top.plot(
            confidence[few],
            accuracy[few],
            color=colour,
            marker=marker,
            linestyle="",
            markerfacecolor="white",
        )
        edges = np.linspace(0, 1, len(counts) + 1)
        bottom.stairs(counts, edges, color=colour, linewidth=1.4, label=name)
    top.set(ylabel="accuracy", ylim=(-0.02, 1.02), xlim=(-0.01, 1.01))
    if hollow:
        few_label = f"under {FEW_ROWS} rows"
        top.plot(
            [], [], color=GREY, marker="o", linestyle="", markerfacecolor="white", label=few_label
        )
        labels.append(few_label)
    legend_above(top, labels, columns=2)
    bottom.set(xlabel="confidence (probability of the predicted class)", ylabel="rows")
    bottom.set_yscale("log")
    bottom.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    bottom.set_ylim(bottom=0.7)
    return fig


@styled
def training_curve(
    history: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> Figure:
    """What was recorded while a network was trained.

    Arguments:
        history: one mapping per record. "epoch" gives the position, or "step" if there is no
            epoch, or else the number of the record. Values may be missing, None or nan; a
            line then joins the values there are.
        columns: which columns to draw, in that order; all numeric ones if None.

    Returns:
        The figure: columns whose names end in "loss" or "nll" share the first panel (both are
        nats per row), every other column has a panel of its own below.

    Raises:
        ValueError: if there is no record, or a column asked for has no value.
    """
    if not history:
        raise ValueError("history: got no records, expected at least one mapping")
    position = next((key for key in ("epoch", "step") if key in history[0]), None)
    for index, row in enumerate(history):
        if position is not None and not is_number(row.get(position)):
            raise ValueError(f"history[{index}]: has no {position!r}, which the first record has")
    names = (
        list(columns)
        if columns is not None
        else [
            name
            for name in dict.fromkeys(name for row in history for name in row)
            if name not in ("epoch", "step") and any(is_number(row.get(name)) for row in history)
        ]
    )
    series: dict[str, Floats] = {}
    for name in names:
        pairs = [
            (float(row[position]) if position else float(index), float(row[name]))
            for index, row in enumerate(history)
            if is_number(row.get(name))
        ]
        if not pairs:
            known = sorted({key for row in history for key in row})
            raise ValueError(f"columns: {name!r} has no finite value; history holds {known}")
        series[name] = np.array(pairs, dtype=np.float64)
    if not series:
        raise ValueError("history: no numeric column to draw, expected e.g. 'loss'")

    nats = [name for name in series if name.endswith(("loss", "nll"))]
    panels = ([nats] if nats else []) + [[name] for name in series if name not in nats]
    fig = new_figure(0.9 + 1.25 * len(panels) + (0.8 if nats else 0.0))
    ratios = [1.7 if panel is nats else 1.0 for panel in panels]
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    colours = dict(zip(series, cycled(CYCLE), strict=False))
    markers = dict(zip(series, cycled(MARKERS), strict=False))
    for ax, panel in zip(axes, panels, strict=True):
        for name in panel:
            x, y = series[name].T
            marker = markers[name] if len(x) <= MANY_POINTS else ""
            ax.plot(x, y, color=colours[name], marker=marker, label=name.replace("_", " "))
        log_if_wide(ax, [series[name][:, 1] for name in panel])
        if panel is nats:
            ax.set_ylabel("nats per row")
            legend_above(ax, [name.replace("_", " ") for name in panel])
        else:
            ax.set_ylabel(panel[0].replace("_", " "))
    axes[-1].set_xlabel(position or "record")
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    fig.align_ylabels(axes.tolist())
    return fig
