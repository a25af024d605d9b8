"""The harness, on a clock that only the contenders move."""

import json
import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from benchmarks import harness, report
from benchmarks.harness import Contender, Expected, Plan, Workload

CPU = torch.device("cpu")
MACHINE = {
    "device": "cpu", "cpu": "a | processor", "threads": 1,
    "versions": {"torch": "2", "pyro-ppl": "1"},
}  # fmt: skip


class Clock:
    def __init__(self):
        self.now = 0.0
        self.calls = []

    def perf_counter(self):
        return self.now

    process_time = perf_counter

    def step(self, name, ms, loss=0.5, first=0.0, broken_from=None):
        """A step of ``ms`` milliseconds (a function of the number of the call)."""
        count = 0

        def run():
            nonlocal count
            if broken_from is not None and count >= broken_from:
                raise ArithmeticError("broke\nin the middle")
            self.now += 1e-3 * ms(count) + (first if count == 0 else 0.0)
            count += 1
            self.calls.append(name)
            return loss

        return run


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(harness, "time", made)
    monkeypatch.setattr(harness, "wake_compiler", lambda device: None)
    monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=lambda: None))  # slow among tests
    return made


def contender(clock, name, ms=lambda count: 1.0, more=None, **about):
    return Contender(name, lambda: clock.step(name, ms, **(more or {})), **about)


def measured(*contenders):
    plan = Plan(rounds=3, steps=2, warmup=1, settle=1)
    expected = Expected(0.5, 0.01)
    work = Workload("small", "A small one", {"B": 2}, contenders, "base", lambda: expected)
    return harness.measure(work, plan, CPU, MACHINE)


# -- order ------------------------------------------------------------------------------------


def test_everyone_is_in_every_round_and_first_as_often_as_the_others():
    names = ["a", "b", "c"]
    rounds = [Plan().order(r, names) for r in range(6)]
    assert all(sorted(one) == names for one in rounds)
    assert sorted(one[0] for one in rounds) == ["a", "a", "b", "b", "c", "c"]
    followers = {pair for one in rounds for pair in pairwise(one)}
    assert len(followers) == 6  # each follows each other one
    assert Plan().order(3, []) == []


def test_times_are_of_the_rounds_alone_and_ratios_are_taken_within_them(clock):
    # one first step, one of warm-up, then rounds of one that settles and two that are timed
    drift = {3: 1.0, 4: 1.0, 6: 10.0, 7: 10.0, 9: 4.0, 10: 4.0}
    found = measured(
        contender(clock, "base", lambda n: drift.get(n, 1000.0)),
        contender(clock, "twice", lambda n: 2 * drift.get(n, 1000.0)),
    )
    assert found["base"].rounds_ms == pytest.approx([1.0, 10.0, 4.0])
    assert found["base"].ms.median == pytest.approx(4.0)
    assert found["twice"].ms.median == pytest.approx(8.0)
    assert vars(found["twice"].ratio) == pytest.approx({"median": 2.0, "lower": 2.0, "upper": 2.0})
    assert clock.calls.count("base") == clock.calls.count("twice") == 2 + 3 * 3


def test_compilation_is_the_first_step_without_an_ordinary_one(clock):
    more = {"first": 7.0}
    compiled = contender(clock, "compiled", more=more, compiled=True)
    found = measured(contender(clock, "base", more=more), compiled)
    assert found["compiled"].compile_seconds == pytest.approx(7.0)
    assert found["compiled"].ms.median == pytest.approx(1.0)
    assert found["base"].compile_seconds is None
    assert found["base"].first_seconds == pytest.approx(7.001)


# -- failures ---------------------------------------------------------------------------------


def not_there():
    raise ModuleNotFoundError("No module named 'somewhere'")


def test_what_fails_is_reported_by_name_and_disturbs_nobody(clock):
    found = measured(
        contender(clock, "base"),
        Contender("absent", not_there),
        contender(clock, "late", more={"broken_from": 6}),
        contender(clock, "wrong", more={"loss": 0.7}),
        contender(clock, "not a number", more={"loss": math.nan}),
        contender(clock, "one wrong of two", more={"loss": torch.tensor([0.5, 0.7])}),
        contender(clock, "another sum", more={"loss": 0.7}, same=False),
        contender(clock, "double", lambda n: 2.0),
    )
    assert found["absent"].error == "ModuleNotFoundError: No module named 'somewhere'"
    assert "not_there" in found["absent"].traceback
    assert found["late"].error == "ArithmeticError: broke\nin the middle"
    for name in ("wrong", "one wrong of two"):
        assert "0.7 nats" in found[name].error
        assert "expected 0.5" in found[name].error
    assert "does not compute the same loss" in found["not a number"].error
    for name in ("absent", "late", "wrong", "not a number"):
        assert found[name].ms is None
        assert found[name].ratio is None
        assert found[name].rounds_ms == []
    assert found["another sum"].ms is not None
    assert found["double"].ratio.median == pytest.approx(2.0)
    text = report.table(found)
    assert "| absent | fails: ModuleNotFoundError: No module named 'somewhere' |" in text
    assert "| late | fails: ArithmeticError: broke |" in text


# -- files, tables and figures ----------------------------------------------------------------


def several(clock):
    return measured(
        contender(clock, "base", lambda n: 1.0 + n % 5),
        contender(clock, "pyroccam", lambda n: 0.1, more={"loss": torch.tensor([0.5])}),
        contender(clock, "slow", lambda n: 300.0, note="a word", compiled=True),
        Contender("absent", not_there),
    )


def test_a_report_is_read_as_it_was_written(clock, tmp_path):
    found = several(clock)
    path = report.write(found, tmp_path)
    assert path.name == "small.json"
    assert report.read(path) == found
    assert report.read_folder(tmp_path, ["none", "small"]) == [found]
    rows = json.loads(path.read_text())["contenders"]
    assert [row["name"] for row in rows] == ["base", "pyroccam", "slow", "absent"]


def test_products_are_counted_and_beside_the_peak(clock, monkeypatch):
    """Two networks of one 3 × 4 × 5 product each: 120 operations, at 240,000 a second 0.5 ms."""
    monkeypatch.setattr(harness, "peak", lambda device: 240e3)
    x, w = torch.ones(3, 4), torch.ones(4, 5)

    def build():
        run = clock.step("pyroccam eager", lambda count: 10.0)
        return lambda: (x @ w, x @ w, run())[-1]

    eager = Contender("pyroccam eager", build, networks=2)
    compiled = contender(clock, "pyroccam compiled", lambda count: 2.0)
    found = measured(contender(clock, "base"), eager, compiled)
    assert (found.flops, found.peak) == (120, 240e3)
    assert "0.500 ms" in report.table(found)
    assert "25.0 % of pyroccam compiled" in report.table(found)
    assert report.Report.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert measured(contender(clock, "base")).flops is None
