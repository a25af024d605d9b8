"""Figures of networks of several sizes: error against cost, and the size that a bound predicts."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure

from .canvas import floats, legend_above, log_axis, log_if_wide, new_figure
from .style import CYCLE, GREY, INK, MARKERS, styled


@styled
def trade_off(
    costs: Mapping[str, Sequence[float]],
    errors: Sequence[float],
    labels: Sequence[str],
    chosen: int,
    *,
    ylabel: str = "test error, %",
    others: str = "other depths",
) -> Figure:
    """The error of each network against each of its costs, on logarithmic axes of these, with the
    chosen one filled.

    Arguments:
        costs: by name with its unit, a panel each; a positive number for each network.
        errors: of the networks.
        labels: of the networks, short.
        chosen: position of the chosen one.
        ylabel: of the errors.
        others: what those are that were not chosen.
    """
    error = floats(errors)
    fig = new_figure(3.0)
    axes = fig.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for ax, (name, values) in zip(axes, costs.items(), strict=True):
        cost = floats(values)
        order = cost.argsort()
        ax.plot(cost[order], error[order], color=CYCLE[0], linewidth=0.9)
        ax.plot(cost, error, "o", color=CYCLE[0], markerfacecolor="white", label=others)
        ax.plot(cost[chosen], error[chosen], "o", color=CYCLE[0], label="chosen")
        for label, x, y in zip(labels, cost, error, strict=True):
            ax.annotate(
                label, (x, y), (4, 4), textcoords="offset points", fontsize="small", color=INK
            )
        log_axis(ax, float(cost.min()), float(cost.max()), "x")
        ax.set_xlabel(name)
    axes[0].set_ylabel(ylabel)
    legend_above(axes[0], ["chosen", others])
    return fig


@styled
def bytes_by_bound(
    predicted: Sequence[float],
    actual: Sequence[float],
    weights: Sequence[float],
    labels: Sequence[str],
    chosen: int,
) -> Figure:
    """The bytes of files, and those that weights take in them, against those that the bound of
    their posteriors predicts, on logarithmic axes of one scale. On the dashed diagonal a size is
    what the bound says. Between a file and its weights are biases, numbers without a posterior
    (such as those of batch normalisation), tables of the code, and how the network is built.

    Arguments:
        predicted: KL and the price of numbers, in bytes.
        actual: of the files.
        weights: of them, coded, in bytes.
        labels, chosen: as for :func:`trade_off`.
    """
    x, y, z = sizes = floats(predicted), floats(actual), floats(weights)
    fig = new_figure(3.6)
    ax = fig.subplots()
    ends = float(0.8 * min(map(min, sizes))), float(1.25 * max(map(max, sizes)))
    ax.plot(ends, ends, color=GREY, linestyle=(0, (4, 3)), linewidth=1.1)
    ax.vlines(x, z, y, color=GREY, linewidth=0.9)
    ax.plot(x, z, "_", color=INK, label="weights alone")
    ax.plot(x, y, "o", color=CYCLE[0], markerfacecolor="white", label="other depths")
    ax.plot(x[chosen], y[chosen], "o", color=CYCLE[0], label="chosen")
    for label, a, b in zip(labels, x, y, strict=True):
        ax.annotate(label, (a, b), (4, 4), textcoords="offset points", fontsize="small", color=INK)
    log_axis(ax, *ends, which="x")
    log_axis(ax, *ends)
    ax.set(xlabel="by the bound, bytes", ylabel="file, bytes")
    legend_above(ax, ["chosen", "other depths", "weights alone"])
    return fig


@styled
def weight_path(
    points: Sequence[Mapping[str, Any]], chosen: int, split: str = "val", over: str = "kl_weight"
) -> Figure:
    """What a weight λ of the KL costs and leaves, one below the other on one axis of λ: the loss of
    the posterior, with a band of the networks drawn from it, and of the small network; the bytes of
    its file; the blocks of a stack and the units of each layer that are left. A line marks one of
    the points.

    Arguments:
        points: of a path, in rising order of λ, as its ``to_json`` or a result file gives them.
        chosen: position of the point that is marked.
        split: the rows whose loss it is.
        over: the number that the path is over, where that is not the weight of the KL.
    """
    names = dict.fromkeys(name for point in points for name in point["widths"])
    widths = {name: floats([point["widths"].get(name, 0) for point in points]) for name in names}
    depths = [point["depth"] for point in points if point["depth"] is not None]
    rows = {"val": "validation", "train": "training"}.get(split, split)
    both = ("scores", "small_scores")
    nll, small_nll = (floats([point[kind]["nll"] for point in points]) for kind in both)
    columns = ("band", "weight", "file_bytes")
    found, at, sizes = (floats([point[name] for point in points]) for name in columns)
    panels = 2 + bool(depths) + bool(widths)
    fig = new_figure(1.75 * panels)
    loss, size, *left = fig.subplots(panels, 1, sharex=True)
    loss.fill_between(at, found[:, 0], found[:, 1], color=CYCLE[0], alpha=0.2, linewidth=0,
                      label="one network of it, 90 %")  # fmt: skip
    loss.plot(at, nll, color=CYCLE[0], marker=MARKERS[0], label="posterior")
    loss.plot(at, small_nll, color=CYCLE[1], marker=MARKERS[1], label="small network")
    loss.set_ylabel(f"{rows}\nNLL, nats")
    log_if_wide(loss, [found, nll, small_nll])
    legend_above(loss, ["posterior", "one network of it, 90 %", "small network"])
    size.plot(at, sizes, color=CYCLE[1], marker=MARKERS[1])
    size.set_ylabel("file,\nbytes")
    log_if_wide(size, [sizes])
    if depths:
        left[0].plot(at, floats(depths), color=CYCLE[1], marker=MARKERS[1])
        left[0].set_ylabel("blocks\nleft")
        left[0].set_ylim(0, 1.05 * max(1, *depths))
    for ax in left[bool(depths) :]:
        looks = zip(widths.items(), cycle(CYCLE[2:]), cycle(MARKERS[2:]), strict=False)
        for (name, units), colour, marker in looks:
            ax.plot(at, units, color=colour, marker=marker, label=name)
        ax.set_ylabel("units left\nof a layer")
        ax.set_ylim(bottom=0)
        if len(widths) <= 6:
            legend_above(ax, list(widths), columns=6)
    for ax in (loss, size, *left):
        ax.axvline(at[chosen], color=INK, linewidth=1.1, linestyle=(0, (4, 2)))
    last = left[-1] if left else size
    last.set_xscale("log")
    last.set_xlabel("weight λ of the KL" if over == "kl_weight" else over)
    return fig
