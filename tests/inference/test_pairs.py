"""What may be passed to a fit, and what is refused in words: odd pairs, one's own, copies."""

import copy
import dataclasses
import pickle
import traceback

import pyro
import pyro.distributions as dist
import pytest
import torch
from alternatives import graph
from fitting import QUICK, blobs, pair
from guide_case import CASES
from plain import network
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.training.optimizer import parameter_groups
from pyroccam.models import BayesianNetwork, LocalReparameterization, priors
from pyroccam.models.layers import BayesianLayer
from random_weights import small_net, table
from torch import nn

ONE = {**QUICK, "epochs": 2}
FEW = {k: v for k, v in ONE.items() if k != "seed"}
OF_MODELS = {name: case for name, case in CASES.items() if case.pair()[1].latents()}


def own(function, layer):
    """A network whose outputs a function of a layer and the inputs makes."""
    return network(lambda net, x: function(net.layer, x), layer=layer)


def bayesian(net, rows=None, **more):
    rows = blobs() if rows is None else rows
    model = BayesianNetwork(net, rows, prior=priors.Normal())
    return inference.fit(model, guides.MeanField(model), rows, **{**ONE, **more})


def depth_of(stem, rows=None):
    rows = blobs() if rows is None else rows
    model = models.LearntDepth(stem, [nn.Linear(6, 6)], nn.Linear(6, 3), data=rows)
    return model, guides.CategoricalDepth(model), rows


def depth(stem=None, rows=None):
    return inference.fit(*depth_of(nn.Linear(2, 6) if stem is None else stem, rows), **ONE)


def filled(layer, value):
    nn.init.constant_(layer.weight, value)
    return layer


def of_rows(count):
    rows = blobs()
    return dataclasses.replace(rows, x_train=rows.x_train[:count], y_train=rows.y_train[:count])


def fit_with(model=None, guide=None, data=None, **more):
    rows = blobs()
    made = pair(rows)
    parts = [given or own for given, own in zip((model, guide, data), (*made, rows), strict=True)]
    return inference.fit(*parts, **{**ONE, **more})


def repeats(build, **more):
    return inference.fit_repeats(build, [0, 1], **FEW, **more)


KEPT = *pair(blobs()), blobs()


REFUSED = {
    "lazy": lambda: bayesian(nn.LazyLinear(3)),
    "meta": lambda: bayesian(nn.Linear(2, 3, device="meta")),
    "meta depth": lambda: depth(nn.Linear(2, 6, device="meta")),
    "meta data": lambda: fit_with(data=blobs().to("meta")),
    "no rows": lambda: fit_with(data=of_rows(0)),
    "one row of outputs": lambda: bayesian(own(lambda f, x: f(x)[:1], nn.Linear(2, 3))),
    "no row of outputs": lambda: bayesian(own(lambda f, x: f(x).sum(), nn.Linear(2, 3))),
    "complex": lambda: bayesian(own(lambda f, x: f(x) * 1j, nn.Linear(2, 3))),
    "no tensor": lambda: bayesian(own(lambda f, x: {"scores": f(x)}, nn.Linear(2, 3))),
    "whole numbers": lambda: bayesian(own(lambda f, x: f(x).long(), nn.Linear(2, 3))),
    "NaN outputs": lambda: bayesian(own(lambda f, x: f(x) * float("nan"), nn.Linear(2, 3))),
    "NaN weights": lambda: depth(filled(nn.Linear(2, 6), float("nan"))),
    "model twice": lambda: fit_with(guide=pair(blobs())[0]),
    "swapped": lambda: fit_with(*pair(blobs())[::-1]),
    "guide class": lambda: fit_with(guide=guides.CategoricalDepth),
    "model class": lambda: fit_with(models.LearntDepth),
    "network": lambda: fit_with(nn.Linear(2, 3)),
    "tensors": lambda: fit_with(data=(torch.ones(3), torch.ones(3))),
    "tensor": lambda: fit_with(data=torch.ones(1)),
    "name": lambda: fit_with(data="digits"),
    "guide of Pyro": lambda: fit_with(guide=AutoNormal(pair(blobs())[0])),
    "one pair": lambda: repeats(lambda seed: KEPT),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_fitted_is_refused_in_words(which):
    with pytest.raises(PyroccamError) as error:
        REFUSED[which]()
    assert str(error.value).count("\n") < 2


RUN = {
    "no validation rows, weights": lambda: bayesian(nn.Linear(2, 3), rows=blobs().all_rows()),
    "one row": lambda: depth(rows=of_rows(1)),
    "scripted": lambda: depth(torch.jit.script(nn.Sequential(nn.Linear(2, 6)))),
    "compiled": lambda: depth(torch.compile(nn.Linear(2, 6), backend="eager")),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("which", RUN)
def test_what_is_odd_and_runs(which):
    fit = RUN[which]()
    assert len(fit.history) == 2
    assert torch.isfinite(fit.predict(fit.data.x_test)).all()


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
@pytest.mark.parametrize(
    "error", [Custom(3, 4), RuntimeError("of my own"), KeyError("mine"), ValueError("as it is")],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_an_error_of_ones_own_network_comes_through(error, after):
    """As it is, with its traceback, and without the words of a library in between."""
    with pytest.raises(type(error)) as found:
        depth(Raises(error, after))
    assert found.value is error
    assert error.__cause__ is None
    text = "".join(traceback.format_exception(error))
    assert "raise self.error" in text
    assert "Trace Shapes" not in text


# -- of one's own ----------------------------------------------------------------------------


class PlainModel(PyroModule):
    """With attributes whose names mean something else to models of ours."""

    def __init__(self):
        super().__init__()
        self.size = blobs().N
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
    assert torch.isfinite(torch.tensor(inference.elbo.evidence(model, guide, blobs()).elbo))


def test_a_factor_that_is_none_is_refused():
    class OwnGuide(guides.NetworkGuide):
        def factor(self, layer, name, latent):
            return nn.Identity()

    model = BayesianNetwork(small_net(), table(), prior=priors.Normal())
    with pytest.raises(PyroccamError, match=r"'0\.weight'"):
        OwnGuide(model, local=False, scales="example").build(model)


# -- copies -----------------------------------------------------------------------------------


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
    twice = pickle.loads(pickle.dumps(case.model(rows)))  # and what a worker process gives back
    for one in (copied, copy.deepcopy(copied), (twice, case.guide(twice))):
        inference.fit(*one, rows, **{**ONE, "epochs": 1})


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
    model = BayesianNetwork(small_net(), rows, prior=priors.Normal())
    wide = BayesianNetwork(small_net(2, width=5), rows, prior=priors.Normal())
    with pytest.raises(ValueError, match=r"handler for another network \(it differs at site '0"):
        guides.MeanField(model, local=LocalReparameterization(wide))
    guides.MeanField(model, local=LocalReparameterization(copy.deepcopy(model), "batch"))
