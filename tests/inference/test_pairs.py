"""Which guides go with which models: those made from them, and copies of both."""

import copy
import pickle

import pytest
import torch
from alternatives import graph
from bayesian import QUICK
from guide_case import CASES
from pyroccam import guides, inference, models
from pyroccam.models import BayesianNetwork, LocalReparameterization, priors
from random_weights import small_net, table

ONE = {**QUICK, "epochs": 1}
OF_MODELS = {name: case for name, case in CASES.items() if case.pair()[1].latents()}


def network(rows, seed=0):
    return BayesianNetwork(small_net(2, seed=seed), rows, prior=priors.Normal())


@pytest.mark.parametrize("case", OF_MODELS.values(), ids=OF_MODELS)
def test_a_guide_of_another_network_of_equal_shapes_is_refused(case):
    model, _, rows = case.pair()
    other = case.guide(case.model(rows, 1))
    before = copy.deepcopy(model.state_dict())
    message = rf"guide was made from another {type(model).__name__}.*copy\.deepcopy"
    with pytest.raises(ValueError, match=message):
        inference.fit(model, other, rows, **ONE)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("case", OF_MODELS.values(), ids=OF_MODELS)
def test_copies_of_both_go_together(case):
    model, guide, rows = case.pair()
    copied = copy.deepcopy((model, guide))
    for one in ((model, guide), copied, copy.deepcopy(copied), (model, case.guide(model))):
        inference.fit(*one, rows, **ONE)
    twice = pickle.loads(pickle.dumps(case.model(rows)))  # and what a worker process gives back
    inference.fit(twice, case.guide(twice), rows, **ONE)


def test_weights_that_are_loaded_do_not_change_where_a_guide_comes_from():
    rows = table()
    model, other = network(rows), network(rows, seed=1)
    guide = guides.MeanField(model)
    model.load_state_dict(other.state_dict())
    guide.load_state_dict(guides.MeanField(other).state_dict())
    inference.fit(model, guide, rows, **ONE)


def test_a_copy_of_one_of_the_two_whose_temperature_is_shared():
    """The temperature of the guide would stay, while that of the model falls."""
    rows = table("regression")
    structure = priors.GumbelSoftmax(temperature=models.Annealed(2.0, 0.5))
    model = models.StructuredNetwork(graph(), rows, structure=structure)
    guide = guides.MeanField(model)
    with pytest.raises(ValueError, match="made from another StructuredNetwork"):
        inference.fit(copy.deepcopy(model), guide, rows, **ONE)
    inference.fit(*copy.deepcopy((model, guide)), rows, **ONE)


def test_a_handler_of_another_network():
    rows = table()
    model = network(rows)
    wide = BayesianNetwork(small_net(2, width=5), rows, prior=priors.Normal())
    with pytest.raises(ValueError, match=r"handler for another network \(it differs at site '0"):
        guides.MeanField(model, local=LocalReparameterization(wide))
    guides.MeanField(model, local=LocalReparameterization(copy.deepcopy(model), "batch"))
