"""Figures of networks of several sizes: error against cost, and the size that a bound predicts."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from .canvas import checked_array, legend_above, new_figure
from .style import CYCLE, GREY, INK, styled

__all__ = ["bytes_by_bound", "trade_off"]


@styled
def trade_off(
    costs: Mapping[str, Sequence[float]],
    errors: Sequence[float],
    labels: Sequence[str],
    chosen: int,
    *,
    ylabel: str = "test error, %",
) -> Figure:
    """The error of each network against each of its costs, on logarithmic axes of these, with the
    chosen one filled.

    Arguments:
        costs: by name with its unit, a panel each; a positive number for each network.
        errors: of the networks.
        labels: of the networks, short.
        chosen: position of the chosen one.
        ylabel: of the errors.

    Returns:
        The figure, with an axis for each cost.

    Raises:
        ValueError: for no costs, numbers that are not as many as the networks, or costs that are
            not positive.
    """
    if not costs:
        raise ValueError("costs: got none, expected at least one, by its name")
    error = checked_array("errors", errors, 1)
    if len(labels) != len(error) or not 0 <= chosen < len(error):
        raise ValueError(
            f"labels: got {len(labels)}, and chosen={chosen}, for {len(error)} errors; give a "
            "label for each network, and the position of one"
        )
    fig = new_figure(3.0)
    axes = fig.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for ax, (name, values) in zip(axes, costs.items(), strict=True):
        cost = checked_array(f"costs[{name!r}]", values, 1)
        if len(cost) != len(error) or not (cost > 0).all():
            raise ValueError(
                f"costs[{name!r}]: expected {len(error)} positive numbers, one for each network"
            )
        order = cost.argsort()
        ax.plot(cost[order], error[order], color=CYCLE[0], linewidth=0.9)
        ax.plot(cost, error, "o", color=CYCLE[0], markerfacecolor="white", label="other depths")
        ax.plot(cost[chosen], error[chosen], "o", color=CYCLE[0], label="chosen")
        for label, x, y in zip(labels, cost, error, strict=True):
            ax.annotate(
                label, (x, y), (4, 4), textcoords="offset points", fontsize="small", color=INK
            )
        ax.set_xscale("log")
        ax.set_xlabel(name)
    axes[0].set_ylabel(ylabel)
    legend_above(axes[0], ["chosen", "other depths"])
    return fig


@styled
def bytes_by_bound(
    predicted: Sequence[float],
    actual: Sequence[float],
    weights: Sequence[float],
    labels: Sequence[str],
    chosen: int,
) -> Figure:
    """The bytes of files, and those that weights take in them, against those that the KL of their
    posteriors predicts, on logarithmic axes of one scale. On the dashed diagonal a size is what the
    bound says. Between a file and its weights are biases, numbers without a posterior (such as
    those of batch normalisation), tables of the code, and how the network is built.

    Arguments:
        predicted: KL, in bytes.
        actual: of the files.
        weights: of them, coded, in bytes.
        labels, chosen: as for :func:`trade_off`.

    Returns:
        The figure, with one axis.

    Raises:
        ValueError: for sizes that are not positive, or not one of each for each label.
    """
    given = {"predicted": predicted, "actual": actual, "weights": weights}
    x, y, z = (checked_array(name, values, 1) for name, values in given.items())
    sizes = (x, y, z)
    if any(len(one) != len(labels) or not (one > 0).all() for one in sizes):
        raise ValueError(
            f"predicted, actual, weights: expected a positive number for each of {len(labels)} "
            f"labels, got {', '.join(str(len(one)) for one in sizes)}"
        )
    fig = new_figure(3.6)
    ax = fig.subplots()
    ends = [0.8 * min(one.min() for one in sizes), 1.25 * max(one.max() for one in sizes)]
    ax.plot(ends, ends, color=GREY, linestyle=(0, (4, 3)), linewidth=1.1)
    ax.vlines(x, z, y, color=GREY, linewidth=0.9)
    ax.plot(x, z, "_", color=INK, label="weights alone")
    ax.plot(x, y, "o", color=CYCLE[0], markerfacecolor="white", label="other depths")
    ax.plot(x[chosen], y[chosen], "o", color=CYCLE[0], label="chosen")
    for label, a, b in zip(labels, x, y, strict=True):
        ax.annotate(label, (a, b), (4, 4), textcoords="offset points", fontsize="small", color=INK)
    ax.set(xscale="log", yscale="log", xlabel="KL of the posterior, bytes", ylabel="file, bytes")
    legend_above(ax, ["chosen", "other depths", "weights alone"])
    return fig
