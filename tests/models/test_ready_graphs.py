"""Ready networks with a choice in them, and primitives."""

import pytest
import torch
from pyroccam.data.errors import PyroccamError
from pyroccam.models.networks.discrete import discretised, structures
from pyroccam.models.networks.graphs import cell_graph, perceptron_graph
from pyroccam.models.networks.primitives import One, Zero


def test_primitives():
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(Zero()(x), torch.zeros(2, 3, 6, 6))
    assert Zero(2)(x).shape == (2, 3, 3, 3)
    assert torch.equal(One()(x), torch.ones(2, 1))
    with pytest.raises(PyroccamError):
        Zero(0)


def test_perceptron_graph():
    net = perceptron_graph((1, 4, 4), 5, width=8, vertices=4)
    assert net(torch.randn(3, 1, 4, 4)).shape == (3, 5)
    (own,) = structures(net).values()
    assert list(own.primitives) == ["v0-v1", "v0-v2", "v1-v2", "v0-v3", "v1-v3", "v2-v3"]
    small = discretised(net, {f"2.{edge}": "zero" for edge in own.primitives})
    out = small(torch.randn(3, 1, 4, 4))
    assert torch.equal(out, out[:1].expand(3, 5))  # nothing of the input is left
    for wrong in ({"vertices": 1}, {"width": 1}):
        with pytest.raises(PyroccamError):
            perceptron_graph((4,), 5, **wrong)


def test_cell_graph():
    net = cell_graph((1, 28, 28), 10, channels=8, cells=3)
    assert net(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    assert list(structures(net)) == ["2"]  # one structure of three cells
    own = structures(net)["2"]
    small = discretised(net, {f"2.{edge}": "conv3" for edge in own.primitives})
    assert small(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    convolutions = [m for m in small.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 1 + 3 * len(own.primitives)
    with pytest.raises(PyroccamError):
        cell_graph((4,), 10)
    with pytest.raises(PyroccamError):
        cell_graph((1, 28, 28), 10, channels=6)
