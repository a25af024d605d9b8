import json
import os
import runpy
import signal
import sys

import pytest
from fitting import QUICK, assert_same, blobs, pair, run, spy
from pyroccam import inference
from pyroccam.inference.training import terminal as interrupt
from pyroccam.inference.training.terminal import StopSignal

fit_module = sys.modules["pyroccam.inference.training.fitting"]


def tell(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_a_second_sigint_is_the_same_one_where_a_launcher_passes_it_on():
    with StopSignal(patient=True) as stop:
        tell()
        tell()
        assert stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_a_flag(number):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop
        tell(number)
        assert stop
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_acts_at_once_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with StopSignal() as stop:
        tell(signal.SIGTERM)
        tell(signal.SIGTERM)  # twice told is told once
        assert stop
        with pytest.raises(KeyboardInterrupt):
            tell()
    assert signal.getsignal(signal.SIGINT) is before


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


def test_a_platform_without_sighup(monkeypatch):
    assert signal.SIGHUP in interrupt.SIGNALS
    number = signal.SIGHUP
    monkeypatch.delattr(signal, "SIGHUP")
    assert number not in runpy.run_path(interrupt.__file__)["SIGNALS"]


# -- in a fit ---------------------------------------------------------------------------------


def test_a_signal_during_set_up_leaves_before_the_first_step(monkeypatch, tmp_path):
    whole = run()
    steps = []
    with monkeypatch.context() as patch:
        spy(patch, "_prepare", before=lambda t: tell())
        spy(patch, "_step", before=lambda t: steps.append(1))
        with pytest.raises(inference.Interrupted, match=r"after step 0 of 32 \(saved in"):
            run(out=tmp_path)
    assert not steps
    assert_same(whole, run(out=tmp_path, resume=True))


def test_a_signal_before_the_network_is_looked_at(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "Replicate", _told(fit_module.Replicate))
        with pytest.raises(inference.Interrupted, match="after step 0 of 32"):
            run()


def _told(f, at=1):
    """A function that gets a signal in its n-th call."""
    calls = []

    def told(*args, **kwargs):
        calls.append(1)
        if len(calls) == at:
            tell(signal.SIGTERM)
        return f(*args, **kwargs)

    return told


def test_a_signal_while_the_result_is_written_comes_after_it(monkeypatch, tmp_path):
    whole = run()
    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "_finish", _told(fit_module._finish))
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
    def build(seed):
        rows = blobs()
        return *pair(rows), rows

    few = {k: v for k, v in QUICK.items() if k != "seed"}
    monkeypatch.setattr(fit_module, "_finish", _told(fit_module._finish, at=2))
    with pytest.raises(inference.Interrupted) as error:
        inference.fit_repeats(build, [5, 6, 7], together=together, **few)
    assert [one.settings.seed for one in error.value.fits] == ([5, 6, 7] if together else [5, 6])
