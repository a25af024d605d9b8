"""The picture of a graph says what the posterior says."""

import pytest
from alternatives import FIRST, SECOND, graph
from matplotlib.patches import FancyArrowPatch
from pyroccam.inference.figures import structure_graph
from pyroccam.models import StructureGraph
from torch import nn

PROBS = {FIRST: {"tanh": 0.1, "relu": 0.7, "deep": 0.2}, SECOND: {"straight": 0.55, "bent": 0.45}}


def arrows(figure):
    return [p for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]


def test_lines_are_as_wide_as_primitives_are_probable():
    chosen = {FIRST: ["relu"], SECOND: ["straight"]}
    figure = structure_graph(graph(), PROBS, chosen)
    values = [p for edge in PROBS.values() for p in edge.values()]
    widths = [arrow.get_linewidth() for arrow in arrows(figure)]
    slope = (widths[1] - widths[0]) / (values[1] - values[0])
    assert slope > 0
    for width, value in zip(widths, values, strict=True):
        assert width == pytest.approx(widths[0] + slope * (value - values[0]))
    said = {text.get_text(): text for text in figure.axes[0].texts}
    assert {"x", "h", "y"} < set(said)
    for edge, names in PROBS.items():
        for name, p in names.items():
            weight = said[f"{name} {p:.2f}"].get_fontweight()
            assert weight == ("bold" if name in chosen[edge] else "normal")


def test_labels_do_not_lie_on_each_other_or_on_vertices():
    """In a graph in which edges pass over others, three levels and more."""
    names = [f"v{i}" for i in range(4)]
    edges = {
        (a, b): {"one": nn.Identity(), "two": nn.Identity(), "three": nn.Identity()}
        for i, b in enumerate(names)
        for a in names[:i]
    }
    figure = structure_graph(StructureGraph(edges), {})
    figure.canvas.draw()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    boxes = [text.get_window_extent() for text in texts]
    whole = figure.bbox
    for i, box in enumerate(boxes):
        assert whole.x0 <= box.x0
        assert box.x1 <= whole.x1
        assert whole.y0 <= box.y0
        assert box.y1 <= whole.y1
        for other in boxes[:i]:
            assert not box.overlaps(other)
