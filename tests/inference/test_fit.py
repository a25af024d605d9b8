import copy
import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pyro
import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.inference import trainer as trainer_module
from pyroccam.inference.trainer import Trainer
from torch import nn

fit_module = sys.modules["pyroccam.inference.fit"]
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


def blobs(n=60, seed=0, **options):
    """Three classes that a line cannot split, 54 training and 6 validation rows, 30 test rows."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n + 30) % 3
    centres = torch.tensor([[2.0, 0.0], [-2.0, 1.0], [0.0, -2.0]])
    x = centres[y] + 0.7 * torch.randn(n + 30, 2, generator=generator)
    return data.Dataset.from_tensors(x[:n], y[:n], x[n:], y[n:], **options)


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


# -- seeds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_the_same_seed_gives_the_same_fit_bit_for_bit(update):
    one = run(update=update)
    torch.rand(7)  # the state of the global generator must not matter
    assert_same(one, run(update=update))
    other = run(update=update, seed=4)
    assert any(
        not torch.equal(p, q)
        for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )


def test_global_state_is_left_as_it_was():
    rows = blobs()
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002 the legacy state is what is tested
    random.seed(123)
    legacy = np.random.get_state()[1].tolist()  # noqa: NPY002
    states = torch.get_rng_state(), legacy, random.getstate()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run(rows, epochs=2)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert random.getstate() == states[2]
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    assert torch.is_grad_enabled()
    assert pyro.settings.get("module_local_params") is False
    assert len(pyro.get_param_store()) == 0
    assert pyro.settings.get("validate_poutine") is True
    assert pyro.settings.get("validate_infer") is True


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


def doomed(out):
    """Run by a process of its own, which kills itself in step 19 and has no time to tidy up."""
    original = Trainer._step

    def step(self, rows):
        if self.step_number == 18:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, rows)

    Trainer._step = step
    fit_module.Trainer = lambda *a, **k: Trainer(*a, **k, checkpoint_seconds=0)
    run(out=out)


def test_a_killed_process_is_taken_up_bit_for_bit(tmp_path):
    code = f"import runpy; runpy.run_path({__file__!r})['doomed']({str(tmp_path)!r})"
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "checkpoint.pt").exists()
    assert not (tmp_path / "model.safetensors").exists()
    assert_same(run(), run(out=tmp_path, resume=True))


def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch):
    whole = run(out=tmp_path)
    steps = []
    spy(monkeypatch, "_step", before=lambda t: steps.append(1))
    assert_same(whole, run(out=tmp_path, resume=True))
    assert not steps


def test_resume_starts_anew_where_there_is_nothing(tmp_path):
    assert_same(run(), run(out=tmp_path / "new", resume=True))
    with pytest.raises(ValueError, match="resume=True needs out="):
        run(resume=True)


def other_data():
    return blobs(seed=1)


def other_validation_targets():
    rows = blobs()
    return dataclasses.replace(rows, y_val=(rows.y_val + 1) % 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.05}, r"other settings \(lr: 0.02 then, 0.05 now\)"),
        ({"seed": 5, "epochs": 9}, "epochs: 8 then, 9 now; seed: 3 then, 5 now"),
        ({"rows": other_data}, "another training data"),
        ({"rows": other_validation_targets}, "another training data"),
        ({"width": 5}, "another network"),
        ({"prior": models.priors.Uniform()}, "another prior"),
        ({"rate": 0.1}, "another guide"),
        ({"update": "gradient"}, "another guide"),
    ],
    ids=["lr", "seed", "rows", "targets", "width", "prior", "rate", "update"],
)
def test_a_checkpoint_of_another_run_is_refused(change, message, tmp_path):
    change = dict(change)
    rows = blobs()
    inference.fit(*pair(rows), rows, **QUICK, out=tmp_path)
    make = {k: change.pop(k) for k in ("width", "prior", "rate", "update") if k in change}
    rows = change.pop("rows", blobs)()
    model, guide = pair(rows, **make)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(inference.CheckpointError, match=message):
        inference.fit(model, guide, rows, **{**QUICK, **change}, out=tmp_path, resume=True)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])  # a refusal changes nothing


def test_a_checkpoint_cut_short_is_refused(tmp_path):
    run(out=tmp_path, epochs=1)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(inference.CheckpointError, match="cut short or damaged: delete it"):
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
        self.passes, self.seen = passes, 0

    def forward(self, a):
        self.seen += self.training
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
    spy(monkeypatch, "_evaluate", after=lambda t: good.append(copy.deepcopy(t._weights())))
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


@pytest.mark.parametrize(
    ("lr", "message"),
    [(1e300, "parameter 'stack.stem.weight' was the first that is not finite"), (1e30, "site 'y'")],
)
def test_a_learning_rate_that_blows_up(lr, message):
    rows = blobs()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3)]
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    start = copy.deepcopy(model.state_dict())
    guide = guides.CategoricalDepth(model)
    with pytest.raises(inference.NonFiniteLoss, match=message) as error:
        inference.fit(model, guide, rows, **{**QUICK, "lr": lr, "optimizer": "adam"})
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


# -- choosing a checkpoint --------------------------------------------------------------------


def test_the_test_rows_are_never_looked_at():
    rows = blobs()
    blind = dataclasses.replace(
        rows,
        x_test=torch.full_like(rows.x_test, float("nan")),
        y_test=torch.full_like(rows.y_test, -99),
    )
    assert_same(run(rows), run(blind))


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_the_checkpoint_is_the_best_on_validation_rows_once_q_has_settled(update):
    found = run(update=update, epochs=16, lr=0.1)
    settled = [row for row in found.history if row["epoch"] / 16 >= found.guide.settled]
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
    settled = [row for row in found.history if row["epoch"] / 8 >= found.guide.settled]
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
    for size, expected in (
        (16, [16, 16, 16, 6]),
        (53, [54]),
        (54, [54]),
        (500, [54]),
        (50, [50, 4]),
    ):
        trainer = Trainer(*pair(rows), rows, inference.Settings(batch_size=size))
        assert [b - a for a, b in trainer.batches] == expected
        assert trainer.batches[0][0] == 0
        assert all(p[1] == q[0] for p, q in zip(trainer.batches, trainer.batches[1:], strict=False))
    orders = []
    for epoch in (0, 1):
        trainer = Trainer(*pair(rows), rows, inference.Settings(batch_size=16))
        trainer.epoch = epoch
        orders.append(trainer._order().tolist())
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(54))
    assert orders[0] != orders[1]
    # batch statistics of one row alone would raise
    assert len(run(rows, batch_size=53, epochs=2).history) == 2


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_q_is_held_first_and_moves_then(update, monkeypatch):
    logits = []
    spy(monkeypatch, "_step", after=lambda t: logits.append(t.guide.logits.detach().clone()))
    run(update=update)
    assert len(logits) == 32
    held = 8  # a quarter of 32 steps
    assert all(torch.equal(one, torch.zeros(4)) for one in logits[:held])
    assert all(
        not torch.equal(a, b) for a, b in zip(logits[held - 1 :], logits[held:], strict=False)
    )


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
            blocks = [nn.Identity(), nn.Identity()]
            model = models.LearntDepth(
                nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows, prior=models.priors.Uniform()
            )
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
    spy(monkeypatch, "_step", after=lambda t: rates.add(t.optimizer.param_groups[-1]["lr"]))
    inference.fit(model, guide, rows, **QUICK, guide_lr=0.125)
    assert rates == {0.125}


def test_learning_rate_follows_the_schedule(monkeypatch):
    rates = []
    spy(monkeypatch, "_step", after=lambda t: rates.append(t.optimizer.param_groups[0]["lr"]))
    run(schedule="cosine", lr=0.02)
    assert rates == pytest.approx([0.01 * (1 + np.cos(np.pi * s / 32)) for s in range(32)])


def test_clip_norm_bounds_the_gradient(monkeypatch):
    norms = []

    def measure(trainer):
        grads = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in grads]).norm()))

    spy(monkeypatch, "_step", after=measure)
    run(epochs=2)
    free = max(norms)
    norms.clear()
    run(epochs=2, clip_norm=0.25 * free)
    assert max(norms) == pytest.approx(0.25 * free, rel=1e-3)


def test_kl_warmup_rises_to_one(monkeypatch):
    weights = []
    spy(monkeypatch, "_step", after=lambda t: weights.append(t.bound.elbo.kl_weight))
    found = run(update="gradient", kl_warmup=0.5)
    assert weights == pytest.approx([min(1.0, s / 16) for s in range(32)])
    assert found.best_epoch >= 4


# -- what q becomes ---------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_q_arrives_at_the_exact_posterior_of_an_easy_problem(update):
    rows = blobs()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    guide = guides.CategoricalDepth(model, update=update)
    found = inference.fit(model, guide, rows, **{**QUICK, "epochs": 60, "guide_lr": 0.5})
    s = found.structure
    if update == "closed":
        assert s.tv_to_exact < 1e-5  # it is the exact posterior, in float32
        assert s.tv_running < 0.1  # so is the running estimate, nearly
        assert s.running_depth_probs is not None
    else:
        assert s.tv_to_exact < 0.1
        assert s.running_depth_probs is None
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    assert inference.total_variation(s.exact_depth_probs, uniform) > 0.2  # else it says nothing
    exact = inference.exact_depth_posterior(found.model, rows)
    torch.testing.assert_close(s.exact_depth_probs, exact)
    torch.testing.assert_close(s.depth_probs.float(), found.guide.probs)
    assert s.depth_chosen == inference.choose_depth(found.guide.probs)


def test_marginal_likelihood_runs_on_the_full_batch():
    rows = blobs()
    model, _ = pair(rows)
    found = inference.fit(model, guides.Marginal(model), rows, **{**QUICK, "batch_size": 54})
    torch.testing.assert_close(
        found.weights.double(), inference.exact_depth_posterior(model, rows), atol=1e-6, rtol=0
    )
    assert found.structure.tv_to_exact < 1e-6


def test_regression():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(90, 1, generator=generator) * 4 - 2
    y = 5 + 3 * x.abs() + 0.1 * torch.randn(90, 1, generator=generator)  # no line fits it
    rows = data.Dataset.from_tensors(x[:60], y[:60], x[60:], y[60:])
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(rows, width=8, max_depth=2)
    noise = model.likelihood.log_scale.clone()
    found = inference.fit(model, guides.CategoricalDepth(model), rows, **{**QUICK, "epochs": 40})
    scores = found.evaluate("test")
    assert scores["rmse"] < 0.4 * float(rows.y_std)  # the mean alone gives 1.0
    assert not torch.equal(noise, model.likelihood.log_scale)
    mean = found.predict(rows.x_test)
    rmse = float((mean - rows.y_test).square().mean().sqrt() * rows.y_std)
    assert scores["rmse"] == pytest.approx(rmse, rel=1e-5)
    assert found.structure.depth_probs[0] < 0.05  # depth 0 is a line


def test_fixed_depth():
    rows = blobs()
    fixed = pair(rows)[0].at_depth(2)
    found = inference.fit(fixed, guides.Deterministic(fixed), rows, **{**QUICK, "epochs": 20})
    assert found.structure is None
    assert found.weights.tolist() == [1.0]
    assert found.evaluate("test")["accuracy"] > 0.9


def test_predictions_are_log_probabilities_of_the_mixture():
    found = run()
    log_p = found.predict(found.data.x_test)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(30))
    with torch.no_grad():
        exits = found.model.stack.outputs(found.data.x_test).softmax(-1)
    torch.testing.assert_close(log_p.exp(), (found.weights[:, None, None] * exits).sum(0))
    scores = found.evaluate("test")
    y = found.data.y_test
    assert scores["accuracy"] == pytest.approx(float((log_p.argmax(-1) == y).double().mean()))
    assert scores["nll"] == pytest.approx(-float(log_p[torch.arange(30), y].mean()), abs=1e-5)


# -- what cannot be run -----------------------------------------------------------------------


def test_closed_form_has_no_kl_to_warm_up():
    with pytest.raises(ValueError, match=r"kl_warmup has nothing to act on.*update='gradient'"):
        run(kl_warmup=0.2)


def test_marginal_refuses_minibatches_and_warm_up():
    rows = blobs()
    model, _ = pair(rows)
    with pytest.raises(ValueError, match=r"full batch, but batch_size=16 splits 54 rows"):
        inference.fit(model, guides.Marginal(model), rows, **QUICK)
    with pytest.raises(ValueError, match=r"guides.Marginal has no KL"):
        inference.fit(
            model, guides.Marginal(model), rows, **{**QUICK, "batch_size": 54, "kl_warmup": 0.5}
        )


def test_a_model_of_other_data_is_refused():
    model, guide = pair(blobs())
    with pytest.raises(ValueError, match="made for 54 training rows, the data has 45"):
        inference.fit(model, guide, blobs(n=50), **QUICK)


def test_a_guide_of_another_model_is_refused():
    rows = blobs()
    model, guide = pair(rows)
    shallow = models.LearntDepth.mlp(rows, width=4, max_depth=1)
    for update in ("closed", "gradient"):
        other = guides.CategoricalDepth(shallow, update=update)
        with pytest.raises(ValueError, match="guide has 2 depths, the model 4"):
            inference.fit(model, other, rows, **QUICK)
    fixed = model.at_depth(1)
    with pytest.raises(TypeError, match="CategoricalDepth.*FixedDepth.*guides.Deterministic"):
        inference.fit(fixed, guide, rows, **QUICK)
    with pytest.raises(TypeError, match="Deterministic.*LearntDepth.*guides.CategoricalDepth"):
        inference.fit(model, guides.Deterministic(fixed), rows, **QUICK)


def test_devices_that_are_not_there():
    with pytest.raises(ValueError, match="Unknown device 'abacus'"):
        run(device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no CUDA here"):
            run(device="cuda")


def test_unknown_settings():
    with pytest.raises(TypeError, match="Unknown fit setting 'epoch'. Did you mean 'epochs'"):
        run(epoch=3)


# -- what is written --------------------------------------------------------------------------


def test_files_of_a_run(tmp_path):
    found = run(out=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint.pt",
        "history.csv",
        "model.safetensors",
    ]
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 1 + len(found.history)
    from safetensors.torch import load_file

    tensors = load_file(tmp_path / "model.safetensors")
    for name, module in (("model", found.model), ("guide", found.guide)):
        for key, value in module.state_dict().items():
            assert torch.equal(tensors[f"{name}.{key}"], value)


def test_the_bar_is_silent_where_nobody_watches(capfd, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    run(epochs=2, progress=None)
    assert capfd.readouterr() == ("", "")
    run(epochs=2, progress=True, label="my run")
    out, err = capfd.readouterr()
    assert out == ""
    assert "my run" in err


def test_repeats_differ_in_their_seed_and_show_their_spread(tmp_path):
    def build(seed):
        rows = blobs()
        model = models.LearntDepth.mlp(rows, width=4, max_depth=1)
        return model, guides.CategoricalDepth(model), rows

    few = {k: v for k, v in QUICK.items() if k != "seed"}
    repeats = inference.fit_repeats(build, [0, 1], out=tmp_path, **few)
    assert [f.settings.seed for f in repeats.fits] == [0, 1]
    assert (tmp_path / "seed-1" / "checkpoint.pt").exists()
    one, two = (f.model.stack.stem[1].weight for f in repeats.fits)
    assert not torch.equal(one, two)
    nll = [f.evaluate()["nll"] for f in repeats.fits]
    spread = repeats.spread()["nll"]
    assert spread["mean"] == pytest.approx(sum(nll) / 2)
    assert spread["n"] == 2


def test_runs_outside_the_main_thread(monkeypatch):
    """Signals can be handled in the main thread alone; elsewhere a fit works without."""
    found = []
    thread = threading.Thread(target=lambda: found.append(run(epochs=2)))
    thread.start()
    thread.join()
    assert len(found[0].history) == 2
    assert trainer_module.StopSignal is not None


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_looking_does_not_change_what_is_trained(update, tmp_path):
    """The exact step is for the checkpoint alone: the weights do not know how often one looks."""
    states = []
    for evaluations in (1, 8):
        out = tmp_path / str(evaluations)
        run(out=out, update=update, evaluations=evaluations)
        states.append(torch.load(out / "checkpoint.pt", weights_only=True))
    for part in ("model", "guide"):
        for name, value in states[0][part].items():
            assert torch.equal(value, states[1][part][name]), name
    assert len(states[1]["history"]) == 8


def test_a_fit_does_not_write_over_another(tmp_path):
    run(out=tmp_path, epochs=1)
    with pytest.raises(FileExistsError, match="resume=True"):
        run(out=tmp_path, epochs=1)


def test_the_closed_form_ends_at_the_exact_posterior_and_tells_where_it_was():
    fit = run(epochs=20)
    s = fit.structure
    assert s.tv_to_exact < 1e-5
    assert s.tv_running > s.tv_to_exact  # minibatches and dropout: an estimate, and not the same
    assert s.running_depth_probs.sum() == pytest.approx(1)
    assert run(update="gradient").structure.tv_running is None


def test_repeats_differ_and_are_summarised():
    def build(seed):
        rows = blobs(seed=seed)
        model = models.LearntDepth.mlp(rows, width=4, max_depth=2)
        return model, guides.CategoricalDepth(model), rows

    settings = {k: v for k, v in QUICK.items() if k != "seed"}
    repeats = inference.fit_repeats(build, [0, 1, 2], **settings)
    assert [one.settings.seed for one in repeats.fits] == [0, 1, 2]
    accuracy = torch.tensor([one.evaluate()["accuracy"] for one in repeats.fits])
    spread = repeats.spread()["accuracy"]
    assert spread["mean"] == pytest.approx(float(accuracy.mean()))
    assert spread["sd"] == pytest.approx(float(accuracy.std()), abs=1e-6)
    again = inference.fit_repeats(build, [1], **settings).fits[0]
    assert_same(again, repeats.fits[1])  # a repeat is a function of its seed
