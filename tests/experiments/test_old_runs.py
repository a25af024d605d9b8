"""Runs that the first layout of the house wrote: opened, gone on with, scored as they were.

They lie in ``tests/support/old_runs``, as version 0.1.0 left them at 6f6380f: without digests and
without a record of their data. ``numbers`` is of 7ed6a3b, where numbers were a fit of their own and
the posterior the next one.
"""

import json
import shutil
from pathlib import Path

import pytest
from command_line import call
from pyroccam import data, inference
from pyroccam.experiments.runs.loading import load_fit
from pyroccam.experiments.runs.opening import UncheckedRun
from pyroccam.inference.packing import read

OLD = Path(__file__).parents[1] / "support" / "old_runs"


@pytest.fixture
def old(tmp_path):
    def copied(name):
        return Path(shutil.copytree(OLD / name, tmp_path / name))

    return copied


def numbers(found, wanted):
    """What two nested results have in common in numbers, side by side."""
    for name, value in wanted.items():
        if isinstance(value, dict):
            yield from numbers(found[name], value)
        elif isinstance(value, float):
            yield name, found[name], value


@pytest.mark.parametrize("name", ["depth", "weights"])
def test_an_old_run_scores_what_it_scored(old, name):
    run = old(name)
    wanted = json.loads((run / "metrics.json").read_text())["test"]
    with pytest.warns(UncheckedRun, match="no checksums"):
        fit = load_fit(run)
    found = fit.evaluate("test") if name == "depth" else {
        how: fit.evaluate("test", how=how) for how in wanted if how in ("deterministic", "ensemble")
    }  # fmt: skip
    wanted = {key: value for key, value in wanted.items() if key in found}
    same = [*numbers(found, wanted)]
    assert len(same) >= 4
    for key, ours, theirs in same:
        assert ours == pytest.approx(theirs, abs=2e-4), key
    with pytest.warns(UncheckedRun):
        assert "Error" not in call("evaluate", run) + call("diagnose", run)


def test_an_old_run_that_was_broken_off_is_gone_on_with(old):
    run = old("interrupted")
    settings = ["max_depth=2", "width=6", "batch_size=64", "compile=false"]
    said = call("fit", "ldn", "--data", "spirals", "--epochs", 15, "--no-compare", "--resume",
                "--out", run, *(f for s in settings for f in ("--set", s)))  # fmt: skip
    assert "Error" not in said
    found = json.loads((run / "metrics.json").read_text())
    whole = json.loads((OLD / "depth" / "metrics.json").read_text())
    same = [
        *numbers(found["test"], whole["test"]),
        *numbers(found["structure"], whole["structure"]),
    ]
    assert len(same) > 6
    for key, ours, theirs in same:
        assert ours == pytest.approx(theirs, abs=2e-3), key


def test_old_files_of_networks_are_read(old):
    spirals, digits = data.load("spirals", seed=0), data.load("digits", seed=0)
    pruned = inference.load(old("depth") / "pruned")
    assert pruned(spirals.x_test).shape == (1800, 2)
    small = read(old("weights") / "compressed.pocc")
    right = (small(digits.x_test).argmax(-1) == digits.y_test).float().mean()
    kept = json.loads((OLD / "weights" / "metrics.json").read_text())
    assert float(right) == pytest.approx(kept["compressed"]["test"]["accuracy"], abs=0.01)


def test_a_run_whose_numbers_were_a_fit_is_opened_and_not_gone_on_with(old):
    run = old("numbers")
    wanted = json.loads((run / "metrics.json").read_text())["test"]["ensemble"]
    found = load_fit(run).evaluate("test", how="ensemble")
    for key in ("accuracy", "nll", "brier", "ece"):
        assert found[key] == pytest.approx(wanted[key], abs=2e-4), key
    assert "Error" not in call("evaluate", run)
    settings = ["hidden=[4]", "lr=0.01"]
    said = call("fit", "gnj", "--data", "digits", "--epochs", 8, "--resume", "--out", run,
                *(f for s in settings for f in ("--set", s)), code=2)  # fmt: skip
    assert "begun by an earlier version, where numbers were a fit of their own" in said
