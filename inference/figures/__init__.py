"""Figures: what was learnt, what each depth computes, what is cut, how far to trust it.

Each function takes plain arrays or tensors and returns a
:class:`matplotlib.figure.Figure` with its own canvas. No window opens, no global figure is
kept, and matplotlib's settings are as they were once the call is over.

Figures are 6 inches wide, made to be read at 600 pixels.
"""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .canvas import legend_above, new_figure, save
    from .cuts import bits_per_layer, irrelevance_histograms, scale_posteriors, sparsity_maps
    from .depth import depth_comparison, depth_posterior, spiral_functions
    from .predictive import confusions, predicted_observed, predictive_bands, reliability_diagram
    from .sizes import bytes_by_bound, trade_off, weight_path
    from .structure import simplex_panels, structure_graph
    from .style import CYCLE, GREY, INK, MARKERS, styled
    from .training import training_curve

__all__ = [
    "bits_per_layer",
    "bytes_by_bound",
    "confusions",
    "depth_comparison",
    "depth_posterior",
    "irrelevance_histograms",
    "predicted_observed",
    "predictive_bands",
    "reliability_diagram",
    "save",
    "scale_posteriors",
    "simplex_panels",
    "sparsity_maps",
    "spiral_functions",
    "structure_graph",
    "trade_off",
    "training_curve",
    "weight_path",
]

__getattr__, __dir__ = lazy_names(__name__)
