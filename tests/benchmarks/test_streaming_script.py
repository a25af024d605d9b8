"""The script of what streamed rows cost runs, and writes what its reader reads."""

import json
from types import SimpleNamespace

import numpy as np
import torch
from typer.testing import CliRunner

from benchmarks import streaming


def call(*arguments):
    threads = torch.get_num_threads()
    result = CliRunner().invoke(streaming.app, [str(a) for a in arguments])
    torch.set_num_threads(threads)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_memory(monkeypatch, tmp_path):
    """In this process, whose memory is that of all tests before."""

    def here(command, **kwargs):
        assert command[1:5] == ["-P", "-m", "benchmarks.streaming", "one"]
        return SimpleNamespace(stdout=call(*command[4:]))

    monkeypatch.setattr(streaming, "subprocess", SimpleNamespace(run=here))
    arguments = ("--folder", tmp_path / "rows", "--rows", 20_000, "--columns", 4)
    text = call("memory", *arguments, "--out", tmp_path)
    (found,) = json.loads((tmp_path / "cpu" / "streaming.json").read_text())["memory"]
    assert found["rows"] == 16_000
    assert found["steps"] == 16
    mib = [*found["mib"].values()]
    assert mib == sorted(mib)
    assert "| 16,000 |" in text
    assert not list((tmp_path / "rows").iterdir())


def test_rows_of_a_logistic_regression(tmp_path):
    streaming.generate(tmp_path, 2500, 6, block=1000)
    x, y = (np.load(tmp_path / f"{part}.npy") for part in "xy")
    assert x.shape == (2500, 6)
    assert x.dtype == np.float32
    w = np.linalg.lstsq(x, y - 0.5, rcond=None)[0]
    assert np.abs(w[::2]).max() < 0.05  # five standard errors of 0.5 / sqrt(2500)
    assert np.abs(w[1::2]).max() > 0.05
    before = (tmp_path / "x.npy").stat().st_mtime_ns
    streaming.generate(tmp_path, 2500, 6)
    assert (tmp_path / "x.npy").stat().st_mtime_ns == before


def test_steps(tmp_path):
    text = call("steps", "--rounds", 1, "--rows", 2000, "--eager", "--out", tmp_path)
    found = json.loads((tmp_path / "cpu" / "streaming.json").read_text())["steps"]
    for clock in ("clock", "processor"):
        assert {*found[clock]} == {"memory", "files", "items"}
        assert found[clock]["memory"]["ratio"]["median"] == 1.0
        assert found[clock]["files"]["ms"]["median"] > 0
    assert "| files |" in text


def test_depth_and_report(tmp_path):
    arguments = ("--seeds", 1, "--rows", 300, "--epochs", 4, "--blocks", 1, "--blocks", 64)
    text = call("depth", *arguments, "--out", tmp_path)
    found = json.loads((tmp_path / "cpu" / "streaming.json").read_text())["depth"]
    assert [one["block"] for one in found["blocks"]] == [1, 64]
    assert 0 <= found["blocks"][1]["tv_running"]["mean"] <= 1
    assert call("report", "--out", tmp_path) == text
