"""Guides by the words of the command line."""

import math

import pytest
from pyroccam import guides
from pyroccam.data.errors import PyroccamError
from pyroccam.models import BayesianNetwork, priors
from random_weights import Rows, small_net


@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("mean-field:2", {}),
        ("dropout-layer:much", {}),
        ("delta", {"scales": "batch"}),
        ("delta", {"max_scale": 0.3}),
        ("means", {}),
    ],
)
def test_words_that_are_refused(word, options):
    model = BayesianNetwork(small_net(), Rows(3), prior=priors.Normal())
    with pytest.raises(PyroccamError):
        guides.parse(word, model, **options)


def test_words_and_what_goes_with_them():
    model = BayesianNetwork(small_net(), Rows(3), prior=priors.Normal())
    limited = guides.parse("mean-field", model, max_scale=0.3, scales="batch")
    assert limited.handler.scales == "batch"
    assert limited.part("factors")["0/weight"].max_log_scale == math.log(0.3)
    dropped = guides.parse("dropout-layer:2", model, max_scale=None)
    assert dropped.part("factors")["2/weight"].log_alpha.tolist() == 2.0
    assert isinstance(guides.parse("delta", model, scales="example"), guides.Delta)
