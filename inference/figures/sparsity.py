"""Figure of a small network inside the one it was cut from: which weights and inputs are left."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .canvas import Array, Floats, floats, new_figure
from .style import AMOUNT, styled

FINEST = 192  # squares along a side: what a panel shows at 600 pixels
COLUMNS = 3


@styled
def sparsity_maps(found: Mapping[str, Any], inputs: Array | None = None) -> Figure:
    """A panel for each layer: the weights it had, those that are left dark.

    Which unit of a hidden layer is which means nothing, so rows (outputs) and columns (inputs, each
    with its kernel) are sorted by how many weights they have left: the network that is left stands
    in the upper left corner of the one before. Large layers are drawn in squares of several
    weights, as dark as the share of them that is left.

    Arguments:
        found: what :func:`pyroccam.inference.shrinking.remains` returns.
        inputs: how many weights of the first layer each pixel of an image still goes into, ``(H,
            W)`` or ``(C, H, W)``, of which the channels are added: what
            :func:`pyroccam.inference.shrinking.input_use` returns. It is a map of its own.

    Returns:
        The figure: the map of the pixels, if there is one, the layers, and a colour bar.
    """
    pixels = None if inputs is None else floats(inputs)
    if pixels is not None and pixels.ndim == 3:
        pixels = pixels.sum(0)
    count = len(found) + (pixels is not None)
    # Names such as layer2.0.downsample.0 would run into the next panel.
    longest = max(map(len, found))
    columns = 2 if count == 4 or longest > 18 else min(COLUMNS, count)
    rows = math.ceil(count / columns)
    fig = new_figure(0.75 + 1.75 * rows)
    axes = fig.subplots(rows, columns, squeeze=False)
    panels = list(axes.flat)
    look = {"cmap": AMOUNT, "vmin": 0.0, "vmax": 1.0, "interpolation": "nearest"}
    if pixels is not None:
        ax = panels.pop(0)
        shown = ax.imshow(pixels / max(pixels.max(), 1.0), **look)
        ax.set_title(f"{int((pixels > 0).sum()):,} of {pixels.size:,} pixels", loc="left")
        ax.set_xlabel("darker: more weights")
        ax.set(xticks=[], yticks=[])
    for ax, (name, one) in zip(panels, found.items(), strict=False):
        height, width = one.before
        extent = (0.5, width + 0.5, height + 0.5, 0.5)
        shown = ax.imshow(_shares(one), aspect="auto", extent=extent, **look)
        split = "\n" if longest > 12 else " "
        ax.set_title(f"{name}:{split}{100 * one.fraction:.3g} % left", loc="left")
        ax.set(xlabel="inputs", ylabel="outputs")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))
    for ax in axes.flat:
        ax.grid(False)
        ax.spines[:].set_visible(True)
    for ax in panels[len(found) :]:
        ax.axis("off")
    bar = fig.colorbar(shown, ax=axes, shrink=0.8, aspect=30, pad=0.02)
    bar.set_label("share of weights left")
    bar.outline.set_visible(False)
    return fig


def _shares(one: Any) -> Floats:
    """The layer in at most FINEST squares along a side, each the share of its weights left."""
    kept = floats(one.kept)
    kept = kept[np.argsort(-kept.sum(1), kind="stable")]
    kept = kept[:, np.argsort(-kept.sum(0), kind="stable")]
    whole = np.zeros(one.before)
    whole[: kept.shape[0], : kept.shape[1]] = kept
    for axis in (0, 1):
        size = whole.shape[axis]
        edges = np.linspace(0, size, min(size, FINEST) + 1).round().astype(int)
        sums = np.add.reduceat(whole, edges[:-1], axis)
        whole = sums / np.expand_dims(np.diff(edges), 1 - axis)
    return whole
