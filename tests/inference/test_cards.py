"""What a notebook shows of fits, small networks, structures and data."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from alternatives import graph as graph_of
from fitting import SHORT, blobs, fit_weights
from pyroccam import guides, inference, models
from pyroccam.data import card
from pyroccam.models import priors


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
