"""``pyroccam diagnose``, and that every method of the table can be diagnosed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from pyroccam.cli.diagnosis import overall
from pyroccam.cli.runs import load_fit
from pyroccam.inference import diagnostics
from pyroccam.inference.diagnostics import Finding


def test_findings_figures_and_files(ensemble: tuple[Path, str], tmp_path: Path) -> None:
    """Of one run, and of two on the same rows, which are compared."""
    run = Path(shutil.copytree(ensemble[0], tmp_path / "two")) / "seed-0"
    said = call("diagnose", run, "--draws", "100")
    written = json.loads((run / "diagnostics.json").read_text())
    found = {one["name"]: one for one in written["findings"]}
    assert {*found} == {"ELBO", "k-hat", "prior sensitivity", "held-out rows"}
    assert written["draws"] == 100
    for one in found.values():
        assert one["verdict"] in said
        assert "".join(one["text"].split())[:60] in "".join(said.split())
    assert found["ELBO"]["verdict"] == "refused"  # of three epochs
    fit = load_fit(run, "cpu")
    assert found["held-out rows"]["numbers"]["elpd"] == pytest.approx(diagnostics.elpd(fit).elpd)
    for name in ("posterior.nc", "diagnostics.json", "figures/diagnose-prior-sensitivity.png"):
        assert (run / name).is_file()
        assert name in said
    import arviz  # which the command has done by now, with its warnings

    tree = arviz.from_netcdf(str(run / "posterior.nc"), engine="h5netcdf")
    assert tree["posterior"]["1.scale"].shape == (1, 500, 64)
    told = json.loads((run / "fit.json").read_text())
    assert [row["epoch"] for row in fit.history] == [1.0, 2.0, 3.0]
    assert (fit.val_nll, fit.seconds) == (told["val_nll"], told["seconds"])
    assert "agreement" in call("diagnose", run.parent, "--draws", "100")
    written = json.loads((run.parent / "diagnostics.json").read_text())
    assert written["findings"][-1]["name"].startswith("agreement")
    assert "is not a run" in call("diagnose", tmp_path, code=2)
    assert "100" in call("diagnose", run, "--draws", "5", code=2)


def test_the_last_sentence() -> None:
    def of(*verdicts: Any) -> str:
        return overall([Finding(f"n{k}", v, "") for k, v in enumerate(verdicts)])

    assert "Do not rely" in of("good", "poor", "doubtful")
    assert "n1" in of("good", "poor", "doubtful")
    assert "with care" in of("good", "doubtful", "refused")
    assert "Nothing speaks against" in of("good", "refused")
    assert "No diagnostic" in of("refused")
    assert str(Finding("ELBO", "good", "It rests.")) == "good: ELBO. It rests."


def test_the_rows_of_a_diagnosis_are_bounded_and_said(runs: Any, monkeypatch: Any) -> None:
    fit = load_fit(runs("gnj")[0], "cpu")
    said = {one.name: one.text for one in diagnostics.diagnose(fit, draws=100, rows=50)}
    assert "Of 50 of" in said["prior sensitivity"]
    assert "Of 50 of" in said["LOO"]
    work = 100 * fit.data.N * (64 * 12 + 12 * 10)
    monkeypatch.setattr("pyroccam.inference.diagnostics.overall.MOST_WORK", 0.99 * work)
    monkeypatch.setattr("pyroccam.inference.diagnostics.overall.ROWS", 40)
    said = {one.name: one.text for one in diagnostics.diagnose(fit, draws=100)}
    assert f"Of 40 of {fit.data.N:,} training rows" in said["prior sensitivity"]
