"""Figure of a fit's calibration."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from ..posterior import Reliability
from .canvas import FEW_ROWS, floats, legend_above, new_figure
from .style import CYCLE, GREY, MARKERS, styled


@styled
def reliability_diagram(reliabilities: Mapping[str, Reliability]) -> Figure:
    """Accuracy against confidence for several contenders, and how many rows stand behind it.

    Upper panel: a point for each bin with rows, at its mean confidence and its accuracy;
    hollow, and off the line, where fewer than 20 rows make the accuracy unsure. On the dashed
    diagonal, confidence is earned; below it, the network is too sure. Lower panel: rows for
    each bin, on a logarithmic axis.

    Arguments:
        reliabilities: for each contender, what
            :func:`pyroccam.inference.posterior.metrics.reliability` returns. Their numbers of bins
            may differ.

    Returns:
        The figure, with two axes. The legend gives each expected calibration error.
    """
    fig = new_figure(5.0)
    top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=[2.6, 1.0])
    top.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1.1)
    labels: list[str] = []
    unsure: dict[str, Any] = {"linestyle": "", "markerfacecolor": "white"}
    for (name, table), colour, marker in zip(
        reliabilities.items(), cycle(CYCLE), cycle(MARKERS), strict=False
    ):
        counts = floats(table.counts)
        held = counts > 0
        rows = counts[held]
        confidence, accuracy = floats(table.confidence)[held], floats(table.accuracy)[held]
        few = rows < FEW_ROWS
        labels.append(f"{name} (ECE {100 * table.ece:.2g} %)")
        top.plot(confidence[~few], accuracy[~few], color=colour, marker=marker, label=labels[-1])
        top.plot(confidence[few], accuracy[few], color=colour, marker=marker, **unsure)
        edges = np.linspace(0, 1, len(counts) + 1)
        bottom.stairs(counts, edges, color=colour, linewidth=1.4, label=name)
    top.set(ylabel="accuracy", ylim=(-0.02, 1.02), xlim=(-0.01, 1.01))
    if any(
        ((table.counts > 0) & (table.counts < FEW_ROWS)).any() for table in reliabilities.values()
    ):
        labels.append(f"under {FEW_ROWS} rows")
        top.plot([], [], color=GREY, marker="o", label=labels[-1], **unsure)
    legend_above(top, labels, columns=2)
    bottom.set(xlabel="confidence (probability of the predicted class)", ylabel="rows")
    bottom.set_yscale("log")
    bottom.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    bottom.set_ylim(bottom=0.7)
    return fig
