"""Figures: what depth was learnt, what each depth computes, how far to trust it.

Each function takes plain arrays or tensors and returns a
:class:`matplotlib.figure.Figure` with its own canvas. No window opens, no global figure is
kept, and matplotlib's settings are as they were once the call is over.

Figures are 6 inches wide, made to be read at 600 pixels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from .metrics import Reliability
from .style import CYCLE, DIVERGING, GREY, INK, MARKERS, styled

__all__ = [
    "depth_comparison",
    "depth_posterior",
    "reliability_diagram",
    "save",
    "spiral_functions",
    "training_curve",
]

Array: TypeAlias = torch.Tensor | ArrayLike
Floats: TypeAlias = NDArray[np.float64]

_WIDTH = 6.0  # inches
_FEW_ROWS = 20  # a bin with fewer rows is drawn hollow
_MANY_POINTS = 40  # a longer line is drawn without markers
_LOG_FROM = 30.0  # ratio of largest to smallest value from which a positive axis is logarithmic

_FIXED, _FULL, _CUT = "fixed depth, mean ± sd", "learnt depth, all depths", "learnt depth, cut"


# ---------------------------------------------------------------------------------------------
# Depth
# ---------------------------------------------------------------------------------------------


@styled
def depth_posterior(
    q: Array,
    exact: Array | None,
    depth_chosen: int,
    depth_chosen_exact: int | None = None,
    nll_by_depth: Mapping[str, Array] | None = None,
) -> Figure:
    """The learnt distribution over depth, and how good each depth is on its own.

    Upper panel: bars of q(d), the exact posterior as an outline, the chosen depths as
    vertical lines. Lower panel, on the same depths: negative log-likelihood of the network
    cut at each depth; its axis is logarithmic where the values span more than a factor of 30.

    Arguments:
        q: learnt distribution over depths 0 ... D, shape (D+1,).
        exact: exact posterior over the same depths, shape (D+1,), or None.
        depth_chosen: depth chosen from q.
        depth_chosen_exact: depth chosen from the exact posterior, if there is one.
        nll_by_depth: for each split, e.g. "train" and "test", D+1 values in nats per row;
            nothing or an empty mapping leaves the lower panel out.

    Returns:
        The figure, with one or two axes.

    Raises:
        ValueError: if lengths differ, q or exact is not a distribution, or a chosen depth is
            not one of 0 ... D.
    """
    heights = _distribution("q", q)
    n = len(heights)
    reference = None if exact is None else _distribution("exact", exact)
    if reference is not None and len(reference) != n:
        raise ValueError(
            f"exact: got {len(reference)} depths, expected {n} as in q; both run over 0 ... D"
        )
    for name, depth in (("depth_chosen", depth_chosen), ("depth_chosen_exact", depth_chosen_exact)):
        if depth is not None and not 0 <= depth < n:
            raise ValueError(f"{name}: got {depth}, expected 0 to {n - 1}: q has {n} depths")
    curves = {k: _array(f"nll_by_depth[{k!r}]", v, 1) for k, v in (nll_by_depth or {}).items()}
    for name, values in curves.items():
        if len(values) != n:
            raise ValueError(
                f"nll_by_depth[{name!r}]: got {len(values)} values, expected {n}, one for each "
                "depth 0 ... D in q"
            )

    fig = _figure(3.9 if curves else 2.5)
    depths = np.arange(n)
    if curves:
        top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=[1.25, 1.0])
    else:
        top = bottom = fig.subplots()
    top.bar(depths, heights, width=0.8, color=CYCLE[0], alpha=0.75, label="q(d)")
    if reference is not None:
        top.stairs(
            reference,
            np.arange(n + 1) - 0.5,
            color=CYCLE[1],
            linewidth=1.5,
            label="exact posterior",
        )
    top.set_ylabel("probability")
    top.set_ylim(bottom=0)
    lines: list[tuple[int, Any, str]] = [(depth_chosen, "-", f"chosen by q: {depth_chosen}")]
    if depth_chosen_exact is not None:
        lines.append((depth_chosen_exact, (0, (2, 1.6)), f"by exact: {depth_chosen_exact}"))
    for ax in {id(a): a for a in (top, bottom)}.values():
        for depth, dashes, label in lines:
            ax.axvline(depth, color=INK, linestyle=dashes, linewidth=1.3, label=label, zorder=3)
    _legend_above(top, ["q(d)", "exact posterior", *(label for _, _, label in lines)])

    if curves:
        for (name, values), colour, marker in zip(
            curves.items(), _cycled(CYCLE[2:] + CYCLE[:2]), _cycled(MARKERS), strict=False
        ):
            bottom.plot(
                depths,
                values,
                color=colour,
                marker=marker if n <= _MANY_POINTS else "",
                label=name,
            )
        bottom.set_ylabel("NLL (nats per row)")
        _log_if_wide(bottom, curves.values())
        _legend_above(bottom, list(curves))
    bottom.set_xlabel("depth d")
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    bottom.set_xlim(-0.7, n - 0.3)
    return fig


@styled
def spiral_functions(
    x_train: Array,
    y_train: Array,
    grid_x: Array,
    grid_y: Array,
    probs: Array,
    depths: Sequence[int],
    q: Array,
    depth_chosen: int | None = None,
) -> Figure:
    """The functions learnt at several depths of one network, side by side.

    Arguments:
        x_train: inputs in the plane, shape (N, 2).
        y_train: labels 0 or 1, shape (N,).
        grid_x: first coordinate of the grid, increasing, shape (G,).
        grid_y: second coordinate of the grid, increasing, shape (H,); H may equal G.
        probs: probability of class 1, shape (K, H, G): ``probs[k, i, j]`` is the k-th shown
            depth at the point (grid_x[j], grid_y[i]).
        depths: the K depths shown.
        q: probability of each shown depth, shape (K,); it need not sum to one.
        depth_chosen: a shown depth to frame, if any.

    Returns:
        The figure: K panels and a colour bar.

    Raises:
        ValueError: if the shapes do not fit together or a probability is outside [0, 1].
    """
    points = _array("x_train", x_train, 2)
    labels = _array("y_train", y_train, 1)
    first, second = _array("grid_x", grid_x, 1), _array("grid_y", grid_y, 1)
    surfaces = _array("probs", probs, 3)
    masses = _array("q", q, 1)
    if points.shape[1] != 2 or len(points) != len(labels):
        raise ValueError(
            f"x_train: got shape {points.shape} beside {len(labels)} labels, expected "
            f"({len(labels)}, 2)"
        )
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(
            f"y_train: got labels {np.unique(labels)[:5].tolist()}, expected only 0 and 1; the "
            "picture is one of two classes"
        )
    expected = (len(depths), len(second), len(first))
    if surfaces.shape != expected:
        raise ValueError(
            f"probs: got shape {surfaces.shape}, expected {expected}: shown depths, len(grid_y), "
            "len(grid_x)"
        )
    if len(masses) != len(depths) or not len(depths):
        raise ValueError(
            f"q: got {len(masses)} values, expected {len(depths)}, one for each shown depth (at "
            "least one); try q[list(depths)]"
        )
    if not (surfaces.min() >= 0 and surfaces.max() <= 1):
        raise ValueError(
            f"probs: got values from {surfaces.min():.4g} to {surfaces.max():.4g}, expected "
            "probabilities in [0, 1]; try log_probs.exp() or logits.sigmoid()"
        )

    columns = min(4, len(depths))
    rows = math.ceil(len(depths) / columns)
    fig = _figure(0.12 + rows * (0.25 + 0.97 * (_WIDTH - 0.8) / columns))
    panels = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    mesh = None
    for ax, depth, mass, surface in zip(panels, depths, masses, surfaces, strict=False):
        mesh = ax.pcolormesh(
            first,
            second,
            surface,
            cmap=DIVERGING,
            vmin=0,
            vmax=1,
            shading="nearest",
            rasterized=True,
        )
        if surface.min() < 0.5 < surface.max():  # matplotlib warns of a level it cannot find
            ax.contour(first, second, surface, levels=[0.5], colors=INK, linewidths=0.9)
        for value, colour, marker in ((0, "#8f3f00", "s"), (1, "#00456e", "o")):
            ax.scatter(
                *points[labels == value].T,
                s=7,
                color=colour,
                marker=marker,
                edgecolors="white",
                linewidths=0.35,
                zorder=3,
            )
        chosen = depth_chosen is not None and depth == depth_chosen
        ax.set_title(
            f"d = {depth},  q {_probability(mass)}",
            fontweight="bold" if chosen else "normal",
            fontsize=8.5,
            pad=3.5,
        )
        ax.set(aspect="equal", xticks=[], yticks=[])
        ax.set_xlim(first[0], first[-1])
        ax.set_ylim(second[0], second[-1])
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set(visible=True, color=INK if chosen else GREY, linewidth=1.8 if chosen else 0.6)
    for ax in panels[len(depths) :]:
        ax.remove()
    assert mesh is not None
    bar = fig.colorbar(mesh, ax=panels[: len(depths)].tolist(), fraction=0.03, pad=0.02, aspect=28)
    bar.set_label("p(class 1)")
    bar.set_ticks([0, 0.5, 1])
    return fig


@styled
def depth_comparison(
    ddn: Mapping[int, Sequence[float]],
    ldn_full: Sequence[float],
    ldn_pruned: Sequence[tuple[int, float]],
    ylabel: str,
    title: str = "",
) -> Figure:
    """Deterministic networks of several depths against one network of learnt depth.

    Arguments:
        ddn: for each depth, the score of every deterministic network trained at it. Drawn as
            mean and sample standard deviation, the single runs faint behind.
        ldn_full: score of every learnt depth network, averaged over all its depths; drawn as
            a horizontal line, with a band of one standard deviation.
        ldn_pruned: (chosen depth, score) of every learnt depth network after the cut; drawn
            as points.
        ylabel: name of the score, with its unit.
        title: title of the figure.

    Returns:
        The figure, with one axes.

    Raises:
        ValueError: if there is nothing to draw, or a depth has no runs.
    """
    if not ddn and not len(ldn_full) and not len(ldn_pruned):
        raise ValueError("depth_comparison: ddn, ldn_full and ldn_pruned are all empty")
    for depth, runs in ddn.items():
        if not len(runs):
            raise ValueError(f"ddn[{depth}]: got no runs, expected at least one; leave it out")
    pairs = [tuple(pair) for pair in ldn_pruned]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("ldn_pruned: expected pairs (chosen depth, score), one for each run")

    fig = _figure(3.3)
    ax = fig.subplots()
    everything: list[Floats] = []
    if len(ldn_full):
        scores = _array("ldn_full", ldn_full, 1)
        everything.append(scores)
        mean, sd = _mean_sd(scores)
        ax.axhspan(mean - sd, mean + sd, color=CYCLE[0], alpha=0.15, linewidth=0)
        ax.axhline(mean, color=CYCLE[0], label=_FULL)
    if ddn:
        order = sorted(ddn)
        columns = [_array(f"ddn[{depth}]", ddn[depth], 1) for depth in order]
        everything += columns
        spread = np.array([_mean_sd(column) for column in columns])
        for depth, column in zip(order, columns, strict=True):
            if len(column) > 1:
                ax.plot(
                    [depth] * len(column), column, ".", color=CYCLE[1], alpha=0.35, markersize=4
                )
        ax.errorbar(
            order,
            spread[:, 0],
            yerr=spread[:, 1],
            color=CYCLE[1],
            marker=MARKERS[1],
            capsize=2.5,
            elinewidth=1.0,
            label=_FIXED,
        )
    if pairs:
        chosen = np.array(pairs, dtype=np.float64)
        everything.append(chosen[:, 1])
        ax.plot(
            chosen[:, 0],
            chosen[:, 1],
            "*",
            color=CYCLE[0],
            markeredgecolor="white",
            markeredgewidth=0.7,
            markersize=12,
            label=_CUT,
            zorder=4,
        )
    ax.set_xlabel("depth")
    ax.set_ylabel(ylabel)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    _log_if_wide(ax, everything)
    _legend_above(ax, [_FIXED, _FULL, _CUT])
    if title:
        fig.suptitle(title, fontsize=10.5)
    return fig


# ---------------------------------------------------------------------------------------------
# Calibration and training
# ---------------------------------------------------------------------------------------------


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
        counts = _array("counts", table.counts, 1)
        if not counts.sum() > 0:
            raise ValueError(f"reliabilities[{name!r}]: all bins are empty, expected some rows")
        held = counts > 0
        confidence = _array("confidence", np.asarray(table.confidence)[held], 1)
        accuracy = _array("accuracy", np.asarray(table.accuracy)[held], 1)
        tables[name] = (confidence, accuracy, counts)

    fig = _figure(5.0)
    top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=[2.6, 1.0])
    top.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1.1)
    hollow, labels = False, list[str]()
    for (name, (confidence, accuracy, counts)), colour, marker in zip(
        tables.items(), _cycled(CYCLE), _cycled(MARKERS), strict=False
    ):
        rows = counts[counts > 0]
        ece = float((np.abs(accuracy - confidence) * rows).sum() / rows.sum())
        few = rows < _FEW_ROWS
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
        few_label = f"under {_FEW_ROWS} rows"
        top.plot(
            [], [], color=GREY, marker="o", linestyle="", markerfacecolor="white", label=few_label
        )
        labels.append(few_label)
    _legend_above(top, labels, columns=2)
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
        if position is not None and not _is_number(row.get(position)):
            raise ValueError(f"history[{index}]: has no {position!r}, which the first record has")
    names = (
        list(columns)
        if columns is not None
        else [
            name
            for name in dict.fromkeys(name for row in history for name in row)
            if name not in ("epoch", "step") and any(_is_number(row.get(name)) for row in history)
        ]
    )
    series: dict[str, Floats] = {}
    for name in names:
        pairs = [
            (float(row[position]) if position else float(index), float(row[name]))
            for index, row in enumerate(history)
            if _is_number(row.get(name))
        ]
        if not pairs:
            known = sorted({key for row in history for key in row})
            raise ValueError(f"columns: {name!r} has no finite value; history holds {known}")
        series[name] = np.array(pairs, dtype=np.float64)
    if not series:
        raise ValueError("history: no numeric column to draw, expected e.g. 'loss'")

    nats = [name for name in series if name.endswith(("loss", "nll"))]
    panels = ([nats] if nats else []) + [[name] for name in series if name not in nats]
    fig = _figure(0.9 + 1.25 * len(panels) + (0.8 if nats else 0.0))
    ratios = [1.7 if panel is nats else 1.0 for panel in panels]
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    colours = dict(zip(series, _cycled(CYCLE), strict=False))
    markers = dict(zip(series, _cycled(MARKERS), strict=False))
    for ax, panel in zip(axes, panels, strict=True):
        for name in panel:
            x, y = series[name].T
            marker = markers[name] if len(x) <= _MANY_POINTS else ""
            ax.plot(x, y, color=colours[name], marker=marker, label=name.replace("_", " "))
        _log_if_wide(ax, [series[name][:, 1] for name in panel])
        if panel is nats:
            ax.set_ylabel("nats per row")
            _legend_above(ax, [name.replace("_", " ") for name in panel])
        else:
            ax.set_ylabel(panel[0].replace("_", " "))
    axes[-1].set_xlabel(position or "record")
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    fig.align_ylabels(axes.tolist())
    return fig


@styled
def save(fig: Figure, path: str | Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write a figure, at 150 dots per inch, without a date in the file.

    Arguments:
        fig: the figure.
        path: where, without suffix; missing folders are made.
        formats: "png", "pdf" or "svg", one file for each.

    Returns:
        The files written, in the order of ``formats``.

    Raises:
        ValueError: if a format is not known, or the path already ends in one.
    """
    known = ("png", "pdf", "svg")
    unknown = [fmt for fmt in formats if fmt not in known]
    if unknown or isinstance(formats, str) or not formats:
        raise ValueError(f"formats: got {formats!r}, expected a sequence drawn from {known}")
    path = Path(path)
    if path.suffix.lstrip(".") in known:
        raise ValueError(
            f"path: got {str(path)!r}, expected no suffix; try {path.stem!r} and "
            f"formats=({path.suffix.lstrip('.')!r},)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    undated: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None},
        "svg": {"Date": None},
    }
    written = []
    for fmt in formats:
        target = path.with_name(f"{path.name}.{fmt}")
        fig.savefig(target, format=fmt, dpi=150, metadata=undated[fmt])
        written.append(target)
    return written


