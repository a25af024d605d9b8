"""Small pairs and quick fits that several test modules share."""

import os
import signal

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.inference.training import Trainer
from pyroccam.testing.guides import blobs
from torch import nn

QUICK = {"epochs": 8, "batch_size": 16, "lr": 0.02, "seed": 3, "progress": False, "device": "cpu"}
STEPS_PER_EPOCH, TOTAL = 4, 32  # 54 training rows in batches of 16


class Wobble(nn.Module):
    """A residual block of one's own whose dropout makes the state of the generator matter."""

    def __init__(self, width=6):
        super().__init__()
        self.f = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(width)
        )

    def forward(self, a):
        return a + self.f(a)


def images():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(70) % 2
    x = torch.randn(70, 1, 8, 8, generator=generator)
    x[:, 0, :4] += 2 * y[:, None, None] - 1
    return data.Dataset.from_tensors(x[:60], y[:60], x[60:], y[60:])


def pair(rows, update="closed", kind="own", width=6, prior=None, **options):
    """A model with the same initial weights at every call, and its guide."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        if kind == "conv":
            model = models.LearntDepth.conv(rows, width=4, inner=2, max_depth=2, prior=prior)
        else:
            blocks = [Wobble(width) for _ in range(3)]
            model = models.LearntDepth(
                nn.Linear(2, width), blocks, nn.Linear(width, 3), data=rows, prior=prior
            )
    return model, guides.CategoricalDepth(model, update=update, hold=0.25, **options)


def run(rows=None, settings=QUICK, update="closed", kind="own", **more):
    rows = (images() if kind == "conv" else blobs()) if rows is None else rows
    return inference.fit(*pair(rows, update, kind), rows, **{**settings, **more})


SHORT = {"epochs": 2, "batch_size": 18, "lr": 0.01, "progress": False, "device": "cpu"}


def fit_weights(
    prior, net=None, rows=None, guide=guides.MeanField, seed=0, random_biases=True, **settings
):
    """A short fit of random weights, of 2-8-3 units unless another network, or its maker, is
    given."""
    rows = blobs() if rows is None else rows
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)) if net is None else net
    net = net if isinstance(net, nn.Module) else net()
    model = models.BayesianNetwork(net, rows, prior=prior, random_biases=random_biases)
    return inference.fit(model, guide(model), rows, **{**SHORT, **settings})


def cut_net(data, zeros=0.0):
    """A plain network with a share of the weights of its first layer at zero."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(data.x_train.shape[1], 8), nn.ReLU(), nn.Linear(8, data.outputs))
    with torch.no_grad():
        net[0].weight.masked_fill_(torch.rand_like(net[0].weight) < zeros, 0.0)
    return net


def assert_same(a, b):
    """Two fits equal bit for bit: weights, buffers, q, history, choice."""
    for one, two in ((a.model, b.model), (a.guide, b.guide)):
        mine, theirs = one.state_dict(), two.state_dict()
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert torch.equal(value, theirs[key]), key
    assert repr(a.history) == repr(b.history)  # repr: NaN is equal to itself
    assert a.best_epoch == b.best_epoch
    if a.structure is not None:
        assert a.structure.to_json() == b.structure.to_json()


def spy(monkeypatch, name, before=None, after=None):
    """Do something before or after every call of a method of the trainer."""
    original = getattr(Trainer, name)

    def method(self, *args, **kwargs):
        if before is not None:
            before(self)
        out = original(self, *args, **kwargs)
        if after is not None:
            after(self)
        return out

    monkeypatch.setattr(Trainer, name, method)


def stopped(monkeypatch, begin, *, step=5, how=signal.SIGINT, said="after step"):
    """Begin a fit that is stopped by a signal after so many steps."""
    steps = []

    def count(trainer):
        steps.append(trainer.step_number)
        if len(steps) == step:
            os.kill(os.getpid(), how)

    with monkeypatch.context() as patch:
        spy(patch, "_step", after=count)
        with pytest.raises(inference.Interrupted, match=said):
            begin()
