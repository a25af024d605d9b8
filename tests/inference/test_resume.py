"""Fits that are stopped, killed or broken, and gone on with; what is told of them meanwhile."""

import copy
import functools
import json
import os
import signal

import pytest
import torch
from bayesian import QUICK as FEW
from bayesian import bayesian, noisy_net
from fitting import QUICK, Wobble, assert_same, blobs, pair, run, spy, stopped
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.training import StopSignal, Trainer, fitting
from pyroccam.inference.training.terminal import SIGNALS
from pyroccam.models import priors
from random_weights import table
from torch import nn

INT, TERM = signal.SIGINT, signal.SIGTERM


def tell(number=INT):
    os.kill(os.getpid(), number)


# -- going on ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "number", "step"),
    [
        ("closed", INT, 6),  # in the middle of an epoch, q held
        ("gradient", TERM, 4),  # at the end of an epoch
    ],
)
def test_a_run_stopped_by_a_signal_goes_on_bit_for_bit(update, number, step, tmp_path, monkeypatch):
    def attempt(**more):
        return run(update=update, **more)

    whole, said = attempt(), rf"after step {step} of 32 \(saved in"
    begin = functools.partial(attempt, out=tmp_path)
    stopped(monkeypatch, begin, step=step, how=number, said=said)
    torch.rand(5)
    resumed_at = []
    spy(monkeypatch, "_step", before=lambda t: resumed_at.append(t.step_number))
    assert_same(whole, attempt(out=tmp_path, resume=True))
    assert resumed_at == list(range(step, 32))


def test_random_weights_go_on_bit_for_bit(tmp_path, monkeypatch):
    rows, prior = table(), priors.GroupNormalJeffreys()

    def attempt(**more):
        return inference.fit(*bayesian(rows, prior, net=noisy_net()), rows, **{**FEW, **more})

    whole = attempt()
    begin = functools.partial(attempt, out=tmp_path)
    stopped(monkeypatch, begin, step=8, how=TERM, said="after step 8 of 18")
    assert_same(whole, attempt(out=tmp_path, resume=True))


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

    whole = attempt()
    assert (whole.best_epoch, len(whole.history)) == (2, 6)
    begin = functools.partial(attempt, out=tmp_path)
    stopped(monkeypatch, begin, step=18)  # in epoch 5, after two evaluations that were no better
    assert_same(whole, attempt(out=tmp_path, resume=True))


def often(seconds=0.0):
    return functools.partial(Trainer, checkpoint_seconds=seconds)


def test_resume_starts_anew_where_there_is_nothing(tmp_path):
    assert_same(run(), run(out=tmp_path / "new", resume=True))
    with pytest.raises(PyroccamError):
        run(resume=True)


def test_a_checkpoint_of_another_run_or_cut_short_is_refused(tmp_path):
    begin = {**QUICK, "epochs": 1, "out": tmp_path}
    rows = blobs()
    inference.fit(*pair(rows), rows, **begin)
    for name, more, make, own in (
        ("lr", {"lr": 0.05}, {}, rows),
        ("data", {}, {}, blobs(seed=1)),
        ("shapes", {}, {"width": 5}, rows),
        ("prior", {}, {"prior": priors.Uniform()}, rows),
        ("guide", {}, {"rate": 0.1}, rows),
    ):
        model, guide = pair(own, **make)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(inference.CheckpointError, match=f"another {name}"):
            inference.fit(model, guide, own, **{**begin, **more}, resume=True)
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key])  # a refusal changes nothing
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(inference.CheckpointError, match="cut short or damaged"):
        inference.fit(*pair(rows), rows, **begin, resume=True)


# -- signals ----------------------------------------------------------------------------------


