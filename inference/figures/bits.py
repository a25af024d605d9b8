"""Figure of a file: bits of a weight, and what takes the bytes."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..rounding import LayerBits
from .canvas import legend_above, new_figure
from .style import CYCLE, GREY, INK, styled


@styled
def bits_per_layer(
    bits: Mapping[str, LayerBits], weights: Mapping[str, int], parts: Mapping[str, float]
) -> Figure:
    """Left: bits of a weight of each layer as the posterior knows them, and as they are in the file
    after entropy coding. Right: what each layer and the rest take of the file.

    Arguments:
        bits: by layer. Of weights that share values it is the index, without sign and exponent.
        weights: that are left, by layer; those that are not zero.
        parts: bytes in the file, of the layers first, then of whatever else is in it: what
            :func:`pyroccam.inference.shrinking.bytes_by_part` returns.

    Returns:
        The figure, with two axes.
    """
    total = sum(parts.values())
    layers, names = list(bits), list(parts)
    fig = new_figure(1.15 + 0.3 * len(names))
    left, right = fig.subplots(1, 2, sharey=False)
    place = np.arange(len(layers))
    start = np.zeros(len(layers))
    shared = all(b.sign == 0 and b.exponent == 0 for b in bits.values())
    digits = "index of a shared value" if shared else "significand"
    kinds = {
        digits: [b.significand for b in bits.values()],
        "exponent": [b.exponent for b in bits.values()],
        "sign": [b.sign for b in bits.values()],
    }
    shades = (CYCLE[0], CYCLE[4], GREY)
    for (label, values), colour in zip(kinds.items(), shades, strict=True):
        if any(values):
            left.barh(place, values, left=start, height=0.62, color=colour, label=label)
        start = start + np.array(values)
    coded = [8 * parts[name] / weights[name] if weights[name] else 0.0 for name in layers]
    left.plot(
        coded, place, "D", color=INK, markersize=5, markerfacecolor="white", label="in the file"
    )
    left.set_yticks(place, layers)
    left.set(xlabel="bits of a weight that is left", ylabel="layer")
    legend_above(left, [*kinds, "in the file"], columns=2)

    share = [100 * parts[name] / total for name in names]
    colours = [CYCLE[0] if name in bits else GREY for name in names]
    right.barh(np.arange(len(names)), share, height=0.62, color=colours)
    for row, (name, percent) in enumerate(zip(names, share, strict=True)):
        right.annotate(
            f"{parts[name]:,.0f} B", (percent, row), (3, 0), textcoords="offset points",
            va="center", fontsize=7.5,
        )  # fmt: skip
    right.set_yticks(np.arange(len(names)), names)
    # Room for the labels, which may be beyond 100 %: more where long names leave less of the panel.
    right.set_xlim(0, (1.3 if max(map(len, names)) <= 15 else 1.6) * max(share))
    right.set_xticks([t for t in MaxNLocator(4).tick_values(0, max(share)) if 0 <= t <= 100])
    right.set_xlabel(f"percent of {total:,.0f} bytes", loc="right")
    for ax in (left, right):
        ax.invert_yaxis()
        ax.grid(True, axis="x")
        ax.grid(False, axis="y")
    return fig
