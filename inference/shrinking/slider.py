"""A slider for a notebook, over the networks of a path."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

if TYPE_CHECKING:
    from .weight_path import Path, PathPoint


class Knob(widgets.VBox):
    """A slider over the weights of the KL, above the figure of the path and what is left."""

    def __init__(self, path: Path) -> None:
        self.path, self.point = path, path.best()
        self.slider = widgets.SelectionSlider(
            options=[(f"{point.weight:.3g}", k) for k, point in enumerate(path)],
            value=path.points.index(self.point),
            description="λ",
            continuous_update=False,
        )
        self.picture, self.words = widgets.Image(format="png"), widgets.HTML()
        self.slider.observe(self._turn, names="value")
        self._show()
        super().__init__([self.slider, self.words, self.picture])

    def _turn(self, change: dict[str, Any]) -> None:
        self.point = self.path.points[change["new"]]
        self._show()

    def _show(self) -> None:
        point, buffer = self.point, BytesIO()
        self.path.figure(point).savefig(buffer, format="png", dpi=100)
        self.picture.value = buffer.getvalue()
        self.words.value = describe(point)


def describe(point: PathPoint) -> str:
    """What a point costs and scores, in one line."""
    accuracy = point.small_scores.get("accuracy")
    score = f"NLL {point.nll:.3f}" if accuracy is None else f"accuracy {100 * accuracy:.1f} %"
    return (
        f"{score}, {point.small.bytes:,} bytes, {point.parameters:,} parameters "
        f"({point.small.report.architecture}), {1e3 * point.seconds:.2g} ms"
    )
