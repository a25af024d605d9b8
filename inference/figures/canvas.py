"""The canvas of all figures: size, checks of what is drawn, axes, legends and files."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import (
    FormatStrFormatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
)
from numpy.typing import ArrayLike, NDArray

from ...data import check
from ..storage import replacing
from .style import styled

__all__: list[str] = ["save"]

Array: TypeAlias = torch.Tensor | ArrayLike
Floats: TypeAlias = NDArray[np.float64]

WIDTH = 6.0  # inches
FEW_ROWS = 20  # a bin with fewer rows is drawn hollow
MANY_POINTS = 40  # a longer line is drawn without markers
LOG_FROM = 30.0  # ratio of largest to smallest value from which a positive axis is logarithmic


@styled
def save(
    fig: Figure, path: str | Path, formats: Sequence[str] = ("png",), title: str = ""
) -> list[Path]:
    """Write a figure, at 150 dots per inch, without a date in the file.

    Arguments:
        fig: the figure.
        path: where, without suffix; missing folders are made.
        formats: "png", "pdf" or "svg", one file for each.
        title: of a figure that has none.

    Returns:
        The files written, in the order of ``formats``.
    """
    check("formats", formats, Sequence[Literal["png", "pdf", "svg"]])
    path = Path(path)
    if title and not fig.get_suptitle():
        fig.suptitle(title, fontsize=10.5)
    undated: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None},
        "svg": {"Date": None},
    }
    written, layout = [], fig.get_layout_engine()
    for fmt in formats:
        target = path.with_name(f"{path.name}.{fmt}")
        with replacing(target) as beside:
            fig.savefig(beside, format=fmt, dpi=150, metadata=undated[fmt])
        fig.set_layout_engine("none")  # all files have the same, which takes half of the time
        written.append(target)
    fig.set_layout_engine(layout)
    return written


def new_figure(height: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.06)
    fig = Figure(figsize=(WIDTH, height), dpi=100, layout=layout)
    FigureCanvasAgg(fig)
    return fig


def floats(value: Array) -> Floats:
    """An array, or a tensor wherever it is, in double precision."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=np.float64)


def mean_sd(values: Floats) -> tuple[float, float]:
    """Mean and sample standard deviation, the latter 0 for one value: no bar is drawn."""
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def log_if_wide(ax: Axes, values: Iterable[Floats]) -> None:
    """Make the vertical axis logarithmic if the values are positive and span a wide range."""
    flat = np.concatenate([np.ravel(v) for v in values])
    if flat.min() > 0 and flat.max() / flat.min() > LOG_FROM:
        log_axis(ax, float(flat.min()), float(flat.max()))


def log_axis(ax: Axes, low: float, high: float, which: Literal["x", "y"] = "y") -> None:
    """A logarithmic axis for values from ``low`` to ``high``, with plain numbers, fewer of them
    where they stand beside each other."""
    ax.set(**{f"{which}scale": "log"})
    axis = ax.yaxis if which == "y" else ax.xaxis
    decades = math.log10(high / low)
    narrow = MaxNLocator(nbins=4 if which == "y" else 3, steps=[1, 2, 5, 10])
    wide = LogLocator(subs=(1, 2, 5) if decades < (2.5 if which == "y" else 1.2) else (1,))
    axis.set_major_locator(narrow if decades < 0.7 else wide)
    axis.set_major_formatter(FormatStrFormatter("%g") if which == "y" else FuncFormatter(_short))
    axis.set_minor_formatter(NullFormatter())


def _short(value: float, place: int) -> str:
    """A number that leaves room for the next one: thousands, from ten of them on."""
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def legend_above(ax: Axes, labels: Sequence[str], columns: int = 4) -> None:
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
