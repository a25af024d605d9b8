"""Soft weight-sharing on the command line: a fit of two stages, and its file."""

import json

import pytest
from command_line import call
from pyroccam import guides, inference
from pyroccam.cli.runs.loading import load_fit

SMALL = [
    "--data", "digits", "--epochs", "8", "--set", "hidden=[12]", "--set", "lr=0.01",
    "--set", "components=8", "--set", "spread=0.6", "--set", "scale=0.25",
    "--set", "zero_precision=[5000,2]", "--set", "retrain=2", "--set", "zero=0.7",
    "--set", "share=30", "--set", "share_lr=0.005",
    "--set", "tau=0.02", "--set", "batch_size=64",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "shared"
    return folder, call("fit", "sws", "--out", folder, *SMALL)


def test_a_run_shares_its_weights(run):
    folder, said = run
    found = json.loads((folder / "metrics.json").read_text())
    assert [stage["name"] for stage in found["stages"]] == ["sws", "share", "retrain"]
    structure = found["structure"]
    assert 1 < structure["nonzero_percent"] < 80
    assert all(1 <= bits <= 3 for bits in structure["bits"].values())  # of seven values
    assert found["compressed"]["test"]["accuracy"] > 0.6  # of ten classes
    assert structure["file_bytes"] == (folder / "compressed.pocc").stat().st_size
    assert f"{structure['file_bytes']:,} bytes" in said


def test_a_finished_run_is_loaded_and_gives_the_same_network(run):
    folder, _ = run
    result = load_fit(folder)
    assert isinstance(result.guide.by, guides.Book)
    structure = json.loads((folder / "metrics.json").read_text())["structure"]
    assert inference.shrink(result).report.nonzero == structure["weights"]
