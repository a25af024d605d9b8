"""What a stranger may pass to a fit: it runs, or says what is wrong in words of ours or theirs."""

import dataclasses
import traceback

import pytest
import torch
from fitting import QUICK, blobs, images, pair
from plain import network
from pyro.infer.autoguide import AutoNormal
from pyroccam import guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.models import priors
from torch import nn

ONE = {**QUICK, "epochs": 2}


def own(function, layer):
    """A network whose outputs a function of a layer and the inputs makes."""
    return network(lambda net, x: function(net.layer, x), layer=layer)


def bayesian(net, rows=None, **more):
    rows = blobs() if rows is None else rows
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    return inference.fit(model, guides.MeanField(model), rows, **{**ONE, **more})


def depth(stem=None, head=None, rows=None, **more):
    rows = blobs() if rows is None else rows
    stem = nn.Linear(2, 6) if stem is None else stem
    head = nn.Linear(6, 3) if head is None else head
    model = models.LearntDepth(stem, [nn.Linear(6, 6)], head, data=rows)
    return inference.fit(model, guides.CategoricalDepth(model), rows, **{**ONE, **more})


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
    few = {k: v for k, v in ONE.items() if k != "seed"}
    return inference.fit_repeats(build, [0, 1], **few, **more)


def one_pair(**more):
    rows = blobs()
    made = pair(rows)
    return repeats(lambda seed: (*made, rows), **more)


def one_stem(**more):
    rows, stem = blobs(), nn.Linear(2, 6)

    def build(seed):
        model = models.LearntDepth(nn.Identity(), [nn.Linear(6, 6)], nn.Linear(6, 3), data=rows)
        model.stack.stem = stem
        return model, guides.CategoricalDepth(model), rows

    return repeats(build, **more)


REFUSED = {
    "lazy": lambda: bayesian(nn.LazyLinear(3)),
    "meta": lambda: bayesian(nn.Linear(2, 3, device="meta")),
    "meta depth": lambda: depth(nn.Linear(2, 6, device="meta")),
    "meta data": lambda: fit_with(data=blobs().to("meta")),
    "no rows": lambda: fit_with(data=of_rows(0)),
    "one row of outputs": lambda: bayesian(own(lambda f, x: f(x)[:1], nn.Linear(2, 3))),
    "no row of outputs": lambda: bayesian(own(lambda f, x: f(x).sum(), nn.Linear(2, 3))),
    "complex": lambda: bayesian(own(lambda f, x: f(x) * 1j, nn.Linear(2, 3))),
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
    "track": lambda: fit_with(track=3),
    "guide of Pyro": lambda: fit_with(guide=AutoNormal(pair(blobs())[0])),
    "one pair": lambda: one_pair(),
    "one pair apart": lambda: one_pair(together=False),
    "one stem": lambda: one_stem(together=False),
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


def test_an_error_of_ones_own_convolutions_comes_through():
    """Which are tried in two orders of memory."""
    error = RuntimeError("of my own")

    def forward(net, x):
        if net.training:
            raise error
        return net.g(net.f(x).mean((2, 3)))

    with pytest.raises(RuntimeError) as found:
        bayesian(network(forward, f=nn.Conv2d(1, 2, 3), g=nn.Linear(2, 2)), rows=images())
    assert found.value is error
