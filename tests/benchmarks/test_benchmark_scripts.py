"""The benchmark scripts run, and write what their readers read."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import (
    against,
    gpu,
    harness,
    report,
    steps,
)  # fmt: skip
from benchmarks.harness import Plan, Report
from benchmarks.workloads import table as workloads
from benchmarks.workloads.depth import DepthProblem, depth_workload
from benchmarks.workloads.table import Entry

pytestmark = pytest.mark.nightly

EAGER = ("hand-written eager", "pyroccam eager")


@pytest.fixture(autouse=True)
def _quick_and_without_traces(monkeypatch):
    monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=lambda: None))  # slow among tests
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def call(app, *arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def tiny(name, title, device, contenders=EAGER):
    problem = DepthProblem("mlp", {"width": 4, "max_depth": 2}, batch=8, N=50)
    return depth_workload(name, title, problem, device, contenders)


@pytest.fixture
def two(monkeypatch):
    plan = Plan(rounds=2, steps=1, warmup=0, settle=0)
    rows = {name: Entry(f"Workload {name}", tiny, plan) for name in ("first", "second")}
    for module in (steps, workloads):
        monkeypatch.setattr(module, "WORKLOADS", rows)


def test_steps(two, tmp_path):
    arguments = ("--out", tmp_path, "--device", "cpu")
    text = call(steps.app, "second", *arguments, "--rounds", 3)
    found = report.read(tmp_path / "cpu" / "second.json")
    assert [row.name for row in found.contenders] == list(EAGER)
    assert found.plan == Plan(rounds=3, steps=1, warmup=0, settle=0)
    assert found.machine["threads"] == 1
    assert {"torch", "pyro-ppl"} <= set(found.machine["versions"])
    assert found.parameters["network"] == {"width": 4, "max_depth": 2}
    assert text.count("**Workload") == 1
    assert (tmp_path / "cpu" / "steps.png").exists()
    # a second call leaves the first one's result, and the report shows both
    call(steps.app, "first", *arguments, "--only", "nobody; eager")
    before = (tmp_path / "cpu" / "second.json").stat().st_mtime_ns
    text = call(steps.app, *arguments, "--report")
    assert text.count("**Workload") == 2
    assert (tmp_path / "cpu" / "second.json").stat().st_mtime_ns == before

    for wrong, said in ((["third"], "second"), (["first", "--only", "nobody"], "pyroccam eager")):
        result = CliRunner().invoke(steps.app, [*wrong, "--out", str(tmp_path / "other")])
        assert result.exit_code == 2
        assert said in result.output
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(not (against.TREE / ".git").exists(), reason="no history here")
def test_against_an_earlier_version(monkeypatch, tmp_path):
    """Of this version, against itself; what is unpacked is the last commit."""
    plan = Plan(rounds=2, steps=1, warmup=0, settle=0)
    entry = replace(workloads.find("lenet"), plan=plan)
    monkeypatch.setitem(workloads.WORKLOADS, "lenet", entry)
    asked = ("HEAD", "lenet", "--engines", "eager", "--rounds", 2, "--out", tmp_path)
    text = call(against.app, *asked)
    (row,) = json.loads((tmp_path / "cpu" / "against.json").read_text())["rows"]
    assert row["ms"].keys() == {"before", "now"}
    assert 0.05 < row["ratio"]["median"] < 20
    assert "| lenet | eager |" in text

    for wrong, said in (
        (("no-such-version", "lenet"), "git has no revision 'no-such-version'"),
        (("HEAD", "lenett"), "lenet"),
        (("HEAD", "lenet", "--engines", "eager,fast"), "'fast' is no engine"),
    ):
        found = CliRunner().invoke(against.app, list(wrong))
        assert found.exit_code == 2
        assert said in found.output


def test_the_table_of_a_gpu(two, monkeypatch, tmp_path):
    """On a CPU without what only a GPU tells; where there is no time, without what compiles."""
    monkeypatch.setattr(gpu, "NAMES", ("first", "second"))
    monkeypatch.setattr(gpu, "wake_compiler", lambda device: None)
    monkeypatch.setattr(harness, "wake_compiler", lambda device: None)
    monkeypatch.setattr(tiny, "__defaults__", ((*EAGER, "pyroccam compiled"),))
    text = call(gpu.app, "--device", "cpu", "--out", tmp_path, "--seconds", 1e-6, "--steps", 1)
    found = [Report.from_json(one) for one in json.loads((tmp_path / "gpu.json").read_text())]
    assert [one.name for one in found] == ["first", "second"]
    for one in found:
        assert [row.name for row in one.contenders] == [*EAGER, "pyroccam compiled"]
        assert len(one["pyroccam eager"].rounds_ms) == one.plan.rounds == 5  # a third
        assert one["pyroccam compiled"].error.startswith("TimeoutError")
        assert one["pyroccam eager"].memory is None
    assert text.count("\n| ") == 10
