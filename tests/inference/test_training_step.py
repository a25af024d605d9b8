"""Which weights a fit ends with, how its steps go, and the settings of both."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from fitting import QUICK, assert_same, blobs, pair, run, spy
from plain import network
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.training import Replicate, Settings, Trainer
from pyroccam.inference.training.optimizer import make_optimizer, parameter_groups
from pyroccam.inference.training.settings import learning_rate_factor
from torch import nn


def trainer_of(rows, **settings):
    return Trainer([Replicate(*pair(rows), rows, 0)], Settings(**settings))


def test_the_test_rows_are_never_looked_at():
    rows = blobs()
    x, y = torch.full_like(rows.x_test, float("nan")), torch.full_like(rows.y_test, -99)
    assert_same(run(rows), run(dataclasses.replace(rows, x_test=x, y_test=y)))


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_the_checkpoint_is_the_best_on_validation_rows_once_q_has_settled(update):
    found = run(update=update, epochs=16, lr=0.1)
    settled = [row for row in found.history if row["epoch"] / 16 >= found.guide.schedule.settled]
    assert (len(found.history), len(settled)) == (16, 7)  # hold 0.25, settled at 0.625
    best = min(settled, key=lambda row: row["val_nll"])
    assert found.best_epoch == best["epoch"]
    with torch.no_grad():
        x, y = found.data.split("val")
        outputs = found.model.stack.outputs(x)
        p = (found.guide.probs[:, None] * outputs.softmax(-1)[:, torch.arange(len(y)), y]).sum(0)
    assert best["val_nll"] == pytest.approx(-float(p.log().mean()), abs=1e-5)
    assert not found.model.training


def test_validation_that_is_not_finite_is_never_the_best(monkeypatch):
    """A NaN compares as false with everything: it must neither be chosen nor stay chosen."""
    nlls = iter([float("nan"), 0.5, float("nan"), 0.4, float("inf")])
    now = {}
    rows = blobs()
    model = pair(rows)[0].at_depth(1)

    def log_predictive(self, outputs, log_weights, y):
        return torch.full((len(y),), -now["nll"])

    monkeypatch.setattr(type(model.likelihood), "log_predictive", log_predictive)
    spy(monkeypatch, "_evaluate", before=lambda t: now.update(nll=next(nlls)))
    found = inference.fit(model, guides.Deterministic(model), rows, **{**QUICK, "epochs": 5})
    assert found.best_epoch == 4


def test_without_validation_rows_the_training_loss_decides():
    found = run(blobs(val_fraction=0))
    assert all(math.isnan(row["val_nll"]) for row in found.history)
    settled = [row for row in found.history if row["epoch"] / 8 >= found.guide.schedule.settled]
    assert found.best_epoch == min(settled, key=lambda row: row["loss"])["epoch"]


def still_pair(rows):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(2)]
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    return model, guides.CategoricalDepth(model, hold=0.25)


STILL = {**QUICK, "lr": 1e-30, "weight_decay": 0.0}


def test_early_stopping_counts_evaluations_that_are_no_better():
    rows = blobs()
    model, guide = still_pair(rows)
    frozen = {**STILL, "epochs": 20, "patience": 2}
    fixed = model.at_depth(1)
    found = inference.fit(fixed, guides.Deterministic(fixed), rows, **frozen)
    assert [row["epoch"] for row in found.history] == [1.0, 2.0, 3.0]
    assert found.best_epoch == 1
    found = inference.fit(model, guide, rows, **frozen)
    # settled at 0.625 of 20 epochs: chosen at 13, no better at 14 and 15
    assert (found.best_epoch, len(found.history)) == (13, 15)


def test_reported_losses_are_the_negative_elbo_for_each_observation():
    rows = blobs()
    model, guide = still_pair(rows)
    with torch.no_grad():
        ll = model.log_likelihood(*rows.split("train")).sum(1)
        q = torch.full((3,), 1 / 3)
        expected = float(-(q * (ll + model.log_prior - q.log())).sum() / 54)
    found = inference.fit(model, guide, rows, **{**STILL, "epochs": 1, "batch_size": 54})
    assert found.history[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_batches_cover_every_row_once_and_one_row_is_never_alone():
    rows = blobs(n=54, val_fraction=0)
    ends = {16: [16, 16, 16, 6], 53: [54], 54: [54], 500: [54], 50: [50, 4]}
    for size, expected in ends.items():
        batches = trainer_of(rows, batch_size=size).batches
        assert [b - a for a, b in batches] == expected
        assert batches[0][0] == 0
        assert all(p[1] == q[0] for p, q in itertools.pairwise(batches))
    orders = []
    for epoch in (0, 1):
        trainer = trainer_of(rows, batch_size=16)
        trainer.epoch = epoch
        orders.append(trainer._order()[0].tolist())
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(54))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_what_moves_when_and_at_which_rate(update, monkeypatch):
    """q is held for a quarter of the steps; weights move, and the gradient is clipped."""
    logits, rates, norms = [], [], []

    def look(trainer):
        (one,) = trainer.replicates
        logits.append(one.guide.logits.detach().clone())
        rates.append({g["name"]: g["lr"] for g in trainer.step.optimizer.param_groups})
        grads = [p.grad for p in one.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in grads]).norm()))

    spy(monkeypatch, "_step", after=look)
    found = run(update=update, schedule="cosine", lr=0.02, guide_lr=0.125, clip_norm=0.25)
    assert len(logits) == 32
    assert all(torch.equal(one, torch.zeros(4)) for one in logits[:8])
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(logits[7:]))
    scheduled = [0.01 * (1 + np.cos(np.pi * s / 32)) for s in range(32)]
    assert [one["weights"] for one in rates] == pytest.approx(scheduled)
    if update == "gradient":
        assert {one["guide"] for one in rates} == {0.125}
    assert max(norms) == pytest.approx(0.25, rel=1e-3)
    start = dict(pair(blobs())[0].named_parameters())
    assert all(not torch.equal(p, start[n]) for n, p in found.model.named_parameters())


def test_kl_warmup_rises_to_one(monkeypatch):
    weights = []
    spy(monkeypatch, "_step", after=lambda t: weights.append(float(t.step.bounds[0].kl_weight)))
    found = run(update="gradient", kl_warmup=0.5)
    assert weights == pytest.approx([min(1.0, s / 16) for s in range(32)])
    assert found.best_epoch >= 4


def test_number_of_epochs():
    assert Settings(epochs=7).epochs_for(10**6) == 7
    few = Settings(steps=100, batch_size=10)
    assert few.steps_per_epoch(95) == 10
    assert [few.epochs_for(rows) for rows in (95, 20, 10**6)] == [10, 50, 10]  # at least ten
    assert Settings(steps=101, batch_size=512).epochs_for(3) == 101
    assert Settings(steps=10**9, batch_size=1).epochs_for(7) == 142857143
    with pytest.raises(PyroccamError):
        Settings(epochs=10**6, batch_size=10).epochs_for(10_001)


def test_schedules():
    assert learning_rate_factor("constant", 0.7) == 1.0
    assert learning_rate_factor("linear", 0.7) == pytest.approx(0.3)
    for p in range(9):  # half-angle form
        cosine = math.cos(math.pi * p / 16) ** 2
        assert learning_rate_factor("cosine", p / 8) == pytest.approx(cosine, abs=1e-12)
    f = [learning_rate_factor("onecycle", p / 1000) for p in range(1001)]
    assert max(range(1001), key=f.__getitem__) == 100
    expected = [0.04, 1.0, 0.5, 0.0]
    assert [f[i] for i in (0, 100, 550, 1000)] == pytest.approx(expected, abs=1e-12)
    assert max(abs(a - b) for a, b in itertools.pairwise(f)) < 0.0097


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)],
)
def test_groups_of_parameters(name, kind):
    """Decay on log_scale would draw the noise to one standard deviation of the target."""
    model = network(lambda net, x: net.net(x), net=nn.Linear(2, 1), likelihood=models.Regression(1))
    model.net.bias.requires_grad_(False)
    guide = nn.Linear(3, 1)
    settings = Settings(optimizer=name, lr=0.5, guide_lr=0.25, weight_decay=0.125)
    optimizer = make_optimizer(settings, parameter_groups(settings, model, guide))
    assert type(optimizer) is kind
    weights, noise, latents = optimizer.param_groups
    assert weights["params"] == [model.net.weight]
    assert noise["params"] == [model.likelihood.log_scale]
    assert latents["params"] == list(guide.parameters())
    found = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert found == [(0.5, 0.125), (0.5, 0.0), (0.25, 0.0)]
    assert [group["scheduled"] for group in optimizer.param_groups] == [True, True, False]
    with pytest.raises(PyroccamError):
        parameter_groups(settings, model.requires_grad_(False), nn.Identity())
