"""Ready networks with a choice in them, for methods that learn structure."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from ...data import AtLeastTwo, Count, PyroccamError, checked
from .. import asking
from .primitives import Zero
from .structure_graph import StructureGraph


@asking
@checked
def perceptron_graph(
    input_shape: tuple[int, ...],
    outputs: Count,
    *,
    width: AtLeastTwo = 32,
    vertices: AtLeastTwo = 3,
) -> nn.Sequential:
    """A linear layer, a graph of hidden layers, and a linear layer.

    Every vertex of the graph has an edge from every earlier one, with the primitives ``zero`` (no
    edge), ``skip``, ``relu`` and ``tanh`` (a linear layer with either), and ``narrow`` (a ReLU
    layer of a quarter of the units and a linear one back).

    Arguments:
        width: units of every vertex.
        vertices: of the graph, its input included.
    """
    few = max(1, width // 4)
    edges = {
        (f"v{i}", f"v{j}"): {
            "zero": Zero(),
            "skip": nn.Identity(),
            "relu": nn.Sequential(nn.Linear(width, width), nn.ReLU()),
            "tanh": nn.Sequential(nn.Linear(width, width), nn.Tanh()),
            "narrow": nn.Sequential(nn.Linear(width, few), nn.ReLU(), nn.Linear(few, width)),
        }
        for j in range(1, vertices)
        for i in range(j)
    }
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), width),
        StructureGraph(edges),
        nn.Linear(width, outputs),
    )


@asking
@checked
def cell_graph(
    input_shape: tuple[int, ...],
    outputs: Count,
    *,
    channels: Count = 16,
    vertices: AtLeastTwo = 3,
    cells: Count = 2,
) -> nn.Sequential:
    """A convolutional stem, cells that share one structure, and a linear layer.

    The primitives of an edge are those of DARTS that fit small images: ``zero``, ``skip``,
    ``max_pool``, ``avg_pool``, ``conv3`` and ``separable5``. Between cells the image is halved.
    Group normalisation takes the place of batch normalisation, whose running statistics belong to
    no single structure.

    Arguments:
        input_shape: of one image, ``(channels, height, width)``.
        channels: of every vertex, a multiple of 4.
        vertices: of a cell, its input included.
        cells: how many.

    References:
        Liu, Simonyan, Yang 2019, DARTS, arXiv:1806.09055.
    """
    if len(input_shape) != 3:
        raise PyroccamError(f"cell_graph takes images, got inputs of shape {input_shape}.")
    if channels % 4:
        raise PyroccamError(f"channels={channels}", "a multiple of 4")

    def norm() -> nn.Module:
        return nn.GroupNorm(channels // 4, channels)

    def cell() -> dict[tuple[str, str], dict[str, nn.Module]]:
        return {
            (f"v{i}", f"v{j}"): {
                "zero": Zero(),
                "skip": nn.Identity(),
                "max_pool": nn.MaxPool2d(3, 1, 1),
                "avg_pool": nn.AvgPool2d(3, 1, 1),
                "conv3": nn.Sequential(
                    nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm()
                ),
                "separable5": nn.Sequential(
                    nn.ReLU(),
                    nn.Conv2d(channels, channels, 5, padding=2, groups=channels, bias=False),
                    nn.Conv2d(channels, channels, 1, bias=False),
                    norm(),
                ),
            }
            for j in range(1, vertices)
            for i in range(j)
        }

    parts: list[nn.Module] = [
        nn.Conv2d(input_shape[0], channels, 3, stride=2, padding=1, bias=False),
        norm(),
    ]
    first = StructureGraph(cell())
    for number in range(cells):
        if number:
            parts.append(nn.AvgPool2d(2))
        parts.append(StructureGraph(cell(), gamma=first.gamma) if number else first)
    parts += [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)]
    return nn.Sequential(*parts)


GRAPHS: dict[str, Callable[..., nn.Module]] = {
    "perceptron-graph": perceptron_graph,
    "cell-graph": cell_graph,
}
