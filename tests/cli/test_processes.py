"""``pyroccam fit`` in several processes: one run, told once, written once."""

import functools
import json
import logging
import os
import signal
import sys

import pytest
import torch
import torch.distributed.launcher.api as api
from interrupted import work
from processes import failing, together
from pyroccam import data
from pyroccam.cli import commands as cli
from pyroccam.cli.runs import execution as _runs  # noqa: F401  before it is forked
from pyroccam.data import PyroccamError
from pyroccam.inference import distributed
from pyroccam.inference.distributed import Ended, refuse_device
from pyroccam.inference.distributed.launching import _quiet
from pyroccam.inference.distributed.ranks import RanksError
from typer.testing import CliRunner

LDN = ["fit", "ldn", "--data", "spirals", "--epochs", "3", "--set", "max_depth=2", "--set",
       "compile=false", "--device", "cpu"]  # fmt: skip


def command(arguments, said):
    """The exit code of a command in this process, which says into a file of its own."""
    rank = distributed.joined().rank
    sys.stdout = sys.stderr = open(said / f"{rank}.txt", "w")  # noqa: SIM115  of this process
    try:
        code = cli.app(arguments, standalone_mode=False)
    except SystemExit as ended:
        code = ended.code
    sys.stdout.close()
    return code or 0


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.modules["pyroccam.cli.runs.execution"], "draw", lambda *a, **k: None)

    def run(*arguments, size=2):
        said = tmp_path / "said"
        said.mkdir(exist_ok=True)
        codes = together(command, size, [*LDN, *arguments], said)
        texts = [(said / f"{rank}.txt").read_text() for rank in range(size)]
        for path in said.iterdir():
            path.unlink()
        return codes, texts

    return run


def test_a_run_of_two_processes_is_written_and_told_by_one(run, tmp_path):
    out = tmp_path / "run"
    codes, (first, second) = run("--out", str(out))
    assert codes == [0, 0], (first, second)
    assert "Written to" in first
    assert second == ""
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["engine"]["processes"] == 2
    assert json.loads((out / "config.json").read_text())["processes"] == 2
    assert [*out.glob("ddn-*/fit.json")]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    codes, texts = run("--out", str(out))  # it is not to be gone on with
    assert codes == [2, 2]
    assert "".join(texts).count("holds a run already") == 1
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
    codes, texts = run("--out", str(out), "--resume")
    assert codes == [0, 0], texts
    again = json.loads((out / "metrics.json").read_text())
    assert again["structure"] == metrics["structure"]
    for wrong, words in (
        ("--set=lr=-1", "lr=-1"),
        ("--budget=10s", "--budget in time, and several"),
    ):
        codes, texts = run(wrong)
        assert codes == [2, 2]
        assert "".join(texts).count(words) == 1


def test_processes_are_launched_once_with_all_that_was_asked_for(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(distributed, "launch", lambda *given: seen.append(given))
    out = tmp_path / "run"
    asked = [*LDN, "--processes", "3", "--out", str(out)]
    assert CliRunner().invoke(cli.app, asked).exit_code == 0
    ((function, processes, (arguments,)),) = seen
    assert function.__name__ == "fit_in_process"
    assert processes == 3
    assert arguments["processes"] == 1
    assert arguments["epochs"] == 3
    assert arguments["out"] == out
    assert arguments["request"].set_ == {"max_depth": 2, "compile": False}
    for code, ends in ((2, 2), (130, 130), (-9, 137)):

        def end(*given, code=code):
            raise Ended(1, code)

        monkeypatch.setattr(distributed, "launch", end)
        found = CliRunner().invoke(cli.app, asked)
        assert found.exit_code == ends
        assert ("the process of rank 1 was ended by SIGKILL" in found.output) == (code == -9)

    monkeypatch.setattr(distributed, "launch", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(data, "load", lambda *_, **__: pytest.fail("loaded"))
    for given, said in (
        (["gnx"], "Unknown method 'gnx'"),
        (["gnj", "--device", "cuda:1"], "2 processes on cuda:1, which is one"),
        (["gnj", "--set", "epochs=1", "--epochs", "1"], "epochs was given twice"),
    ):
        asked = ["fit", *given, "--processes", "2", "--out", str(tmp_path / "nowhere")]
        found = CliRunner().invoke(cli.app, asked)
        assert found.exit_code == 2
        assert said in " ".join(found.output.split())
    assert not (tmp_path / "nowhere").exists()


def test_a_gpu_for_each_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("auto", "cuda"):
        refuse_device(device, 2)
        with pytest.raises(RanksError):
            refuse_device(device, 3)
    refuse_device("cpu", 9)
    refuse_device("cuda:1", 1)
    with pytest.raises(RanksError):
        refuse_device("cuda:0", 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refuse_device("auto", 9)


# -- the launcher itself ----------------------------------------------------------------------


def ranks_and_sum():
    ranks = distributed.joined()
    found = torch.tensor([1.0 + ranks.rank])
    ranks.sum_([found])
    return ranks.size, found.item()


def test_a_function_is_launched_in_several_processes(monkeypatch):
    """Forked, to spare the imports; the test below has them."""
    quick = functools.partial(api.LaunchConfig, start_method="fork")
    monkeypatch.setattr(api, "LaunchConfig", quick)
    assert distributed.launch(ranks_and_sum, 2) == (2, 3.0)


def test_what_a_process_raises_is_in_the_error_of_the_launcher():
    with pytest.raises(Ended, match="rank 1 failed by ValueError: a mistake of one's own") as found:
        distributed.launch(failing, 2)
    assert found.value.code == 1
    with pytest.raises(PyroccamError):
        distributed.launch(failing, 0)


def test_ctrl_c_while_processes_begin_is_one_line(monkeypatch, capfd):
    """What they import then would end by a stack of Python's."""
    monkeypatch.setenv("CTRL_C_OF", str(os.getpid()))
    with pytest.raises(Ended) as ended:
        distributed.launch(work, 2)
    assert ended.value.code == 130
    assert capfd.readouterr().err == "Stopped before anything was done.\n"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.SIGINT not in blocked


def test_the_launcher_of_torch_is_quiet():
    """Its modules have loggers with levels of their own."""
    logger = logging.getLogger("torch.distributed.elastic.agent.server.api")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with _quiet():
            assert not logger.isEnabledFor(logging.WARNING)
        assert logger.level == logging.WARNING
    finally:
        logger.setLevel(before)
