"""One look for every figure: colours that colour-blind readers can tell apart, and sizes.

The look is applied for the length of one call and leaves the session's own settings alone.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib
from cycler import cycler
from matplotlib.colors import LinearSegmentedColormap

INK = "#22262e"
GREY = "#8a919c"

# The hues of Okabe and Ito (2008), in an order that keeps neighbours apart in lightness too.
CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

# With the colours, so that a figure printed in grey can still be read.
MARKERS = ("o", "s", "^", "D", "v", "P")

# p(class 1): orange at 0, white at 1/2, blue at 1.
DIVERGING = LinearSegmentedColormap.from_list(
    "pyroccam_diverging", ["#b34f00", "#f3b27a", "#fbfaf7", "#7db8dc", "#005a8f"]
)

# From nothing to all: one hue, so that it is read by lightness alone.
AMOUNT = LinearSegmentedColormap.from_list(
    "pyroccam_amount", ["#f1f3f6", "#a9cbe3", "#3d86bd", "#00406b"]
)

RC: Any = {  # matplotlib types its settings key by key, by release
    "font.family": "sans-serif",
    # The others are as wide, for readers of an SVG who have not the first.
    "font.sans-serif": ["DejaVu Sans", "Bitstream Vera Sans", "Verdana"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": "#e4e6ea",
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.4,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": "standard",
    "text.usetex": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "pyroccam",  # the same figure is the same file
}

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Run ``draw`` under the project's look, and put the session's settings back after."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)

    return wrapper
