"""What is told of a fit while it runs."""

import functools
import sys

import pytest
import torch
from fitting import assert_same, blobs, pair, run, spy
from pyroccam import inference
from pyroccam.inference.training.trainer import Trainer

fit_module = sys.modules["pyroccam.inference.training.fitting"]


class Killed(BaseException):
    """As a kill, which nothing is saved at."""


def lines(folder):
    return (folder / "history.csv").read_text().splitlines()


def test_every_row_is_told_and_the_training_does_not_notice():
    rows = []

    def draws_numbers(row):
        rows.append(row)
        torch.rand(3)

    found = run(watch=draws_numbers)
    assert rows == found.history
    assert_same(found, run())


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_the_file_grows_with_the_fit_and_a_kill_repeats_no_row(tmp_path, monkeypatch, seconds):
    """Killed after five evaluations, with checkpoints at every step and with none at all."""
    whole = run(out=tmp_path / "whole")
    rows, out, seen = [], tmp_path / "killed", []

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
            run(out=out, watch=rows.append)
    assert seen == [1, 2, 3, 4, 5]
    assert lines(out) == lines(tmp_path / "whole")[:6]
    with open(out / "history.csv", "a") as file:
        file.write("" if seconds else "6.0,0.1")  # a row that was cut off
    assert_same(whole, run(out=out, watch=rows.append, resume=True))
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


def test_repeats_are_told_apart():
    for together in (True, False):
        rows = []

        def build(seed):
            data = blobs()
            return *pair(data), data

        settings = {"epochs": 2, "batch_size": 16, "progress": False, "device": "cpu"}
        inference.fit_repeats(build, [4, 7], together=together, watch=rows.append, **settings)
        assert sorted((row["seed"], row["epoch"]) for row in rows) == [
            (4, 1), (4, 2), (7, 1), (7, 2),
        ]  # fmt: skip
