"""Streamed rows on the command line: what a run over them can, and what it trusts."""

import json

import numpy as np
import pytest
from command_line import WHOLE, call, metrics_of, sets
from pyroccam import data
from pyroccam.cli.runs import RunConfig

SETTINGS = ["--epochs", "2", *sets("hidden=[6] lr=0.01"), *WHOLE]

OWN = """
import torch
from pathlib import Path
from pyroccam import data

def rows(*, seed=0, share=0.2):
    Path(__file__).with_name("ran").touch()
    x = torch.arange(600.0).reshape(200, 3) % 7
    items = [(x[i], int(x[i, 0] > 3)) for i in range(200)]
    return data.stream(items, val=share, test=share, seed=seed, workers=0)
"""


def written(folder, n=300, seed=0):
    """A folder of arrays."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    folder.mkdir()
    for k, part in enumerate(np.array_split(np.arange(n), 3)):
        np.save(folder / f"x-{k}.npy", x[part])
        np.save(folder / f"y-{k}.npy", (x[part, 0] > x[part, 1]).astype(np.uint8))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run over a folder of arrays."""
    place = tmp_path_factory.mktemp("streamed")
    rows, out = written(place / "rows"), place / "run"
    said = call("fit", "gnj", "--data", rows, "--set", "data.val=40", *SETTINGS, "--out", out)
    return rows, out, said


def test_a_run_knows_its_rows(finished):
    rows, out, said = finished
    assert "Streamed('rows', classification: 2 classes, 3 inputs, rows: 230 train, 40 val" in said
    assert metrics_of(out)["rows"] == {"train": 230, "val": 40, "test": 30}
    config = RunConfig.read(out)
    assert config.data["name"] == str(rows)
    assert config.data["val"] == 40
    kept = json.loads((out / "data.json").read_text())
    assert kept["digest"] == data.load(**config.data).digest
    assert kept["split"]["val"] == 40


def test_scores_of_own_and_new_rows_reports_and_other_cuts(finished, tmp_path):
    rows, out, _ = finished
    for more in (["--split", "train"], ["--data", rows]):
        said = call("evaluate", out, *more)
        assert ("230 train rows" if "train" in more else "30 test rows") in said
        assert "ensemble" in said
        assert "handed back" in said
    new = written(tmp_path / "new", 50, seed=1)
    assert "50 test rows of new" in call("evaluate", out, "--data", new)
    assert "accuracy" in call("compress", out, "--cut", "valley")
    assert "Written to" in call("report", out, "--out", tmp_path / "report.html")
    assert "Written to" in call("export", out)


def test_depth_and_weights_of_rows(tmp_path):
    """Figures and the exact posterior pass over the rows in parts; rows of a table have weights."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(300, 2)), rng.normal(size=300)
    columns = {"a": x[:, 0], "b": x[:, 1], "w": rng.random(300), "y": x[:, 0] + noise}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=80)
    more = "data.target=y data.weights=w max_depth=2 width=4 likelihood=student-t epochs=2"
    how = ("--data", tmp_path / "t.parquet", *sets(more), "--out", tmp_path / "run")
    said = call("fit", "ldn", *how)
    assert "2 inputs" in said
    assert "handed back" in said
    config = RunConfig.read(tmp_path / "run")
    assert config.data["task"] == "regression"
    assert "handed back" in call("evaluate", tmp_path / "run", "--split", "train")
    assert "posterior.nc" in call("diagnose", tmp_path / "run", "--draws", "100")


def test_code_that_makes_data_runs_where_it_is_trusted_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows_of_mine.py").write_text(OWN)
    name, out = "rows_of_mine.py:rows", "run"
    call("fit", "gnj", "--data", name, "--set", "data.share=0.1", *SETTINGS, "--out", out)
    assert metrics_of(tmp_path / out)["rows"]["train"] == 160
    (tmp_path / "ran").unlink()
    for command in ("evaluate", "compress", "diagnose", "export"):
        said = call(command, out, code=2)
        assert "made by somebody's own code" in said
        assert "--trust" in said
    assert not (tmp_path / "ran").exists()
    assert "20 test rows" in call("evaluate", out, "--trust")
    (tmp_path / "ran").unlink()
    assert "160 train rows" in call("evaluate", out, "--data", name, "--split", "train")
    (tmp_path / "ran").unlink()
    call("report", out)
    assert not (tmp_path / "ran").exists()
    for name, more, words in (
        ("nothing", [], "has no function 'nothing'"),
        ("rows", ["--set", "data.n=3"], "has no option n"),
    ):
        asked = ("--data", f"rows_of_mine:{name}", *SETTINGS, *more, "--out", "c")
        assert words in call("fit", "gnj", *asked, code=2)


def test_a_run_without_test_rows_is_refused_before_it_trains(tmp_path):
    rows = written(tmp_path / "rows")
    asked = ("--data", rows, "--set", "data.test=0", *SETTINGS[:2], "--out", tmp_path / "run")
    said = call("fit", "ldn", *asked, code=2)
    assert "rows has no test rows" in said
    assert "data.test=0.1" in said
    assert not (tmp_path / "run").exists()
