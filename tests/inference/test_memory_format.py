"""Images in the order of memory in which convolutions are fast, where the network allows it."""

import pytest
import torch
from pyroccam import data, guides, models
from pyroccam.inference import fit, fit_repeats
from pyroccam.models import priors
from torch import nn

pytestmark = pytest.mark.usefixtures("clean")

QUICK = {"epochs": 1, "batch_size": 20, "device": "cpu", "progress": False, "compile": False}


class Views(nn.Module):
    """Takes what a convolution gives for contiguous, as many a network does."""

    def __init__(self, view):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 3)
        self.out, self.view = nn.Linear(16, 2), view

    def forward(self, x):
        x = self.second(self.first(x).relu())
        return self.out(x.view(len(x), -1) if self.view else x.flatten(1))


def images(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 2, 6, 6, generator=generator)
    y = (x.mean((1, 2, 3)) > 0).long()
    return data.Dataset.from_tensors(x[:40], y[:40], x[40:], y[40:], task="classification")


def pair(rows, view, layers, seed=0):
    torch.manual_seed(seed)
    model = models.BayesianNetwork(Views(view), rows, prior=priors.Normal(), layers=layers)
    return model, guides.MeanField(model)


def last(rows):
    x = rows.x_train
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


@pytest.mark.parametrize("layers", [None, ["out"], ["second"]])
def test_a_network_that_views_its_images(layers):
    rows = images()
    free = fit(*pair(rows, False, layers), rows, **QUICK)
    bound = fit(*pair(rows, True, layers), rows, **QUICK)
    assert last(free.data)
    assert bound.data.x_train.is_contiguous()
    assert rows.x_train.is_contiguous()  # what a person gave stays as it was
    # Noise for images follows their memory: it is the same numbers only behind them.
    close = 1e-4 if layers == ["out"] else 0.05
    assert bound.evaluate()["nll"] == pytest.approx(free.evaluate()["nll"], abs=close)
    assert bound.history[-1]["loss"] == pytest.approx(free.history[-1]["loss"], rel=close)
    net = bound.posterior.mean_network()
    assert net(rows.x_test).shape == (20, 2)


@pytest.mark.parametrize("view", [False, True])
def test_repeats_go_on_sharing_their_images(view):
    rows = images()
    found = fit_repeats(lambda seed: (*pair(rows, view, None, seed), rows), [0, 1], **QUICK)
    one, other = found.fits
    assert one.data is other.data
    assert last(one.data) is not view


def test_vectors_and_networks_without_convolutions_stay_as_they_are():
    rows = images()
    net = nn.Sequential(nn.Flatten(), nn.Linear(72, 2))
    model = models.BayesianNetwork(net, rows, prior=priors.Normal())
    assert not last(fit(model, guides.MeanField(model), rows, **QUICK).data)
    flat = rows.flattened()
    assert flat.laid_out(torch.channels_last) is flat


def test_other_errors_are_told_as_they_are():
    rows = images()
    model, guide = pair(rows, False, ["second"])
    model.part("net").out.bias = nn.Parameter(torch.zeros(7))
    with pytest.raises(RuntimeError, match="size of the tensor"):
        fit(model, guide, rows, **QUICK)
