"""Figures: what was learnt, what each depth computes, what is cut, how far to trust it.

Each function takes plain arrays or tensors and returns a
:class:`matplotlib.figure.Figure` with its own canvas. No window opens, no global figure is
kept, and matplotlib's settings are as they were once the call is over.

Figures are 6 inches wide, made to be read at 600 pixels.
"""

from .canvas import save
from .depth import depth_comparison, depth_posterior, spiral_functions
from .graph import structure_graph
from .relevance import irrelevance_histograms
from .scans import ScanPanel, scan_panels
from .scores import reliability_diagram, training_curve

__all__ = [
    "ScanPanel",
    "depth_comparison",
    "depth_posterior",
    "irrelevance_histograms",
    "reliability_diagram",
    "save",
    "scan_panels",
    "spiral_functions",
    "structure_graph",
    "training_curve",
]
