"""Where a structure of three alternatives may lie, and where its priors put it.

    python -m experiments simplex --again

Nothing is trained: the vertices and interiors of cube and simplex, and draws of Gumbel-Softmax and
Dirichlet at the temperatures of the slides, 0.995 and 5, and near 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import combinations, product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from pyroccam.inference.figures import CYCLE, GREY, INK, new_figure, simplex_panels, styled
from pyroccam.models.contexts import seeded
from pyroccam.models.distributions.relaxed import ExpDirichlet, ExpRelaxedCategorical
from torch import Tensor

from ..markdown import header, read_all, row
from ..runner import File, Given, Made, Row, Spec

__all__ = ["SPEC", "draws"]

TEMPERATURES = (0.01, 0.995, 5.0)
FAMILIES = ("Gumbel-Softmax", "Dirichlet")
NEAR = 0.9  # of the largest coordinate


def draws(family: str, temperature: float, count: int) -> Tensor:
    """Draws of γ, ``(count, 3)``, for s = (1, 1, 1)."""
    s = torch.ones(3)
    law = (
        ExpRelaxedCategorical(temperature, probs=s)
        if family == "Gumbel-Softmax"
        else ExpDirichlet(temperature * s)
    )
    with seeded(0, torch.device("cpu")):
        return law.rsample((count,)).exp()


def files(given: Given) -> Iterable[File]:
    """One."""
    yield File("simplex", {"config": {"draws": given.draws}}, partial(_shares, given))


def _shares(given: Given) -> Row:
    near: Row = {family: {} for family in FAMILIES}
    for family, temperature in product(FAMILIES, TEMPERATURES):
        largest = draws(family, temperature, given.draws).amax(1)
        near[family][f"{temperature:g}"] = float((largest > NEAR).double().mean())
    return {"near a corner": near}


def priors_figure() -> Figure:
    """Draws in triangles, by family and temperature."""
    panels = {
        family: {f"temperature {t:g}": draws(family, t, 600) for t in TEMPERATURES}
        for family in FAMILIES
    }
    shares = {
        family: {
            name: torch.bincount(points.argmax(1), minlength=3).div(len(points)).tolist()
            for name, points in cells.items()
        }
        for family, cells in panels.items()
    }
    drawn_ = simplex_panels(panels, ("γ₀", "γ₁", "γ₂"), shares, height=4.1)
    drawn_.suptitle("Priors of a structure, s = (1, 1, 1): 600 draws", fontsize=10.5)
    return drawn_


@styled
def restrictions_figure() -> Figure:
    """The four restrictions of the slides."""
    corners = [*product((0.0, 1.0), repeat=3)]
    simplex = [one for one in corners if sum(one) == 1.0]
    drawn_ = new_figure(1.9)
    titles = ("cube vertices", "simplex vertices", "cube interior", "simplex interior")
    for k, title in enumerate(titles):
        axes = drawn_.add_subplot(1, 4, k + 1, projection="3d")
        for a, b in combinations(corners, 2):
            if math.dist(a, b) == 1.0:
                axes.plot(*zip(a, b, strict=True), color=GREY, linewidth=0.7)
        if title.startswith("simplex"):
            axes.plot(*zip(*simplex, simplex[0], strict=True), color=INK, linewidth=0.8)
        if title.endswith("vertices"):
            points = corners if title.startswith("cube") else simplex
            axes.scatter(*zip(*points, strict=True), color=CYCLE[0], s=22, depthshade=False)
        else:
            faces = [simplex] if title.startswith("simplex") else _faces()
            axes.add_collection3d(Poly3DCollection(faces, facecolor=CYCLE[0], alpha=0.25))
        axes.set_title(title, fontsize=8.5, pad=-2)
        axes.set_axis_off()
        axes.set_box_aspect((1, 1, 1), zoom=1.05)
        axes.view_init(elev=22, azim=35)
    return drawn_


def _faces() -> list[list[tuple[float, ...]]]:
    square = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    return [
        [(*corner[:axis], side, *corner[axis:]) for corner in square]
        for axis, side in product(range(3), (0.0, 1.0))
    ]


def drawn(given: Given) -> Mapping[str, Made]:
    """Both figures."""
    return {"priors": priors_figure, "restrictions": restrictions_figure}


def table(folder: Path) -> Iterable[str]:
    """Shares of draws near a corner."""
    for found in read_all(folder).values():
        shares = found["near a corner"]
        temperatures = [f"T = {name}" for name in next(iter(shares.values()))]
        yield from header(f"draws with a coordinate above {NEAR:g}, %", *temperatures)
        for family, own in shares.items():
            yield row(family, *(f"{100 * share:.1f}" for share in own.values()))
        yield ""


SPEC = Spec(
    "experiments.published.structure.simplex", "Priors of a structure", "simplex",
    {"draws": 20000}, files, table, drawn, small="--draws 50",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
