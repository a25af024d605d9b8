"""What decides how the steps of a training run."""

import pytest
import torch
from fitting import blobs, images, pair
from pyroccam import guides, models
from pyroccam.inference.compilation import inductor
from pyroccam.inference.compilation.graphs import graph_of
from pyroccam.inference.compilation.worth import pays_from
from pyroccam.inference.training.replicate import Replicate
from pyroccam.inference.training.settings import Settings
from pyroccam.inference.training.step import CompileFallback
from pyroccam.inference.training.trainer import Trainer
from stepping import batches, build_fixed, linear, step_of
from torch import nn
from uncompiled import leave_uncompiled


def engine_of(pair, rows, steps, **settings):
    """Of one batch an epoch."""
    settings = Settings.of({"epochs": None, "steps": steps, "batch_size": rows.N, **settings})
    return Trainer([Replicate(*pair, rows, 0)], settings)._engine()


def dense(rows):
    net = nn.Sequential(nn.Flatten(), nn.Linear(rows.x_train[0].numel(), rows.outputs))
    model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(1.0))
    return model, guides.MeanField(model)


@pytest.mark.parametrize(("steps", "asked", "found"), [
    (299, None, False), (300, None, None), (5000, "graph", "graph"), (5000, False, False),
    (10, True, True),
])  # fmt: skip
def test_steps_are_traced_where_that_pays(steps, asked, found):
    rows = blobs()
    ahead = {rows.N: steps} if found is not False else {}
    assert engine_of(dense(rows), rows, steps, compile=asked) == (found, ahead)


def test_convolutions_that_are_not_random_run_as_they_are_on_a_cpu():
    rows = images()
    assert engine_of(pair(rows, kind="conv"), rows, 5000) == (False, {})
    assert engine_of(pair(rows, kind="conv"), rows, 5000, compile=True)[0] is True


def test_a_last_smaller_batch_is_traced_if_it_comes_often_enough():
    rows = blobs()
    for epochs, sizes in ((299, {16}), (300, {16, rows.N % 16})):
        one = Replicate(*dense(rows), rows, 0)
        settings = Settings.of({"epochs": epochs, "batch_size": 16})
        found, steps = Trainer([one], settings)._engine()
        assert found is None
        assert steps.keys() == sizes


# -- compiled where that pays -----------------------------------------------------------------


@pytest.mark.parametrize("more", [-1, 0])
def test_a_graph_is_compiled_from_the_steps_on_from_which_it_pays(more, monkeypatch):
    graphs = leave_uncompiled(monkeypatch)
    x, y = batches(count=1)[0]
    first = step_of(build_fixed(linear), compile=None, steps={len(x): 1})
    loss = float(first(x, y))
    assert not graphs
    assert first.describe()["kind"] == "graph"
    assert first.describe()["pays_from"] == first.pays_from > 1000
    again = step_of(build_fixed(linear), compile=None, steps={len(x): first.pays_from + more})
    assert float(again(x, y)) == pytest.approx(loss)
    assert bool(graphs) is (more == 0)
    assert again.describe()["kind"] == ("compiled" if graphs else "graph")


def test_it_pays_sooner_for_more_equal_blocks_and_for_larger_tensors():
    def f(x, *weights):
        for weight in weights:
            x = (x @ weight).tanh().square().sub(x).exp().mul(x).sin().add(1.0)
        return x

    def least(depth, width):
        inputs = [torch.zeros(4, width), *[torch.zeros(width, width)] * depth]
        return pays_from(graph_of(f, *inputs))

    assert least(20, 8) < least(5, 8) / 3
    assert least(5, 800) < least(5, 8)
    assert pays_from(graph_of(lambda x: x, torch.zeros(2))) == 0


def test_what_is_said_is_how_the_steps_ran(monkeypatch):
    """Before the first, of sizes that are not traced, and after a compiler that fails."""
    (x, y), graphs = batches(count=1)[0], leave_uncompiled(monkeypatch)
    step = step_of(build_fixed(linear), compile=True, steps={len(x): 1000, 9: 500})
    assert step.describe()["kind"] == "eager"
    step(x[:5], y[:5])
    assert step.describe()["kind"] == "eager"
    step(x, y)
    assert step.describe()["kind"] == "compiled"
    assert len(graphs) == 1

    def broken(graph, layouts):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(inductor, "compiled", broken)
    other = step_of(build_fixed(linear), compile=True, steps={len(x): 1000})
    with pytest.warns(CompileFallback, match="no compiler"):
        other(x, y)
    other(x[:9], y[:9])
    assert other.describe()["kind"] == "graph"
    assert len(other._graphs) == 1  # the other size is not traced, as was said