def test_the_first_signal_is_a_flag_and_handlers_are_put_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    for number in (INT, TERM, signal.SIGHUP):
        with StopSignal() as stop:
            assert not stop
            tell(number)
            assert stop
    with StopSignal() as stop:
        tell(TERM)
        tell(TERM)  # twice told is told once
        with pytest.raises(KeyboardInterrupt):
            tell()
    with StopSignal(patient=True) as stop:  # where a launcher passes it on
        tell()
        tell()
        assert stop
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_what_is_ignored_stays_ignored():
    """A program that was started by nohup goes on when its terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            tell(signal.SIGHUP)
            assert not stop
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def told(f, at=1):
    """A function that gets a signal in its n-th call."""
    calls = []

    def call(*args, **kwargs):
        calls.append(1)
        if len(calls) == at:
            tell(TERM)
        return f(*args, **kwargs)

    return call


@pytest.mark.parametrize("when", ["Trainer", "_prepare"])
def test_a_signal_during_set_up_leaves_before_the_first_step(when, monkeypatch, tmp_path):
    whole = run()
    with monkeypatch.context() as patch:
        if when == "_prepare":
            spy(patch, when, before=lambda t: tell())
        else:
            patch.setattr(fitting, when, told(fitting.Trainer))
        with pytest.raises(inference.Interrupted, match=r"after step 0 of 32 \(saved in"):
            run(out=tmp_path)
    assert_same(whole, run(out=tmp_path, resume=True))


def test_a_signal_while_the_result_is_written_comes_after_it(monkeypatch, tmp_path):
    whole = run()
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "_finish", told(fitting._finish))
        with pytest.raises(inference.Interrupted, match="fit is complete.*resume=True") as error:
            run(out=tmp_path)
    assert_same(whole, error.value.fits[0])
    assert json.loads((tmp_path / "fit.json").read_text())["best_epoch"] == whole.best_epoch
    assert_same(whole, run(out=tmp_path, resume=True))


def test_a_signal_in_the_last_step_is_not_swallowed(monkeypatch):
    spy(monkeypatch, "_step", after=lambda t: t.step_number == 31 and tell())
    with pytest.raises(inference.Interrupted, match="fit is complete.*fits of this error") as error:
        run()
    assert len(error.value.fits[0].history) == 8


@pytest.mark.parametrize("together", [False, True])
def test_repeats_that_were_complete_are_kept(together, monkeypatch):
    few = {k: v for k, v in QUICK.items() if k != "seed"} | {"epochs": 2}
    monkeypatch.setattr(fitting, "_finish", told(fitting._finish, at=2))
    with pytest.raises(inference.Interrupted) as error:
        inference.fit_repeats(
            lambda seed: (*pair(blobs()), blobs()), [5, 6, 7], together=together, **few
        )
    assert [one.settings.seed for one in error.value.fits] == ([5, 6, 7] if together else [5, 6])


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


@pytest.mark.parametrize(
    ("passes", "make", "settings", "said", "evaluations"),
    [
        (10, guides.CategoricalDepth, {}, "step 10 of 32 (epoch 3 of 8); site 'y'", 2),
        (3, guides.Marginal, {"batch_size": 54}, "step 3 of 8 (epoch 4 of 8); site 'y'", 3),
    ],
)
def test_a_nan_names_step_and_site_and_leaves_the_last_good_state(
    passes, make, settings, said, evaluations, monkeypatch
):
    rows = blobs()
    torch.manual_seed(0)
    blocks = [Wobble(), Wobble(), Wobble(), Poison(passes)]  # only the deepest exit is ill
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    guide, good = make(model), []
    keep = lambda t: good.append(copy.deepcopy(t.replicates[0].weights()))  # noqa: E731
    spy(monkeypatch, "_evaluate", after=keep)
    with pytest.raises(inference.NonFiniteLoss) as error:
        inference.fit(model, guide, rows, **{**QUICK, **settings})
    assert f"The loss is nan at {said}" in str(error.value)
    assert len(good) == evaluations
    for name, module in (("model", model), ("guide", guide)):
        for key, value in module.state_dict().items():
            assert torch.equal(value, good[-1][name][key]), key
            assert torch.isfinite(value).all()


# -- what is told while it runs ---------------------------------------------------------------


class Killed(BaseException):
    """As a kill, which nothing is saved at."""


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_the_file_grows_with_the_fit_and_a_kill_repeats_no_row(tmp_path, monkeypatch, seconds):
    """Killed after five evaluations, with checkpoints at every step and with none at all."""
    whole = run(out=tmp_path / "whole")
    rows, out, seen = [], tmp_path / "killed", []

    def watch(row):
        rows.append(row)
        torch.rand(3)  # which the training does not notice

    def lines(folder):
        return (folder / "history.csv").read_text().splitlines()

    def look(trainer, *_):
        seen.append(len(lines(out)) - 1)
        if len(seen) == 5:
            raise Killed

    monkeypatch.setattr(fitting, "Trainer", often(seconds))
    with monkeypatch.context() as patch:
        spy(patch, "_evaluate", after=look)
        with pytest.raises(Killed):
            run(out=out, watch=watch)
    assert seen == [1, 2, 3, 4, 5]
    assert lines(out) == lines(tmp_path / "whole")[:6]
    if not seconds:  # a row that was cut off, inside of its second number, is told again
        with open(out / "history.csv", "a") as file:
            file.write("6.0,0.1")
    assert_same(whole, run(out=out, watch=watch, resume=True))
    assert lines(out) == lines(tmp_path / "whole")
    # Without any checkpoint the fit begins anew, and so do the rows.
    again = list(range(1, 9)) if seconds else [6, 7, 8]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, *again]


def test_what_watches_and_fails_costs_no_training():
    calls = []

    def fails(row):
        calls.append(row)
        raise ConnectionError("no such host")

    with pytest.warns(UserWarning, match="no such host") as said:
        found = run(watch=fails)
    assert len(said) == len(calls) == 1
    assert_same(found, run())
