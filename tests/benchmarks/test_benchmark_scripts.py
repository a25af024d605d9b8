"""The benchmark scripts run, and write what their readers read."""

import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner
from uncompiled import leave_uncompiled

from benchmarks import (
    against,
    deployed,
    gpu,
    harness,
    processes,
    report,
    steps,
    tracing,
)  # fmt: skip
from benchmarks.cache import VARIABLE, empty_cache
from benchmarks.harness import Plan, Report
from benchmarks.workloads import table as workloads
from benchmarks.workloads.depth import DepthProblem, depth_workload
from benchmarks.workloads.table import Entry

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


@pytest.mark.parametrize("wrong", [("third",), ("first", "--only", "nobody")])
def test_steps_says_what_there_is(two, tmp_path, wrong):
    result = CliRunner().invoke(steps.app, [*wrong, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert ("second" if wrong[0] == "third" else "pyroccam eager") in result.output
    assert not list(tmp_path.iterdir())


def test_an_empty_cache_is_forgotten(monkeypatch):
    monkeypatch.setenv(VARIABLE, "before")
    with empty_cache():
        inside = os.environ[VARIABLE]
        assert os.listdir(inside) == []
    assert os.environ[VARIABLE] == "before"
    assert not os.path.exists(inside)


def test_tracing(monkeypatch, tmp_path):
    monkeypatch.setattr(tracing, "PAIRS", (("bayes", "mlp"),))
    monkeypatch.setattr(tracing, "NUMBERS", ("mlp",))
    monkeypatch.setattr(tracing, "wake_compiler", lambda device: None)
    graphs = leave_uncompiled(monkeypatch)
    text = call(tracing.app, "--out", tmp_path, "--rounds", 1)
    found = json.loads((tmp_path / "cpu" / "tracing.json").read_text())
    (one,), (plain,) = found["traced"], found["numbers"]
    assert len(graphs) == 1 + 2  # of a step, and of two draws
    seconds, ms = one["seconds"], {way: took["median"] for way, took in one["ms"].items()}
    assert seconds["compiled"] > 0
    gain = ms["as it is"] - ms["graph"]
    pays = 1e3 * (seconds["graph"] - seconds["as it is"]) / gain if gain > 0 else None
    assert one["pays_from"]["graph"] == pays
    assert one["pays_from"]["rule"] > 1000
    assert set(plain["ms"]) == {"by hand", "ours"}
    for took in found["logarithms"].values():
        assert took.keys() == {"torch.log", "torch.log1p", "ours"}
    assert "| bayes | mlp |" in text
    assert "| ours / by hand |" in text
    kinds = [f"{whose}, {law}" for law in ("normal", "uniform") for whose in ("torch", "ours")]
    assert list(found["draws"]) == kinds
    assert min(found["draws"].values()) > 0


def test_deployed(monkeypatch, tmp_path):
    def refused(net, x):
        raise RuntimeError("not today\nand why")

    forms = {"eager": deployed.FORMS["eager"], "TorchScript": deployed.FORMS["TorchScript"]}
    monkeypatch.setattr(deployed, "FORMS", {**forms, "other": refused})
    name = "spirals, 20 to 5 blocks"
    monkeypatch.setattr(deployed, "NETWORKS", {name: deployed.NETWORKS[name]})
    text = call(deployed.app, "--out", tmp_path, "--rounds", 2)
    one, many = json.loads((tmp_path / "cpu" / "deployed.json").read_text())["rows"]
    assert (one["batch"], many["batch"]) == (1, 256)
    assert one["ratio"]["original, eager"]["median"] == 1.0
    assert one["ratio"]["small, eager"]["median"] < 0.8  # a quarter of the blocks
    assert one["failed"] == dict.fromkeys(
        ["original, other", "small, other"], "RuntimeError: not today"
    )
    assert f"| {name} | 256 |" in text
    path = tmp_path / "cpu" / "deployed.json"
    found = json.loads(path.read_text())
    found["rows"].append({"network": "another"})
    path.write_text(json.dumps(found))
    asked = ("--out", tmp_path, "--rounds", 2, "--network", name, "--form", "TorchScript")
    call(deployed.app, *asked)
    other, *rows = json.loads(path.read_text())["rows"]
    assert other == {"network": "another"}
    assert [row["failed"] for row in rows] == [{}, {}]
    refusal = CliRunner().invoke(deployed.app, ["--form", "nothing"])
    assert refusal.exit_code == 2
    assert "is none of" in refusal.output


@pytest.mark.parametrize("network", list(deployed.NETWORKS))
def test_what_is_left_is_smaller_and_takes_the_same_rows(network):
    shape, original, small = deployed.NETWORKS[network]
    one, other = original().eval(), small().eval()
    assert one(torch.zeros(2, *shape)).shape == other(torch.zeros(2, *shape)).shape
    sizes = [sum(p.numel() for p in net.parameters()) for net in (one, other)]
    assert sizes[1] < 0.7 * sizes[0]


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


@pytest.mark.parametrize(("asked", "said"), [
    (("no-such-version", "lenet"), "git has no revision 'no-such-version'"),
    (("HEAD", "lenett"), "lenet"),
    (("HEAD", "lenet", "--engines", "eager,fast"), "'fast' is no engine"),
])  # fmt: skip
def test_against_what_is_not_there(asked, said):
    found = CliRunner().invoke(against.app, list(asked))
    assert found.exit_code == 2
    assert said in found.output


def test_processes_take_turns_and_are_killed(monkeypatch, tmp_path):
    name = "LeNet-300-100 gnj"
    monkeypatch.setattr(processes, "ROWS", {name: 64})
    monkeypatch.setattr(processes, "BATCH", 32)
    said = call(processes.app, "speed", "--rounds", 1, "--epochs", 2, "--out", tmp_path)
    assert said.count("times faster; of the processor") == 2
    (shares,) = [line for line in said.splitlines() if "% of the" in line]
    assert shares.startswith(f"{name}: 535,588 numbers in")
    assert shares in call(processes.app, "shares", "--out", tmp_path)
    (file,) = tmp_path.rglob("processes-speed.json")
    found = json.loads(file.read_text())["networks"][name]
    assert [len(found["seconds"][size]) for size in "12"] == [1, 1]
    assert found["ratio_of_best"]["clock"] == found["best"]["1"][0] / found["best"]["2"][0]

    def rank():
        return int(os.environ["RANK"])

    assert processes.forked(2, rank) == [0, 1]
    assert processes.forked(2, lambda: time.sleep(9 * rank()), kill=(1, 0.1)) == [None, -9]


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
