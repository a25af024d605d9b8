import dataclasses

import numpy as np
import pytest
import torch
from fitting import QUICK, assert_same, blobs, pair, run, spy
from pyroccam import guides, inference, models
from pyroccam.inference.training.replicate import Replicate
from pyroccam.inference.training.trainer import Trainer
from torch import nn


def trainer_of(rows, **settings):
    return Trainer([Replicate(*pair(rows), rows, 0)], inference.Settings(**settings))


def guide_of(trainer):
    return trainer.replicates[0].guide


# -- choosing a checkpoint --------------------------------------------------------------------


def test_the_test_rows_are_never_looked_at():
    rows = blobs()
    x, y = torch.full_like(rows.x_test, float("nan")), torch.full_like(rows.y_test, -99)
    blind = dataclasses.replace(rows, x_test=x, y_test=y)
    assert_same(run(rows), run(blind))


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_the_checkpoint_is_the_best_on_validation_rows_once_q_has_settled(update):
    found = run(update=update, epochs=16, lr=0.1)
    settled = [row for row in found.history if row["epoch"] / 16 >= found.guide.schedule.settled]
    assert len(found.history) == 16
    assert len(settled) == 7  # hold 0.25, settled at 0.625
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
    fixed_nll = {}

    def fake(trainer):
        fixed_nll["now"] = next(nlls)

    rows = blobs()
    model = pair(rows)[0].at_depth(1)
    original = type(model.likelihood).log_predictive

    def log_predictive(self, outputs, log_weights, y):
        return original(self, outputs, log_weights, y) * 0 - fixed_nll["now"]

    monkeypatch.setattr(type(model.likelihood), "log_predictive", log_predictive)
    spy(monkeypatch, "_evaluate", before=fake)
    found = inference.fit(model, guides.Deterministic(model), rows, **{**QUICK, "epochs": 5})
    assert found.best_epoch == 4


def test_without_validation_rows_the_training_loss_decides():
    rows = blobs(val_fraction=0)
    assert len(rows.x_val) == 0
    found = run(rows)
    assert all(row["val_nll"] != row["val_nll"] for row in found.history)
    settled = [row for row in found.history if row["epoch"] / 8 >= found.guide.schedule.settled]
    assert found.best_epoch == min(settled, key=lambda row: row["loss"])["epoch"]


def test_early_stopping_counts_evaluations_that_are_no_better():
    rows = blobs()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(2)]
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    frozen = {**QUICK, "epochs": 20, "lr": 1e-30, "weight_decay": 0.0, "patience": 2}
    fixed = model.at_depth(1)
    found = inference.fit(fixed, guides.Deterministic(fixed), rows, **frozen)
    assert [row["epoch"] for row in found.history] == [1.0, 2.0, 3.0]
    assert found.best_epoch == 1
    found = inference.fit(model, guides.CategoricalDepth(model, hold=0.25), rows, **frozen)
    # settled at 0.625 of 20 epochs: chosen at 13, no better at 14 and 15
    assert found.best_epoch == 13
    assert len(found.history) == 15


# -- one step ---------------------------------------------------------------------------------


def test_reported_losses_are_the_negative_elbo_for_each_observation():
    rows = blobs()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(2)]
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    with torch.no_grad():
        ll = model.log_likelihood(*rows.split("train")).sum(1)
        q = torch.full((3,), 1 / 3)
        expected = float(-(q * (ll + model.log_prior - q.log())).sum() / 54)
    still = {**QUICK, "epochs": 1, "lr": 1e-30, "weight_decay": 0.0}
    found = inference.fit(model, guides.CategoricalDepth(model, hold=0.99), rows, **still)
    assert found.history[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_batches_cover_every_row_once_and_one_row_is_never_alone():
    rows = blobs(n=54, val_fraction=0)
    ends = {16: [16, 16, 16, 6], 53: [54], 54: [54], 500: [54], 50: [50, 4]}
    for size, expected in ends.items():
        trainer = trainer_of(rows, batch_size=size)
        assert [b - a for a, b in trainer.batches] == expected
        assert trainer.batches[0][0] == 0
        assert all(p[1] == q[0] for p, q in zip(trainer.batches, trainer.batches[1:], strict=False))
    orders = []
    for epoch in (0, 1):
        trainer = trainer_of(rows, batch_size=16)
        trainer.epoch = epoch
        orders.append(trainer._order()[0].tolist())
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(54))
    assert orders[0] != orders[1]
    # batch statistics of one row alone would raise
    assert len(run(rows, batch_size=53, epochs=2).history) == 2


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_q_is_held_first_and_moves_then(update, monkeypatch):
    logits = []
    spy(monkeypatch, "_step", after=lambda t: logits.append(guide_of(t).logits.detach().clone()))
    run(update=update)
    assert len(logits) == 32
    held = 8  # a quarter of 32 steps
    assert all(torch.equal(one, torch.zeros(4)) for one in logits[:held])
    pairs = zip(logits[held - 1 :], logits[held:], strict=False)
    assert all(not torch.equal(a, b) for a, b in pairs)


