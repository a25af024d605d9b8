import copy
import dataclasses
import os
import shutil
import signal
import sys
import threading

import pytest
import torch
from fitting import QUICK, Wobble, assert_same, blobs, pair, run, spy
from pyroccam import guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.training.trainer import Trainer
from torch import nn

fit_module = sys.modules["pyroccam.inference.training.fitting"]


# -- going on ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "kind", "number", "step"),
    [
        ("closed", "own", signal.SIGINT, 6),  # in the middle of an epoch, q held
        ("closed", "own", signal.SIGTERM, 26),  # when a checkpoint has been chosen
        ("closed", "own", signal.SIGINT, 4),  # at the end of an epoch
        ("gradient", "own", signal.SIGTERM, 13),
        ("closed", "conv", signal.SIGINT, 9),
    ],
)
def test_a_run_stopped_by_a_signal_goes_on_bit_for_bit(
    update, kind, number, step, tmp_path, monkeypatch
):
    whole = run(update=update, kind=kind)
    steps = []

    def count(trainer):
        steps.append(trainer.step_number)
        if len(steps) == step:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        spy(patch, "_step", after=count)
        with pytest.raises(inference.Interrupted, match=rf"after step {step} of 32 \(saved in"):
            run(update=update, kind=kind, out=tmp_path)
    assert len(steps) == step
    torch.rand(5)
    resumed_at = []
    with monkeypatch.context() as patch:
        spy(patch, "_step", before=lambda t: resumed_at.append(t.step_number))
        assert_same(whole, run(update=update, kind=kind, out=tmp_path, resume=True))
    assert resumed_at == list(range(step, 32))


def test_the_choice_made_before_a_stop_is_kept(tmp_path, monkeypatch):
    """The best checkpoint and the evaluations since then are part of the state."""
    now = {}
    spy(monkeypatch, "_evaluate", before=lambda t: now.update(epoch=t.epoch))
    monkeypatch.setattr(  # epoch 2 is the best
        models.Classification,
        "log_predictive",
        lambda self, outputs, log_weights, y: torch.full((len(y),), -float(now["epoch"] != 2)),
    )

    def attempt(**more):
        rows = blobs()
        fixed = pair(rows)[0].at_depth(3)
        settings = {**QUICK, "patience": 4, **more}
        return inference.fit(fixed, guides.Deterministic(fixed), rows, **settings)

    def kill(trainer):
        if trainer.step_number == 17:  # in epoch 5, after two evaluations that were no better
            os.kill(os.getpid(), signal.SIGTERM)

    whole = attempt()
    assert (whole.best_epoch, len(whole.history)) == (2, 6)
    with monkeypatch.context() as patch:
        spy(patch, "_step", before=kill)
        with pytest.raises(inference.Interrupted, match="after step 18 of 32"):
            attempt(out=tmp_path)
    assert_same(whole, attempt(out=tmp_path, resume=True))


def test_a_signal_from_outside_at_whatever_moment(tmp_path, monkeypatch):
    """It arrives between any two instructions of the loop, not where a test would place it."""
    slow = {**QUICK, "epochs": 40}
    whole = run(settings=slow)
    under_way = threading.Event()

    def send():
        under_way.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    def start(trainer):
        if trainer.step_number == 30:
            under_way.set()

    sender = threading.Thread(target=send)
    sender.start()
    with monkeypatch.context() as patch:
        spy(patch, "_step", before=start)
        with pytest.raises(inference.Interrupted, match="saved in"):
            run(settings=slow, out=tmp_path)
    sender.join()
    assert_same(whole, run(settings=slow, out=tmp_path, resume=True))


def test_an_exception_in_a_step_loses_only_what_was_not_saved(tmp_path, monkeypatch):
    def fail(trainer):
        if trainer.step_number == 21:
            raise RuntimeError("the plug was pulled")

    whole = run()
    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "Trainer", lambda *a, **k: Trainer(*a, **k, checkpoint_seconds=0))
        spy(patch, "_step", before=fail)
        with pytest.raises(RuntimeError, match="the plug"):
            run(out=tmp_path)
    assert_same(whole, run(out=tmp_path, resume=True))


def test_what_a_kill_leaves_is_taken_up_bit_for_bit(tmp_path, monkeypatch):
    """A copy of the folder in the middle of step 19: a process that is killed has no time to tidy
    up, and leaves just this."""

    def copy_folder(trainer):
        if trainer.step_number == 18:
            shutil.copytree(tmp_path / "run", tmp_path / "killed")

    whole = run()
    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "Trainer", lambda *a, **k: Trainer(*a, **k, checkpoint_seconds=0))
        spy(patch, "_step", before=copy_folder)
        run(out=tmp_path / "run")
    killed = tmp_path / "killed"
    assert (killed / "checkpoint.pt").exists()
    assert not (killed / "model.safetensors").exists()
    steps = []
    spy(monkeypatch, "_step", before=lambda t: steps.append(t.step_number))
    assert_same(whole, run(out=killed, resume=True))
    assert 0 < steps[0] <= 18


def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch):
    whole = run(out=tmp_path)
    steps = []
    spy(monkeypatch, "_step", before=lambda t: steps.append(1))
    assert_same(whole, run(out=tmp_path, resume=True))
    assert not steps


