"""``pyroccam diagnose``, and that every method of the table can be diagnosed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call
from pyroccam import inference
from pyroccam.cli.diagnosis import overall, runs_of
from pyroccam.cli.methods.table import METHODS
from pyroccam.cli.runs.building import build_network
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference import diagnostics
from pyroccam.inference.arviz import adapter as arviz_adapter
from pyroccam.inference.diagnostics.finding import Finding

SMALL = ["--data", "digits", "--epochs", "3", "--set", "hidden=[6]", "--set", "start=0",
         "--set", "finish=0"]  # fmt: skip


@pytest.fixture(scope="module")
def repeats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on the same rows, as seeds of one command have them."""
    folder: Path = tmp_path_factory.mktemp("runs") / "two"
    call("fit", "gnj", "--out", folder, "--repeats", "2", *SMALL)
    return folder


def test_findings_figures_and_files(repeats: Path) -> None:
    run = repeats / "seed-0"
    said = call("diagnose", run, "--draws", "100")
    written = json.loads((run / "diagnostics.json").read_text())
    found = {one["name"]: one for one in written["findings"]}
    assert {*found} == {"ELBO", "k-hat", "LOO", "prior sensitivity", "held-out rows"}
    assert written["draws"] == 100
    for one in found.values():
        assert one["verdict"] in said
        assert "".join(one["text"].split())[:60] in "".join(said.split())
    assert found["ELBO"]["verdict"] == "refused"  # of three epochs
    gain = found["held-out rows"]["numbers"]
    fit = load_fit(run, "cpu")
    expected = diagnostics.elpd(fit)
    assert gain["elpd"] == pytest.approx(expected.elpd)
    for name in ("posterior.nc", "diagnostics.json", "figures/diagnose-prior-sensitivity.svg"):
        assert (run / name).is_file()
        assert name in said
    tree = arviz_adapter.read(run / "posterior.nc")
    assert tree["posterior"]["1.scale"].shape == (1, 500, 64)


def test_a_loaded_fit_has_its_history(repeats: Path) -> None:
    fit = load_fit(repeats / "seed-1", "cpu")
    written = json.loads((repeats / "seed-1" / "fit.json").read_text())
    assert len(fit.history) == 3
    assert fit.history[-1]["epoch"] == 3.0
    assert fit.val_nll == written["val_nll"]
    assert fit.seconds == written["seconds"] > 0


def test_repeats_are_compared(repeats: Path) -> None:
    said = call("diagnose", repeats, "--draws", "100")
    written = json.loads((repeats / "diagnostics.json").read_text())
    assert written["findings"][-1]["name"].startswith("agreement")
    assert "agreement" in said
    assert (repeats / "seed-0" / "posterior.nc").is_file()


def test_folders(repeats: Path, tmp_path: Path) -> None:
    assert [p.name for p in runs_of(repeats)] == ["seed-0", "seed-1"]
    assert runs_of(repeats / "seed-1") == [repeats / "seed-1"]
    assert "is not a run" in call("diagnose", tmp_path, code=2)
    assert "100" in call("diagnose", repeats, "--draws", "5", code=2)


@pytest.mark.parametrize("command", ["diagnose", "evaluate", "report"])
def test_a_run_that_leads_elsewhere_is_refused(repeats: Path, tmp_path: Path, command: str) -> None:
    run = Path(shutil.copytree(repeats / "seed-0", tmp_path / "run"))
    (tmp_path / "theirs").write_text("theirs")
    (run / "diagnostics.json.part").symlink_to(tmp_path / "theirs")
    assert "diagnostics.json.part is a link" in call(command, run, code=2)
    assert (tmp_path / "theirs").read_text() == "theirs"


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name: str) -> None:
    """One step of each fit of a method, then all that there is to say."""
    method = METHODS[name]
    small: dict[str, tuple[str, dict[str, Any]]] = {
        "stack": ("mlp", {"width": 4, "max_depth": 2}),
        "net": ("perceptron", {"hidden": [6, 6]}),
        "graph": ("perceptron-graph", {}),
    }
    network, sets = small[method.over]
    sets |= {"points": 2} if "points" in method.options else {}
    config, data = RunConfig.resolve(name, "digits", network=network, seed=0, sets=sets)
    data = replace(data, x_train=data.x_train[:150], y_train=data.y_train[:150])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = config.chosen.build(build_network(config, data), data)
        whole = {"steps": 1, "batch_size": data.N, "progress": False}
        fit = inference.fit(*pair, data, **whole)
        stages = list(config.stages)
        if name == "sws":  # after one step all weights still belong to the value zero
            stages.pop()
        for stage in stages:
            fit = inference.fit(*stage.build(fit), data, **whole)
        fit, _ = config.chosen.concluded(fit, {})
        tree = fit.to_arviz(3, rows=20)
        found = diagnostics.diagnose(fit, draws=100)
    groups = {*(tree.children if hasattr(tree, "children") else tree.groups())}
    assert {"log_likelihood", "posterior_predictive", "observed_data"} <= groups
    assert found[0].name == "ELBO"
    assert found[-1].name == "held-out rows"
    assert found[-1].verdict != "refused"
    for one in found:
        assert len(one.text) > 20
        json.dumps(one.to_json(), allow_nan=False)
    if name in ("gnj", "ghs", "ldn", "structure"):  # what has scales, depth or structure
        assert "posterior" in groups
        assert {f.name: f.verdict for f in found}["prior sensitivity"] != "refused"


def test_the_last_sentence() -> None:
    def of(*verdicts: Any) -> str:
        return overall([Finding(f"n{k}", v, "") for k, v in enumerate(verdicts)])

    assert "Do not rely" in of("good", "poor", "doubtful")
    assert "n1" in of("good", "poor", "doubtful")
    assert "with care" in of("good", "doubtful", "refused")
    assert "Nothing speaks against" in of("good", "refused")
    assert "No diagnostic" in of("refused")
    assert str(Finding("ELBO", "good", "It rests.")) == "good: ELBO. It rests."


def test_the_rows_of_a_diagnosis_are_bounded_and_said(repeats, monkeypatch, capsys) -> None:
    fit = load_fit(repeats / "seed-0", "cpu")
    said = {one.name: one.text for one in diagnostics.diagnose(fit, draws=100, rows=50)}
    expected = diagnostics.loo(fit, 100, rows=50).finding().text
    assert said["LOO"] == f"{expected} Of 50 of {fit.data.N:,} training rows; rows= takes more."
    assert "50 of" in said["prior sensitivity"]
    work = 100 * fit.data.N * (64 * 6 + 6 * 10)
    monkeypatch.setattr("pyroccam.inference.diagnostics.overall.MOST_WORK", 0.99 * work)
    monkeypatch.setattr("pyroccam.inference.diagnostics.overall.ROWS", 40)
    capsys.readouterr()
    said = {one.name: one.text for one in diagnostics.diagnose(fit, draws=100, progress=True)}
    assert f"Of 40 of {fit.data.N:,} training rows" in said["LOO"]
    shown = capsys.readouterr().err
    assert all(name in shown for name in ("diagnose", "held-out rows", "100%"))
    with pytest.raises(ValueError, match="rows=1"):
        diagnostics.diagnose(fit, rows=1)
