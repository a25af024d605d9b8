"""What may be passed to a fit, and what is refused in words: odd pairs, one's own, copies."""

import copy
import dataclasses
import traceback

import pytest
from alternatives import graph
from fitting import QUICK, blobs, pair
from plain import network
from pyro.infer.autoguide import AutoNormal
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.models import BayesianNetwork, LocalReparameterization, priors
from random_weights import small_net, table
from torch import nn

ONE = {**QUICK, "epochs": 2}


def bayesian(outputs):
    """A fit of a network whose outputs are made of those of a layer."""
    net = network(lambda net, x: outputs(net.layer(x)), layer=nn.Linear(2, 3))
    model = BayesianNetwork(net, blobs(), prior=priors.Normal())
    return inference.fit(model, guides.MeanField(model), blobs(), **ONE)


def without_rows():
    rows = blobs()
    rows = dataclasses.replace(rows, x_train=rows.x_train[:0], y_train=rows.y_train[:0])
    return inference.fit(*pair(rows), rows, **ONE)


def with_autoguide():
    model = pair(blobs())[0]
    return inference.fit(model, AutoNormal(model), blobs(), **ONE)


def one_pair_twice():
    kept = *pair(blobs()), blobs()
    return inference.fit_repeats(
        lambda seed: kept, [0, 1], **{k: ONE[k] for k in ONE if k != "seed"}
    )


REFUSED = {  # what would go on with other numbers than were meant
    "no rows": without_rows,
    "one row of outputs": lambda: bayesian(lambda out: out[:1]),
    "no row of outputs": lambda: bayesian(lambda out: out.sum()),
    "whole numbers": lambda: bayesian(lambda out: out.long()),
    "guide of Pyro": with_autoguide,
    "one pair": one_pair_twice,
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_fitted_is_refused(which):
    with pytest.raises(PyroccamError):
        REFUSED[which]()


# -- errors of a network's own ----------------------------------------------------------------


class Custom(ValueError):
    """Made of two arguments: whoever makes it anew from its message fails."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a = a


class Raises(nn.Module):
    def __init__(self, error, after=0):
        super().__init__()
        self.f, self.error, self.left = nn.Linear(2, 6), lambda: error, after

    def forward(self, x):
        if self.training:
            self.left -= 1
            if self.left < 0:
                raise self.error()
        return self.f(x)


@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("error", [Custom(3, 4), RuntimeError("of my own")])
def test_an_error_of_ones_own_network_comes_through(error, after):
    """As it is, with its traceback, and without the words of a library in between."""
    rows, stem = blobs(), Raises(error, after)
    model = models.LearntDepth(stem, [nn.Linear(6, 6)], nn.Linear(6, 3), data=rows)
    with pytest.raises(type(error)) as found:
        inference.fit(model, guides.CategoricalDepth(model), rows, **ONE)
    assert found.value is error
    assert error.__cause__ is None
    text = "".join(traceback.format_exception(error))
    assert "raise self.error" in text
    assert "Trace Shapes" not in text


# -- copies -----------------------------------------------------------------------------------


def test_a_copy_of_one_of_the_two_whose_temperature_is_shared():
    """The temperature of the guide would stay, while that of the model falls."""
    rows = table("regression")
    structure = priors.GumbelSoftmax(temperature=models.Annealed(2.0, 0.5))
    model = models.StructuredNetwork(graph(), rows, structure=structure)
    guide = guides.MeanField(model)
    with pytest.raises(PyroccamError):
        inference.fit(copy.deepcopy(model), guide, rows, **ONE)
    inference.fit(*copy.deepcopy((model, guide)), rows, **ONE)


def test_a_handler_of_another_network():
    rows = table()
    model = BayesianNetwork(small_net(), rows, prior=priors.Normal())
    wide = BayesianNetwork(small_net(2, width=5), rows, prior=priors.Normal())
    with pytest.raises(PyroccamError):
        guides.MeanField(model, local=LocalReparameterization(wide))
    guides.MeanField(model, local=LocalReparameterization(copy.deepcopy(model), "batch"))
