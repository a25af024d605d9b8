"""Whether a prior or the data move a posterior, where it is known which."""

import pytest
import torch
from known_regression import regression
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.diagnostics import prior_sensitivity
from torch import nn

DRAWS = 4000


def test_a_strong_prior_is_told_and_a_weak_one_is_not():
    g = torch.Generator().manual_seed(0)
    x = torch.linalg.qr(torch.randn(60, 2, generator=g))[0]
    weak = regression(x * 60, x.sum(1, keepdim=True) * 60)  # a weight known to 0.01 of its prior
    found = prior_sensitivity(weak, DRAWS, weights=True)
    assert (found.moved(), found.finding().verdict) == ({"0.weight": 0}, "good")
    strong = regression(x, 8.0 * x.sum(1, keepdim=True))
    found = prior_sensitivity(strong, DRAWS, weights=True)
    assert found.moved() == {"0.weight": 2}
    assert float(found.likelihood["0.weight"].min()) > 0.05
    assert found.finding().verdict == "doubtful"


def test_a_latent_that_the_data_do_not_touch():
    """An input that is always zero: its scale is the prior's."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=g)
    x[:, 1] = 0.0
    y = (x[:, 0] > 0).long()
    d = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)
    prior = models.priors.GroupHalfCauchy(1.0)
    torch.manual_seed(0)
    model = models.BayesianNetwork(nn.Linear(2, 2), d, prior=prior)
    settings = {"steps": 100, "lr": 0.05, "batch_size": 50, "progress": False}
    found = prior_sensitivity(inference.fit(model, guides.MeanField(model), d, **settings), DRAWS)
    (name,) = [k for k, v in found.prior.items() if v.shape == (2,)]
    assert found.likelihood[name][1] < 0.05 < found.prior[name][1]
    assert found.likelihood[name][1] < found.likelihood[name][0]
    assert "do not feel the data" in found.finding().text


def test_what_cannot_be_scaled():
    spirals = data.load("spirals", seed=0)
    model = models.BayesianNetwork(nn.Linear(2, 2), spirals, prior=models.priors.Normal(1.0))
    point, normal = (
        inference.fit(model, guide(model), spirals, epochs=1, progress=False)
        for guide in (guides.Delta, guides.MeanField)
    )
    with pytest.raises(PyroccamError):
        prior_sensitivity(point, 10, weights=True)
    assert {*prior_sensitivity(normal, 10).prior} == {"weight_rms", "bias_rms"}
    part = prior_sensitivity(normal, 100, weights=True, rows=5)
    assert part.likelihood == {}
    assert part.finding().figure is None
