"""Figure of a cut: what the posterior says of groups or weights, and the thresholds."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from ..pruning.relevance import Irrelevance
from .canvas import Floats, new_figure
from .style import CYCLE, GREY, INK, styled

__all__ = ["irrelevance_histograms"]

BINS = 50


@styled
def irrelevance_histograms(
    found: Mapping[str, Irrelevance], thresholds: Mapping[str, float]
) -> Figure:
    """A histogram for each layer: what is kept in colour, what is cut in grey, the threshold as a
    line. Two clusters with the line between them are a clear decision.

    Arguments:
        found: what :func:`pyroccam.inference.pruning.relevance.irrelevance` returns.
        thresholds: by layer; infinite where nothing is cut.

    Returns:
        The figure, with an axis for each layer.

    Raises:
        ValueError: if there are no layers, one has no threshold, or no finite value.
    """
    if not found:
        raise ValueError("found: got no layers, expected at least one")
    missing = sorted({*found} - {*thresholds})
    if missing:
        raise ValueError(f"thresholds: layer {missing[0]!r} has none; pass math.inf to keep all")
    values: dict[str, Floats] = {}
    for name, one in found.items():
        flat = one.values.flatten().double().numpy()
        values[name] = flat[np.isfinite(flat)]
        if not len(values[name]):
            raise ValueError(f"found[{name!r}]: no finite value to draw")
    fig = new_figure(0.6 + 1.25 * len(found))
    axes = fig.subplots(len(found), 1, squeeze=False)[:, 0]
    for ax, (name, one) in zip(axes, found.items(), strict=True):
        own, threshold = values[name], thresholds[name]
        edges = np.histogram_bin_edges(own, bins=BINS)
        kept = own[own <= threshold]
        ax.hist(
            [kept, own[own > threshold]], edges, stacked=True, color=[CYCLE[0], GREY], linewidth=0
        )
        if math.isfinite(threshold):
            ax.axvline(threshold, color=INK, linewidth=1.1)
        what = "groups" if one.grouped else "weights"
        ax.set_title(f"layer {name}: {len(kept):,} of {len(own):,} {what} kept", loc="left")
        ax.set_ylabel(what)
        if len(own) > 10_000:
            ax.set_yscale("log")
    statistics = {one.statistic for one in found.values()}
    for ax, one in zip(axes, found.values(), strict=True):
        if len(statistics) > 1 or ax is axes[-1]:
            ax.set_xlabel(one.statistic)
    return fig
