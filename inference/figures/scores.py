"""Figure of a fit's calibration."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from ...data.errors import PyroccamError
from ..posterior.metrics import Reliability
from .canvas import FEW_ROWS, Floats, checked_array, cycled, legend_above, new_figure
from .style import CYCLE, GREY, MARKERS, styled

__all__ = ["reliability_diagram"]


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

    Raises:
        PyroccamError: if there are no contenders, or the four columns of one differ in length.
    """
    if not reliabilities:
        raise PyroccamError("reliabilities: got none, expected at least one contender")
    tables: dict[str, tuple[Floats, Floats, Floats]] = {}
    for name, table in reliabilities.items():
        lengths = {len(column) for column in table}
        if len(lengths) != 1:
            raise PyroccamError(
                f"reliabilities[{name!r}]: columns of {sorted(lengths)} bins, expected one length; "
                "pass what metrics.reliability returned"
            )
        counts = checked_array("counts", table.counts, 1)
        if not counts.sum() > 0:
            raise PyroccamError(f"reliabilities[{name!r}]: all bins are empty, expected some rows")
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