# ---------------------------------------------------------------------------------------------
# Shared by the figures
# ---------------------------------------------------------------------------------------------


def _figure(height: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.06)
    fig = Figure(figsize=(_WIDTH, height), dpi=100, layout=layout)
    FigureCanvasAgg(fig)
    return fig


def _array(name: str, value: Array, ndim: int) -> Floats:
    """Give ``value`` as a finite float64 array of ``ndim`` dimensions."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != ndim:
        raise ValueError(f"{name}: got shape {array.shape}, expected {ndim} dimension(s)")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: holds nan or infinite values, expected finite ones")
    return array


def _distribution(name: str, value: Array) -> Floats:
    array = _array(name, value, 1)
    if not len(array) or array.min() < 0 or abs(array.sum() - 1) > 1e-3:
        raise ValueError(
            f"{name}: {len(array)} values that sum to {array.sum():.4g}, expected probabilities "
            "(none negative, sum 1); pass log_q.exp() or torch.softmax(logits, 0)"
        )
    return array


def _cycled(values: Sequence[str]) -> Iterable[str]:
    while True:
        yield from values


def _is_number(value: object) -> bool:
    """Whether a record's value can be drawn: a finite number, a scalar tensor included."""
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    elif isinstance(value, np.generic):
        value = value.item()
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mean_sd(values: Floats) -> tuple[float, float]:
    """Mean and sample standard deviation, the latter 0 for one value: no bar is drawn."""
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _probability(p: float) -> str:
    return f"= {p:.2f}" if p >= 0.095 else f"= {p:.3f}" if p >= 0.0005 else "< 0.001"


def _log_if_wide(ax: Axes, values: Iterable[Floats]) -> None:
    """Make the vertical axis logarithmic if the values are positive and span a wide range."""
    flat = np.concatenate([np.ravel(v) for v in values])
    if flat.min() > 0 and flat.max() / flat.min() > _LOG_FROM:
        ax.set_yscale("log")
        decades = math.log10(flat.max() / flat.min())
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
        ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        ax.yaxis.set_minor_formatter(NullFormatter())


def _legend_above(ax: Axes, labels: Sequence[str], columns: int = 4) -> None:
    """Put a legend of ``labels``, in that order, over the axes, where it hides no data."""
    handles, names = ax.get_legend_handles_labels()
    by_name = dict(zip(names, handles, strict=True))
    present = [label for label in labels if label in by_name]
    ax.legend(
        [by_name[label] for label in present],
        present,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        borderpad=0.1,
    )
