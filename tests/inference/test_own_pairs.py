"""Pyro pairs, guides and factors of a person's own, which say less of themselves than ours."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from fitting import blobs
from guide_case import network
from pyro.nn import PyroModule
from pyroccam import guides, inference, models
from pyroccam.inference.training.optimizer import parameter_groups
from pyroccam.models.layers.bayesian_layer import BayesianLayer
from torch import nn

ROWS = blobs()
QUICK = {"epochs": 2, "device": "cpu", "progress": False}


class PlainModel(PyroModule):
    """With attributes whose names mean something else to models of ours."""

    def __init__(self):
        super().__init__()
        self.size = ROWS.N
        self.lin = nn.Linear(2, 3)
        self.likelihood = None
        self.priors = nn.ModuleList()
        prior = models.priors.Normal(1.0, learn="weight")
        self.held = BayesianLayer("held", nn.Linear(3, 2), prior)

    def anneal(self):
        raise AssertionError("not ours to call")

    def forward(self, x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", self.size, subsample=x):
            return pyro.sample("y", dist.Categorical(logits=self.lin(x) + w), obs=y)


class PlainGuide(PyroModule):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(3))

    def forward(self, x, y=None):
        return pyro.sample("w", dist.Normal(self.loc, 0.1).to_event(1))


def test_a_plain_pair_is_stepped_and_its_evidence_taken():
    model, guide = PlainModel(), PlainGuide()
    settings = inference.Settings(weight_decay=0.1, lr=0.1)
    step = inference.TrainingStep([(model, guide)], settings, compile=False)
    step.warm_up(0.5)
    groups = parameter_groups(settings, model, guide)
    found = {group["name"]: group for group in groups}
    assert len(found["prior"]["params"]) == 2  # what the prior learns of weight and bias
    assert found["prior"]["weight_decay"] == 0.0
    assert found["weights"]["weight_decay"] == 0.1
    assert torch.isfinite(torch.tensor(inference.elbo.evidence(model, guide, ROWS).elbo))


def test_a_factor_that_is_none_is_refused():
    class OwnGuide(guides.NetworkGuide):
        def factor(self, layer, name, latent):
            return nn.Identity()

    guide = OwnGuide(network(ROWS), local=False, scales="example")
    with pytest.raises(ValueError, match=r"factor gives a Identity for '0\.weight'"):
        guide.build(network(ROWS))


def test_several_fits_are_anything_that_holds_them():
    model = network(ROWS)
    fit = inference.fit(model, guides.Delta(model), ROWS, **QUICK)
    ensemble = inference.posterior.EnsembleNetwork
    x = ROWS.x_test
    expected = ensemble([fit])(x)
    for fits in (fit, iter([fit]), {"a": fit}.values()):
        assert torch.equal(ensemble(fits)(x), expected)
