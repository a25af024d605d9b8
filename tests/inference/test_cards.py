"""What a notebook shows of fits, small networks, structures and data."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from fitting import SHORT, blobs, fit_weights
from plain import network
from pyroccam import guides, inference, models
from pyroccam.inference.diagnostics import Finding
from pyroccam.inference.posterior import summarise
from pyroccam.models import priors
from torch import nn


@pytest.fixture(scope="module")
def weights():
    return fit_weights(priors.GroupNormalJeffreys())


def test_whatever_is_shown_is_well_formed(weights):
    """Also what has a figure, and where names are no HTML."""
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(blobs(), width=4, max_depth=2)
    deep = inference.fit(model, guides.CategoricalDepth(model), blobs(), **SHORT)
    drawn = inference.figures.training_curve(deep.history)
    finding = Finding("a < b", "good", "As it should be.", {"k": 0.5, "more": [1]}, drawn)
    rows = replace(weights.data, name="<b>&", class_names=("a<", "b", "c"))
    small = inference.shrink(weights, cut=inference.Thresholds(100.0))
    for thing, word in (
        (weights, "BayesianNetwork"), (deep, "depth"), (*deep.structures, "depth"),
        (small, f"{small.bytes:,}"), (small.report, small.report.rows()[0]["left"]),
        (finding, "a < b"), (rows, "<b>&"),
    ):  # fmt: skip
        assert word in " ".join(ElementTree.fromstring(thing._repr_html_()).itertext())


def test_layers_of_a_fit_and_of_what_is_left(weights):
    found = weights.summary()
    assert list(found["parameters"])[-1] == sum(found["parameters"][:-1])
    linear = found.iloc[0]
    assert linear["multiply-adds"] == linear["parameters"] - int(linear["output"])  # no bias
    small = inference.shrink(weights, cut=inference.Thresholds(100.0))
    own = small.summary()
    assert own.loc["all", "parameters"] == sum(p.numel() for p in small.net.parameters())
    name, layer = next(iter(small.report.layers.items()))
    assert f"{len(layer.outputs)} of {layer.outputs_before} outputs" in own.loc[name, "left"]


def test_layers_of_other_networks():
    """Attention counts as one, and a layer that runs twice has its products twice."""
    net = network(
        lambda net, x: net.shared(net.shared(net.attention(x, x, x)[0])),
        attention=nn.MultiheadAttention(8, 2, batch_first=True), shared=nn.Linear(8, 8),
    )  # fmt: skip
    found = summarise(net, net, torch.randn(1, 3, 8))
    assert list(found.index) == ["attention", "shared", "all"]
    assert found.loc["shared", "multiply-adds"] == 2 * 3 * 8 * 8
    assert found.loc["attention", "output"] == "3 x 8"
