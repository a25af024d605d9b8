"""Priors over depth."""

import math

import pytest
import torch
from pyroccam import models
from pyroccam.data import PyroccamError
from pyroccam.models import priors

PRIORS = [  # and what they are in proportion to, at each depth
    (priors.Geometric(), lambda d: 0.85**d),
    (priors.Geometric(0.3), lambda d: 0.3**d),
    (priors.Uniform(), lambda d: 1.0),
    (priors.Poisson(0.5), lambda d: 0.5**d / math.factorial(d)),
    (priors.Poisson(20.0), lambda d: 20.0**d / math.factorial(d)),
    (priors.Vector([1, 2, 3, 4, 1e-12]), lambda d: [1, 2, 3, 4, 1e-12][d]),
    (priors.Vector(torch.tensor([0.1, 0.2, 0.3, 0.1, 0.3])), lambda d: [1, 2, 3, 1, 3][d]),
    (priors.Cost(0.3), lambda d: math.exp(-0.3 * d)),
    (priors.Cost(40.0), lambda d: math.exp(-40.0 * d)),
]


@pytest.mark.parametrize(("prior", "weight"), PRIORS)
def test_probabilities(prior, weight):
    weights = torch.tensor([weight(d) for d in range(5)], dtype=torch.float64)
    expected = (weights / weights.sum()).log().float()
    torch.testing.assert_close(prior.log_probs(5), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "prior"),
    [
        ("geometric", priors.Geometric(0.85)),
        ("geometric:0.5", priors.Geometric(0.5)),
        (" Uniform ", priors.Uniform()),
        ("poisson:5", priors.Poisson(5.0)),
        ("cost:100", priors.Cost(100.0)),
        ("0.1,0.2,0.7", priors.Vector([0.1, 0.2, 0.7])),
    ],
)
def test_parse(text, prior):
    assert priors.parse(text) == prior


class Deepest:
    """A prior of one's own."""

    def log_probs(self, depths):
        return torch.log_softmax(torch.arange(depths) * 2.0, 0)


class Data:
    N, task, outputs, input_shape = 10, "classification", 2, (2,)


def test_a_prior_of_ones_own_and_what_is_none():
    spec = models.networks.residual_mlp((2,), 2, width=3, max_depth=2)
    model = models.LearntDepth(spec, data=Data, prior=Deepest())
    torch.testing.assert_close(model.log_prior, Deepest().log_probs(3))
    for wrong in (0.85, priors.Vector([0.5, 0.5])):
        with pytest.raises(PyroccamError):
            models.LearntDepth(spec, data=Data, prior=wrong)