def test_resume_starts_anew_where_there_is_nothing(tmp_path):
    assert_same(run(), run(out=tmp_path / "new", resume=True))
    with pytest.raises(PyroccamError):
        run(resume=True)


def other_data():
    return blobs(seed=1)


def other_validation_targets():
    rows = blobs()
    return dataclasses.replace(rows, y_val=(rows.y_val + 1) % 3)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"lr": 0.05}, "lr"),
        ({"seed": 5}, "seed"),
        ({"rows": other_data}, "data"),
        ({"rows": other_validation_targets}, "data"),
        ({"width": 5}, "shapes"),
        ({"prior": models.priors.Uniform()}, "prior"),
        ({"rate": 0.1}, "guide"),
        ({"update": "gradient"}, "guide"),
    ],
    ids=["lr", "seed", "rows", "targets", "width", "prior", "rate", "update"],
)
def test_a_checkpoint_of_another_run_is_refused(change, name, tmp_path):
    change = dict(change)
    rows = blobs()
    inference.fit(*pair(rows), rows, **QUICK, out=tmp_path)
    make = {k: change.pop(k) for k in ("width", "prior", "rate", "update") if k in change}
    rows = change.pop("rows", blobs)()
    model, guide = pair(rows, **make)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(inference.CheckpointError, match=f"another {name}"):
        inference.fit(model, guide, rows, **{**QUICK, **change}, out=tmp_path, resume=True)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])  # a refusal changes nothing


def test_a_checkpoint_cut_short_is_refused(tmp_path):
    run(out=tmp_path, epochs=1)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(inference.CheckpointError, match="cut short or damaged"):
        run(out=tmp_path, epochs=1, resume=True)


def test_an_interrupted_pair_can_be_trained_on(monkeypatch):
    """Without ``out`` nothing is saved, and the guide's parameters are left trainable."""
    rows = blobs()
    model, guide = pair(rows)
    with monkeypatch.context() as patch:
        spy(patch, "_step", after=lambda t: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(inference.Interrupted, match=r"not saved: no out="):
            inference.fit(model, guide, rows, **QUICK)
    assert guide.logits.requires_grad
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# -- when it breaks ---------------------------------------------------------------------------


class Poison(nn.Module):
    """Turns its input into NaN from the k-th pass in training mode on."""

    def __init__(self, passes):
        super().__init__()
        self.passes = passes
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, a):
        self.seen += float(self.training)
        return a * float("nan") if self.seen > self.passes else a + 0.0


@pytest.mark.parametrize("update", ["closed", "gradient"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_nan_names_step_and_site_and_leaves_the_last_good_state(update, seed, monkeypatch):
    rows = blobs()
    torch.manual_seed(0)
    blocks = [Wobble(), Wobble(), Wobble(), Poison(10)]  # only the deepest exit is ill
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    guide = guides.CategoricalDepth(model, update=update)
    good = []
    spy(
        monkeypatch,
        "_evaluate",
        after=lambda t: good.append(copy.deepcopy(t.replicates[0].weights())),
    )
    with pytest.raises(
        inference.NonFiniteLoss, match=r"nan at step 10 of 32 \(epoch 3 of 8\); site 'y'"
    ):
        inference.fit(model, guide, rows, **{**QUICK, "seed": seed})
    assert len(good) == 2  # after the first two epochs
    for name, module in (("model", model), ("guide", guide)):
        for key, value in module.state_dict().items():
            assert torch.equal(value, good[-1][name][key]), key
            assert torch.isfinite(value).all()
    assert guide.logits.requires_grad


def test_a_nan_in_a_marginal_likelihood_names_the_site():
    rows = blobs()
    torch.manual_seed(0)
    blocks = [Wobble(), Wobble(), Wobble(), Poison(3)]
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    with pytest.raises(inference.NonFiniteLoss, match=r"step 3 of 8 .*; site 'y'"):
        inference.fit(model, guides.Marginal(model), rows, **{**QUICK, "batch_size": 54})


class Root(nn.Module):
    """Has an infinite slope where it is zero, as a gradient has that blows up."""

    def forward(self, a):
        return a + (0.0 * a).abs().sqrt()


@pytest.mark.parametrize(
    ("block", "lr", "message"),
    [
        (Root, 0.5, "parameter 'stack.stem.weight' was the first that is not finite"),
        (nn.ReLU, 1e6, "site 'y'"),
    ],
)
def test_a_learning_rate_that_blows_up(block, lr, message):
    rows = blobs()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), block()) for _ in range(3)]
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    start = copy.deepcopy(model.state_dict())
    guide = guides.CategoricalDepth(model)
    with pytest.raises(inference.NonFiniteLoss, match=message) as error:
        inference.fit(model, guide, rows, **{**QUICK, "lr": lr, "optimizer": "sgd"})
    assert f"smaller lr (now {lr:g})" in str(error.value)
    for key, value in model.state_dict().items():
        assert torch.equal(value, start[key])  # it broke before the first evaluation


def test_data_that_are_not_finite_are_named():
    rows = blobs()
    x = rows.x_train.clone()
    x[30, 1] = float("inf")
    rows = dataclasses.replace(rows, x_train=x)
    fixed = pair(rows)[0].at_depth(0)
    with pytest.raises(
        (inference.NonFiniteLoss, ValueError), match="data itself|Expected parameter"
    ):
        inference.fit(fixed, guides.Deterministic(fixed), rows, **QUICK)
