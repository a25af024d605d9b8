"""One budget for the whole length of a run: what it chooses, says, keeps to and goes on with."""

import os
import signal

import pytest
import torch
from command_line import call, metrics_of
from fitting import blobs, fit_weights, pair
from pyroccam import inference, models
from pyroccam.cli import RunRequest
from pyroccam.cli.methods import find
from pyroccam.cli.methods.depth import ClosedForm
from pyroccam.cli.runs import Budget, RunConfig
from pyroccam.cli.runs import budget as budgets
from pyroccam.cli.runs.budget import Paces, choose, parts_of
from pyroccam.data import PyroccamError
from pyroccam.inference.shrinking import decision
from pyroccam.inference.training import Pace, Replicate, Settings, Trained, Trainer, ordinary
from safetensors.torch import load_file

DIGITS = ["--data", "digits", "--set", "hidden=[8]"]
DEPTHS = ["--data", "spirals", "--set", "max_depth=2", "--set", "width=4"]


def chosen(config, data, asked, paces=None, left=None):
    most = Budget.parse(asked).steps if left is None else left
    return choose(config, data, asked, most, paces, compare=True)


# -- what is asked for ------------------------------------------------------------------------


def test_a_budget_is_a_time_or_a_number_of_steps():
    found = [Budget.parse(text) for text in ("90s", "5min", "1.5h", "6000steps")]
    assert [one.seconds for one in found] == [90, 300, 5400, None]
    assert [one.steps for one in found] == [None, None, None, 6000]


@pytest.mark.parametrize(
    "words",
    ["gnj --epochs 3", "gnj --set steps=50", "dns --set surgery=4", "gnj --budget 5",
     "gnj --budget 0s", "gnj --budget -1min", "gnj --budget 1.5steps", "gnj --budget 1e3s"],
)  # fmt: skip
def test_it_is_the_only_length_and_a_length(words):
    more = [] if "--budget" in words else ["--budget", "300steps"]
    data = DIGITS if more else ["--data", "no-such-data"]  # before anything is loaded
    said = call("fit", *words.split(), *data, *more, code=2)
    assert words.split()[-1].partition("=")[2] or words.split()[-1] in said
    assert "no-such-data" not in said


