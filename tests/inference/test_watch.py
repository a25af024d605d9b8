"""What is told of a fit while it runs."""

import functools
import sys

import pytest
import torch
from fitting import assert_same, blobs, pair, run, spy
from pyroccam import inference
from pyroccam.inference.storage.tensorboard import TensorBoard
from pyroccam.inference.training.trainer import Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

fit_module = sys.modules["pyroccam.inference.fits.fitting"]


class Logger:
    """As Lightning's loggers are."""

    def __init__(self):
        self.rows, self.settings, self.ended = [], [], []

    def log_metrics(self, metrics, step):
        self.rows.append((step, metrics))

    def log_hyperparams(self, params):
        self.settings.append(params)

    def finalize(self, status):
        self.ended.append(status)


class Killed(BaseException):
    """As a kill, which nothing is saved at."""


def lines(folder):
    return (folder / "history.csv").read_text().splitlines()


def test_every_row_is_told_and_the_training_does_not_notice():
    rows, logger = [], Logger()

    def draws_numbers(row):
        rows.append(row)
        torch.rand(3)

    found = run(watch=[draws_numbers, logger])
    assert rows == found.history
    told = [{k: v for k, v in row.items() if k != "epoch"} for row in rows]
    assert logger.rows == [(int(row["epoch"]), one) for row, one in zip(rows, told, strict=True)]
    assert logger.settings[0]["lr"] == 0.02
    assert logger.settings[0]["seed"] == 3
    assert logger.ended == ["success"]
    assert_same(found, run())


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_the_file_grows_with_the_fit_and_a_kill_repeats_no_row(tmp_path, monkeypatch, seconds):
    """Killed after five evaluations, with checkpoints at every step and with none at all."""
    whole = run(out=tmp_path / "whole")
    logger, out, seen = Logger(), tmp_path / "killed", []

    def look(trainer, *_):
        seen.append(len(lines(out)) - 1)
        if len(seen) == 5:
            raise Killed

    monkeypatch.setattr(
        fit_module, "Trainer", functools.partial(Trainer, checkpoint_seconds=seconds)
    )
    with monkeypatch.context() as patch:
        spy(patch, "_evaluate", after=look)
        with pytest.raises(Killed):
            run(out=out, watch=logger)
    assert seen == [1, 2, 3, 4, 5]
    assert lines(out) == lines(tmp_path / "whole")[:6]
    with open(out / "history.csv", "a") as file:
        file.write("" if seconds else "6.0,0.1")  # a row that was cut off
    assert_same(whole, run(out=out, watch=logger, resume=True))
    assert lines(out) == lines(tmp_path / "whole")
    # Without any checkpoint the fit begins anew, and so do the rows.
    again = list(range(1, 9)) if seconds else [6, 7, 8]
    assert [step for step, _ in logger.rows] == [1, 2, 3, 4, 5, *again]
    assert logger.ended == ["failed", "success"]


def test_a_tracker_that_cannot_begin_costs_no_training(tmp_path):
    class Full:
        def begin(self, folder, history):
            raise OSError("no space left")

    with pytest.warns(UserWarning, match=r"failed \(OSError: no space left\)"):
        run(watch=Full(), out=tmp_path)
    assert len(lines(tmp_path)) > 1


def test_a_watcher_that_fails_costs_no_training():
    calls = []

    def fails(row):
        calls.append(row)
        raise ConnectionError("no such host")

    with pytest.warns(UserWarning, match=r"failed \(ConnectionError: no such host\)") as said:
        found = run(watch=[fails, calls.append])
    assert len(said) == 1
    assert len(calls) == 1 + len(found.history)


def test_repeats_are_told_apart():
    for together in (True, False):
        logger, rows = Logger(), []

        def build(seed):
            data = blobs()
            return *pair(data), data

        settings = {"epochs": 2, "batch_size": 16, "progress": False, "device": "cpu"}
        inference.fit_repeats(
            build, [4, 7], together=together, watch=(logger, rows.append), **settings
        )
        names = {name for _, metrics in logger.rows for name in metrics}
        assert {"seed-4/loss", "seed-7/val_nll"} <= names
        assert sorted((row["seed"], row["epoch"]) for row in rows) == [
            (4, 1), (4, 2), (7, 1), (7, 2),
        ]  # fmt: skip


def test_what_cannot_watch_is_refused_before_the_training():
    with pytest.raises(ValueError, match="expected a function of a row or a tracker"):
        run(watch=[3])
    with pytest.raises(ValueError, match="writes into the folder of the fit, which has none"):
        run(watch=TensorBoard())


def test_tensorboard_has_the_rows_while_it_runs_and_once_after_a_stop(tmp_path, monkeypatch):
    def stop(trainer, *_):
        if trainer.epoch == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        spy(patch, "_evaluate", after=stop)
        with pytest.raises(KeyboardInterrupt):
            run(out=tmp_path, watch=TensorBoard())
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]
    found = run(out=tmp_path, watch=TensorBoard(), resume=True)
    assert steps_of(tmp_path) == [int(row["epoch"]) for row in found.history]


def steps_of(folder):
    (events,) = (folder / "tensorboard").iterdir()
    return [one.step for one in EventAccumulator(str(events)).Reload().Scalars("loss")]
