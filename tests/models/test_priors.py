import math

import pytest
import torch
from pyroccam import models
from pyroccam.data.errors import PyroccamError
from pyroccam.models import priors

ALL = [
    priors.Geometric(),
    priors.Geometric(0.3),
    priors.Geometric(1.0),
    priors.Uniform(),
    priors.Poisson(0.5),
    priors.Poisson(7.0),
    priors.Vector([1, 2, 3, 4, 5]),
]


@pytest.mark.parametrize("prior", ALL, ids=str)
def test_normalised_and_of_the_models_type(prior):
    log_probs = prior.log_probs(5)
    assert log_probs.shape == (5,)
    assert log_probs.dtype == torch.float32
    assert float(log_probs.double().exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert isinstance(prior, priors.DepthPrior)


@pytest.mark.parametrize("rate", [0.85, 0.3, 1.0])
def test_geometric_by_its_definition(rate):
    weights = [rate ** (1 + d) for d in range(31)]  # as the authors wrote it
    expected = torch.tensor([w / sum(weights) for w in weights])
    log_probs = priors.Geometric(rate).log_probs(31)
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-5, atol=0)
    ratios = log_probs.double().diff().exp()
    torch.testing.assert_close(ratios, torch.full((30,), rate).double(), rtol=1e-5, atol=0)


def test_uniform():
    assert priors.Uniform().log_probs(4).exp().tolist() == pytest.approx([0.25] * 4)
    torch.testing.assert_close(priors.Geometric(1.0).log_probs(6), priors.Uniform().log_probs(6))


@pytest.mark.parametrize("mean", [0.5, 3.0, 20.0])
def test_poisson_is_torchs_poisson_conditioned_on_the_depths_there_are(mean):
    d = torch.arange(12, dtype=torch.float64)
    full = torch.distributions.Poisson(torch.tensor(mean, dtype=torch.float64)).log_prob(d)
    expected = (full - full.exp().sum().log()).float()
    torch.testing.assert_close(priors.Poisson(mean).log_probs(12), expected, rtol=1e-5, atol=1e-6)


def test_vector_is_normalised_and_takes_tensors():
    expected = torch.tensor([0.1, 0.2, 0.7])
    torch.testing.assert_close(priors.Vector([1, 2, 7]).log_probs(3).exp(), expected)
    torch.testing.assert_close(priors.Vector(expected).log_probs(3).exp(), expected)
    tiny = priors.Vector([1e-12, 1.0]).log_probs(2)
    assert float(tiny[0]) == pytest.approx(math.log(1e-12), rel=1e-6)


@pytest.mark.parametrize("text", ["beta:2", "poisson", "uniform:3", "", "geometric:x", "0.1,0,0.9"])
def test_words_that_are_refused(text):
    with pytest.raises(PyroccamError):
        priors.parse(text)


def test_a_vector_of_another_depth():
    with pytest.raises(PyroccamError):
        priors.Vector([0.5, 0.5]).log_probs(3)


@pytest.mark.parametrize(
    ("text", "prior"),
    [
        ("geometric", priors.Geometric(0.85)),
        ("geometric:0.5", priors.Geometric(0.5)),
        (" Uniform ", priors.Uniform()),
        ("poisson:5", priors.Poisson(5.0)),
        ("0.1,0.2,0.7", priors.Vector([0.1, 0.2, 0.7])),
    ],
)
def test_parse(text, prior):
    assert priors.parse(text) == prior


def test_a_prior_of_ones_own_and_what_is_none():
    class Deepest:
        def log_probs(self, depths):
            return torch.log_softmax(torch.arange(depths) * 2.0, 0)

    spec = models.networks.residual_mlp((2,), 2, width=3, max_depth=2)

    class Data:
        N, task, outputs, input_shape = 10, "classification", 2, (2,)

    model = models.LearntDepth(spec, data=Data, prior=Deepest())
    torch.testing.assert_close(model.log_prior, Deepest().log_probs(3))
    with pytest.raises(PyroccamError):
        models.LearntDepth(spec, data=Data, prior=0.85)
    with pytest.raises(PyroccamError):
        models.LearntDepth(spec, data=Data, prior=priors.Vector([0.5, 0.5]))


@pytest.mark.parametrize("nats", [0.0, 0.3, 40.0])
def test_a_block_costs_its_nats(nats):
    found = priors.Cost(nats).log_probs(5).double()
    torch.testing.assert_close(found.diff(), torch.full((4,), -nats).double())
    assert float(found.logsumexp(0)) == pytest.approx(0.0, abs=1e-6)