# -- steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("gnj", {}),
        ("gnj", {"narrow": [0.3, 0.6], "start": 0.0}),
        ("bayes", {"threshold": "noise"}),
        ("variance", {}),
        ("deep-compression", {}),
        ("dns", {}),
        ("sws", {}),
        ("structure", {}),
        ("ldn", {}),
    ],
)
def test_the_steps_of_the_parts_add_up_to_the_budget(method, sets):
    """To all of it but the steps of one more epoch; in the proportions that the method has."""
    config, data = RunConfig.resolve(RunRequest(method, "digits", set_=sets))
    found = chosen(config, data, "9000steps")
    settings = Settings.of(found.settings)
    each = -(-data.N // settings.batch_size)
    steps = {p.name: p.number * p.epochs * each for p in parts_of(found, data, True)}
    usual = {p.name: p.number * p.epochs * each for p in parts_of(config, data, True)}
    scale = settings.epochs / Settings.of(config.settings).epochs_for(data.N)
    assert sum(steps.values()) <= 9000
    one_more = sum(usual.values()) / Settings.of(config.settings).epochs_for(data.N)
    trainings = 10 + sum(p.number for p in parts_of(found, data, True))  # each rounded to epochs
    assert sum(steps.values()) > 9000 - one_more - trainings * each
    for name, before in usual.items():
        number = {p.name: p.number for p in parts_of(found, data, True)}[name]
        assert steps[name] == pytest.approx(scale * before, abs=(2.01 * number + 8) * each)


def test_a_run_makes_no_more_steps_than_that(tmp_path, monkeypatch):
    """Counted one by one: numbers, posterior and search."""
    made, step = [], Trainer._step

    def count(self, rows):
        made.append(isinstance(self.replicates[0].model, models.PlainNetwork))
        step(self, rows)

    monkeypatch.setattr(Trainer, "_step", count)
    out = tmp_path / "run"
    said = call("fit", "gnj", *DIGITS, "--budget", "1400steps", "--out", out)
    config = RunConfig.read(out)
    each = -(-1294 // 64)  # training rows of digits
    epochs = config.settings["epochs"]
    # 17 + 3 x 3 of numbers, 8 of the posterior and 8 x 4 of the search.
    assert epochs == 29
    assert made.count(False) == 8 * each
    assert 26 * each < made.count(True) <= 58 * each
    assert f"{epochs} epochs, as steps: " in said
    assert config.budget["asked"] == "1400steps"


@pytest.mark.parametrize("begun", [True, False])
def test_a_search_is_as_long_as_it_is_taken_for(monkeypatch, begun):
    """Where all but the first are as good, with a plain network that is there or is trained."""
    rows, made = blobs(600), []
    fit = fit_weights(models.priors.GroupNormalJeffreys(), rows=rows)

    def train(net, fit, epochs, lr, teacher=None, out=None):
        made.append(epochs)
        losses = torch.full((2, len(rows.x_val)), 0.5 - 0.01 * len(made)).double()
        return Trained(net, losses[0], losses, lr)

    monkeypatch.setattr(ordinary, "trained", train)
    monkeypatch.setattr(decision, "trained", train)
    needed = iter([0.0, 1.0] + [0.0] * 7)  # the first of the plain one beside itself
    monkeypatch.setattr(decision, "needed_tolerance", lambda *_: next(needed))
    plain = train(fit.model.start_network(), fit, 0, 3e-3) if begun else None
    decision.smallest(fit, inference.Search(12, plain=plain))
    method = find("gnj").with_options({"finish": 0.5})
    known = method.search(Settings.of({"epochs": 24}), rows, begun)
    assert known == {"search": (1, sum(made))}


def test_a_run_is_as_long_as_its_rows_ask_for():
    """Digits have 1,293 training rows: 21 batches of 64, 81 of 16."""
    for words, expected in (
        ({}, 120),  # of 2,500 steps
        ({"batch_size": 16}, 50),
        ({"batch_size": 16, "steps": 2500}, 31),
        ({"epochs": 3}, 3),
    ):
        config, rows = RunConfig.resolve(RunRequest("gnj", "digits", set_=words))
        assert config.training.epochs_for(rows.N) == expected


# -- time -------------------------------------------------------------------------------------


def test_the_longest_run_that_a_time_allows():
    """By hand: 3 to begin, 201 epochs of 0.5, 41 evaluations (one in 5 epochs) of 0.1, 10 in the
    end."""
    config, data = RunConfig.resolve(RunRequest("variance", "digits"))
    paces = Paces(Pace(3.0, 0.5, 0.1), Pace(0.0, 9.0), 10.0)
    found = choose(config, data, "1h", 118.0, paces, compare=False)
    assert found.settings["epochs"] == 201
    assert "steps" not in found.settings
    assert "118 s in all" in found.budget["said"]
    with pytest.raises(PyroccamError, match="too short"):
        choose(config, data, "1h", 13.0, paces, compare=False)


class Clock:
    """A time that goes on only where somebody makes it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def during(self, patch, owner, name, seconds):
        original = getattr(owner, name)

        def slow(*args, **kwargs):
            self.now += seconds(*args, **kwargs) if callable(seconds) else seconds
            return original(*args, **kwargs)

        patch.setattr(owner, name, slow)


def test_a_rehearsal_times_steps_and_evaluations(monkeypatch):
    """54 rows in batches of 16 are three of them and one of 6, of which each is first traced."""
    rows = blobs()
    clock, seen = Clock(), set()

    def step(trainer, batch):
        size = batch.rows.shape[1]
        first = 2.0 if size not in seen else 0.0
        seen.add(size)
        return first + 0.001 * size

    clock.during(monkeypatch, Trainer, "_step", step)
    clock.during(monkeypatch, Replicate, "evaluate", 0.3)
    settings = Settings.of({"epochs": 9, "batch_size": 16})
    trainer = Trainer([Replicate(*pair(rows), rows, 0)], settings)
    pace = trainer.rehearse(clock)
    assert pace.begin == pytest.approx(4.0)
    assert pace.epoch == pytest.approx(0.054)
    assert pace.evaluation == pytest.approx(0.3)


def go_by(patch, clock):
    """Let commands go by another clock, at which they begin at zero."""
    how = {"began": 0.0, "clock": clock}
    within = budgets.within
    patch.setattr(budgets, "within", lambda *args, **rest: within(*args, **{**rest, **how}))


def take(patch, seconds, before=lambda *arguments: None):
    """Let an epoch of every part of a run take so long, whatever ``before`` measures."""

    def measure(*arguments):
        before(*arguments)
        return Paces(Pace(0.0, seconds), Pace(0.0, seconds), 1.0)

    patch.setattr(budgets, "measure", measure)


def test_a_run_ends_within_its_time(tmp_path, monkeypatch):
    """By a clock of which steps, evaluations and tests take what they are made to take."""
    clock = Clock()
    clock.during(monkeypatch, Trainer, "_step", 0.05)
    clock.during(monkeypatch, Replicate, "evaluate", 0.2)
    clock.during(monkeypatch, ClosedForm, "on_test", 1.0)
    go_by(monkeypatch, clock)
    call("fit", "ldn", *DEPTHS, "--budget", "2min", "--out", tmp_path / "run")
    assert 0.5 * 120 <= clock.now <= 120
    assert RunConfig.read(tmp_path / "run").budget["asked"] == "2min"


@pytest.mark.nightly
def test_measuring_leaves_the_run_as_it_is(tmp_path, monkeypatch):
    """The run of a time is the run of the epochs and the engine that were chosen for it."""
    go_by(monkeypatch, lambda: 0.0)
    take(monkeypatch, 1.0, before=budgets.measure)
    call("fit", "gnj", *DIGITS, "--budget", "30s", "--out", tmp_path / "a")
    settings = RunConfig.read(tmp_path / "a").settings
    own = [f"{name}={settings[name]}" for name in ("epochs", "compile")]
    same = [word for one in own for word in ("--set", one)]
    call("fit", "gnj", *DIGITS, *same, "--out", tmp_path / "b")
    assert_equal(tmp_path / "a", tmp_path / "b")


def assert_equal(one, other):
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert a.keys() == b.keys()
    assert all(a[name].equal(b[name]) for name in a)


# -- going on ---------------------------------------------------------------------------------


def test_a_run_goes_on_to_the_length_that_it_began_with(tmp_path, monkeypatch):
    """On a machine that is ten times as slow by then, to the same bits."""
    command = ["fit", "gnj", *DIGITS, "--budget", "30s"]

    go_by(monkeypatch, lambda: 0.0)
    take(monkeypatch, 0.5)
    call(*command, "--out", tmp_path / "whole")
    with monkeypatch.context() as patch:
        steps, step = [], Trainer._step

        def stop(self, rows):
            step(self, rows)
            steps.append(1)
            if len(steps) == 480:  # the numbers before it have 420
                os.kill(os.getpid(), signal.SIGINT)

        patch.setattr(Trainer, "_step", stop)
        said = call(*command, "--out", tmp_path / "broken", code=130)
    assert "Stopped after step" in said
    assert "same command with --resume" in said
    assert not (tmp_path / "broken/metrics.json").exists()
    take(monkeypatch, 5.0)
    said = call(*command, "--out", tmp_path / "broken", "--resume")
    assert RunConfig.read(tmp_path / "whole").budget["said"] in said
    assert_equal(tmp_path / "whole", tmp_path / "broken")
    assert metrics_of(tmp_path / "broken")["epochs"] == metrics_of(tmp_path / "whole")["epochs"]
    said = call(*command[:-1], "40s", "--out", tmp_path / "broken", "--resume", code=2)
    assert "was started with --budget 30s" in said
    said = call(*command[:-2], "--out", tmp_path / "broken", "--resume", code=2)
    assert "was started with other settings" in said
    more = ["--set", "batch_size=32", "--out", tmp_path / "broken", "--resume"]
    assert "settings.batch_size was 64, is 32" in call(*command, *more, code=2)


def test_seeds_are_of_one_length(tmp_path):
    more = ["--budget", "60steps", "--repeats", 2, "--no-compare", "--out", tmp_path / "two"]
    call("fit", "ldn", *DEPTHS, *more)
    found = [RunConfig.read(tmp_path / "two" / f"seed-{k}").settings for k in (0, 1)]
    assert found[0]["epochs"] == found[1]["epochs"] == 60 // -(-found[0]["batch_size"] // 512)
