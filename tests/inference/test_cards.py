"""What a notebook shows of fits, small networks, structures and data."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from alternatives import graph as graph_of
from fitting import SHORT, blobs, fit_weights
from plain import network
from pyroccam import guides, inference, models
from pyroccam.data import card
from pyroccam.inference.diagnostics import Finding
from pyroccam.inference.posterior import summarise
from pyroccam.models import priors
from torch import nn


@pytest.fixture(scope="module")
def weights():
    return fit_weights(priors.GroupNormalJeffreys())


def text_of(thing):
    """The words of a card, which is well formed."""
    return " ".join(ElementTree.fromstring(thing._repr_html_()).itertext())


def test_a_fit_and_what_is_left_of_it(weights):
    said = text_of(weights)
    assert "BayesianNetwork, MeanField" in said
    assert f"{weights.val_nll:.4g}" in said
    assert "54 training rows" in said
    small = inference.shrink(weights, cut=inference.Thresholds(100.0))
    said = text_of(small)
    assert f"{small.bytes:,}" in said
    assert small.report.sentences()[0] in said
    assert small.report.rows()[0]["left"] in text_of(small.report)


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


def test_a_finding_is_a_card_with_its_figure():
    drawn = inference.figures.training_curve([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}])
    finding = Finding("a < b", "good", "As it should be.", {"k": 0.5, "more": [1]}, drawn)
    said = text_of(finding)
    assert "As it should be." in said
    assert "0.5" in said
    assert "data:image/png;base64," in finding._repr_html_()
    assert "img" not in replace(finding, figure=None)._repr_html_()


def test_structures_say_what_was_chosen():
    torch.manual_seed(0)
    rows = blobs()
    stack = models.LearntDepth.mlp(rows, width=4, max_depth=2)
    graph = models.StructuredNetwork(
        graph_of(3, 2), rows, structure=priors.GumbelSoftmax(), prior=None
    )
    for model, guide in ((stack, guides.CategoricalDepth), (graph, guides.MeanField)):
        fit = inference.fit(model, guide(model), rows, **SHORT)
        (structure,) = fit.structures
        for sentence in structure.sentences():
            assert sentence in text_of(structure)
            assert sentence in text_of(fit)


def test_data_with_whatever_name(weights):
    rows = replace(weights.data, name="<b>&", class_names=("a<", "b", "c"))
    assert "54" in text_of(rows)
    assert "Dataset <b>&" in text_of(rows)


def test_long_tables_are_short():
    found = card("t", {"one": True}, rows=[{"n": n} for n in range(100)])
    assert "and 88 more" in found
    assert ">True<" in found
