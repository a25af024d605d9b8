"""Fits and predictions in several threads: Pyro's handlers and torch's generator are shared."""

import threading

import pytest
import torch
from bayesian import bayesian
from fitting import QUICK, assert_same, blobs, pair, run, spy
from pyroccam import inference
from pyroccam.models import threads
from random_weights import table


def in_thread(f, name="other"):
    """What a function gives, or raises, in a thread of its own; the thread has ended."""
    found = []

    def call():
        try:
            found.append(f())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call, name=name)
    thread.start()
    thread.join(120)
    assert found, "the thread did not end"
    return found[0]


def test_a_fit_in_another_thread_is_refused_by_name_and_does_no_harm(monkeypatch):
    whole, answers = run(), []

    def other(trainer):
        if trainer.step_number == 9 and not answers:
            answers.append(in_thread(run, "worker 2"))

    with monkeypatch.context() as patch:
        spy(patch, "_step", after=other)
        assert_same(whole, run())
    (refused,) = answers
    assert isinstance(refused, threads.Busy)
    assert "worker 2" in str(refused)
    assert_same(whole, in_thread(run))  # and nothing is left behind


def test_predictions_in_another_thread_change_neither_them_nor_the_fit(monkeypatch):
    """They take their turn between two steps."""
    rows = table()

    def fit():
        return inference.fit(*bayesian(rows), rows, **{**QUICK, "epochs": 20})

    whole = fit()
    alone = whole.outputs(rows.x_test, noise="activations")
    found, start = [], threading.Event()

    def predict():
        start.wait(60)
        found.extend(whole.outputs(rows.x_test, noise="activations") for _ in range(3))

    thread = threading.Thread(target=predict)
    thread.start()
    during = []

    def step(trainer):
        start.set()
        if trainer.step_number == trainer.total_steps - 1:
            during.append(len(found))

    with monkeypatch.context() as patch:
        spy(patch, "_step", before=step)
        again = fit()
    thread.join(60)
    assert during[0] > 0  # while the fit went on
    assert_same(whole, again)
    assert len(found) == 3
    assert all(torch.equal(outputs, alone) for outputs in found)


def test_a_fit_within_a_fit():
    """A callback may fit another pair; the outer fit goes on as if it had not."""
    rows = blobs()
    inner = []

    def track(model, guide, data):
        inner.append(run(epochs=2))
        return {"inner": inner[-1].val_nll}

    outer = run(track=track, evaluations=2)
    plain = run(evaluations=2)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, outer.model.state_dict()[name])
    assert_same(*inner)

    def again(model, guide, data):
        return {"x": inference.fit(model, guide, data, **QUICK).val_nll}

    with pytest.raises(ValueError, match=r"being trained by the fit.*copy\.deepcopy"):
        inference.fit(*pair(rows), rows, track=again, **QUICK)


def test_a_fit_where_gradients_are_off():
    whole, mode = run(epochs=2), torch.inference_mode
    rows = blobs()
    model, guide = pair(rows)
    with mode():
        assert_same(whole, inference.fit(model, guide, rows, **{**QUICK, "epochs": 2}))
        assert not torch.is_grad_enabled()


def test_a_thread_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(threads, "PATIENCE", 0.05)
    with threads.turn():
        refused = in_thread(lambda: run(epochs=1))
    assert isinstance(refused, threads.Busy)
    assert "waited" in str(refused)
