"""What decides how the steps of a training run."""

import pytest
from fitting import blobs, images, pair
from pyroccam import guides, models
from pyroccam.inference.training.replicate import Replicate
from pyroccam.inference.training.settings import Settings
from pyroccam.inference.training.trainer import Trainer
from torch import nn


def engine_of(pair, rows, steps, **settings):
    """Of one batch an epoch."""
    settings = Settings.of({"epochs": None, "steps": steps, "batch_size": rows.N, **settings})
    return Trainer([Replicate(*pair, rows, 0)], settings)._engine()


def dense(rows):
    net = nn.Sequential(nn.Flatten(), nn.Linear(rows.x_train[0].numel(), rows.outputs))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
    return model, guides.MeanField(model)


@pytest.mark.parametrize(("steps", "compile", "kind"), [
    (299, None, False), (300, None, "graph"), (5000, None, True), (5000, "graph", "graph"),
    (5000, False, False),
])  # fmt: skip
def test_steps_are_traced_or_compiled_where_that_pays(steps, compile, kind):
    rows = blobs()
    found, sizes = engine_of(dense(rows), rows, steps, compile=compile)
    assert found == kind
    assert sizes == ({rows.N} if kind else set())


def test_convolutions_that_are_not_random_run_as_they_are_on_a_cpu():
    rows = images()
    assert engine_of(pair(rows, kind="conv"), rows, 5000) == (False, set())
    assert engine_of(pair(rows, kind="conv"), rows, 5000, compile=True)[0] is True


def test_a_last_smaller_batch_is_traced_if_it_comes_often_enough():
    rows = blobs()
    for epochs, sizes in ((299, {16}), (300, {16, rows.N % 16})):
        one = Replicate(*dense(rows), rows, 0)
        settings = Settings.of({"epochs": epochs, "batch_size": 16})
        assert Trainer([one], settings)._engine() == ("graph", sizes)
