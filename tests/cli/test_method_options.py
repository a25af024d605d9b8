"""Options of methods check themselves by their types."""

import math

import pytest
import torch
from pyroccam import data, guides, models
from pyroccam.cli.methods import METHODS, find
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.shrinking.relevance import irrelevance
from torch import nn


def test_graves_cuts_by_signal_to_noise():
    """As the ratio of the densities of the posterior at 0 and at its mean has it."""
    net = nn.Linear(40, 30)
    rows = data.Dataset.from_tensors(*[torch.randn(9, n) for n in (40, 30)] * 2)
    model = models.BayesianNetwork(net, rows, prior=models.priors.SharedNormal())
    guide = guides.MeanField(model)
    q = guide.factor_of(".weight")
    with torch.no_grad():
        q.loc.normal_()
        q.log_scale.normal_()
        normal = torch.distributions.Normal(q.loc, q.log_scale.exp())
        ratio = (normal.log_prob(torch.zeros(())) - normal.log_prob(q.loc)).exp()
    values = irrelevance(model, guide)[""].values
    cut = values > find("graves").options["threshold"]
    assert 100 < cut.sum() < 1100
    assert torch.equal(cut, (q.loc / q.log_scale.exp()).abs() < 0.83)
    assert torch.equal(cut, ratio > math.exp(-(0.83**2) / 2))
    assert math.exp(-(0.83**2) / 2) == pytest.approx(0.709, abs=5e-4)


@pytest.mark.parametrize("name", METHODS)
def test_usual_options_are_of_their_types(name):
    method = METHODS[name]
    again = method.with_options(method.options)
    assert again.options == method.options


@pytest.mark.parametrize(("name", "option"), [
    ("ldn", {"hold": "x"}), ("ldn", {"rate": True}), ("ldn", {"threshold": 0}),
    ("ddn", {"depth": 2.5}), ("gnj", {"scales": "rows"}), ("gnj", {"narrow": [1.5]}),
    ("gnj", {"threshold": {"a": "b"}}), ("gnj", {"max_scale": "first:-1"}),
    ("gnj", {"threshold": float("nan")}), ("bayes", {"layers": [1]}), ("dropout", {"rate": 1.0}),
    ("sws", {"precision": [1.0]}), ("gnj", {"threshold": 10**400}), ("dns", {"c": {"0": 10**400}}),
    ("sws", {"tau": 10**400}), ("dns", {"c": None}), ("deep-compression", {"rounds": 10**18}),
    ("deep-compression", {"rounds": 0}), ("structure", {"random": -1}), ("bayes", {"gaurd": 1}),
    ("gnj", {"likelihood": "nothing"}),
])  # fmt: skip
def test_values_of_other_types_are_refused(name, option):
    with pytest.raises(PyroccamError, match=next(iter(option))):
        find(name).with_options(option)


def test_what_is_taken_is_as_it_was_given():
    chosen = find("gnj").with_options({"max_scale": "first:0.2", "narrow": [0.5], "layers": 1})
    assert (chosen.max_scale, chosen.narrow, chosen.layers) == ("first:0.2", [0.5], 1)
    assert type(find("sws").with_options({"tau": 1}).tau) is float
    assert find("gnj").narrow == ()