def test_weights_move_and_the_pair_learns():
    rows = blobs()
    model, guide = pair(rows)
    start = {k: v.clone() for k, v in model.named_parameters()}
    found = inference.fit(model, guide, rows, **{**QUICK, "epochs": 30})
    assert not [k for k, v in model.named_parameters() if torch.equal(v, start[k])]
    assert found.evaluate("test")["accuracy"] > 0.9
    assert found.evaluate("test")["nll"] < 0.4  # chance is 1.1


def test_weight_decay_never_touches_the_logits():
    """All depths alike, a uniform prior: logits of 3 get no gradient, so only decay moves them."""
    rows = blobs()
    for optimizer in ("sgd", "adam", "adamw"):
        norms = []
        for decay in (0.0, 2.0):
            torch.manual_seed(0)
            parts = nn.Linear(2, 6), [nn.Identity(), nn.Identity()], nn.Linear(6, 3)
            model = models.LearntDepth(*parts, data=rows, prior=models.priors.Uniform())
            guide = guides.CategoricalDepth(model, update="gradient", hold=0.0)
            with torch.no_grad():
                guide.logits.fill_(3.0)
            hard = {**QUICK, "optimizer": optimizer, "weight_decay": decay, "guide_lr": 1e-2}
            inference.fit(model, guide, rows, **hard, schedule="constant")
            # 32 steps of decay 2 at rate 0.01 would leave half of it; Adam makes something of
            # rounding errors, though less than its rate at each step
            assert (guide.logits - 3.0).abs().max() < 0.1
            norms.append(float(model.stack.stem.weight.detach().norm()))
        assert norms[1] < 0.9 * norms[0]


def test_the_guide_keeps_its_own_rate_when_all_weights_are_frozen(monkeypatch):
    rows = blobs()
    model, guide = pair(rows, update="gradient")
    for p in model.parameters():
        p.requires_grad_(False)
    rates = set()
    spy(monkeypatch, "_step", after=lambda t: rates.add(t.step.optimizer.param_groups[-1]["lr"]))
    inference.fit(model, guide, rows, **QUICK, guide_lr=0.125)
    assert rates == {0.125}


def test_learning_rate_follows_the_schedule(monkeypatch):
    rates = []
    spy(monkeypatch, "_step", after=lambda t: rates.append(t.step.optimizer.param_groups[0]["lr"]))
    run(schedule="cosine", lr=0.02)
    assert rates == pytest.approx([0.01 * (1 + np.cos(np.pi * s / 32)) for s in range(32)])


def test_clip_norm_bounds_the_gradient(monkeypatch):
    norms = []

    def measure(trainer):
        grads = [p.grad for p in trainer.replicates[0].model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in grads]).norm()))

    spy(monkeypatch, "_step", after=measure)
    run(epochs=2)
    free = max(norms)
    norms.clear()
    run(epochs=2, clip_norm=0.25 * free)
    assert max(norms) == pytest.approx(0.25 * free, rel=1e-3)


def test_kl_warmup_rises_to_one(monkeypatch):
    weights = []
    spy(monkeypatch, "_step", after=lambda t: weights.append(float(t.step.bounds[0].kl_weight)))
    found = run(update="gradient", kl_warmup=0.5)
    assert weights == pytest.approx([min(1.0, s / 16) for s in range(32)])
    assert found.best_epoch >= 4
