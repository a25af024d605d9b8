"""Whole numbers of a learnt step on the command line: a fit, its file, and going on with it."""

import json

import pytest
import torch
from command_line import call
from pyroccam import guides
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.files.packed import read

SMALL = [
    "--data", "digits", "--set", "hidden=[20]", "--set", "steps=600", "--set", "kl_weight=0.1",
    "--set", "prior=integers:0.3", "--set", "lr=0.01",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "rounded"
    return folder, call("fit", "epr", "--out", folder, *SMALL)


def test_a_run_leaves_a_small_file(run):
    folder, said = run
    found = json.loads((folder / "metrics.json").read_text())
    structure = found["structure"]
    assert found["compressed"]["test"]["accuracy"] > 0.85  # of ten classes
    # Beside what biases cost, which are whole numbers of 1/32, the file is the network that was
    # trained and scored.
    mean, after = found["test"]["deterministic"], found["compressed"]["test"]
    assert after["accuracy"] == mean["accuracy"]
    assert after["nll"] == pytest.approx(mean["nll"], rel=1e-5)
    assert structure["file_bytes"] == (folder / "compressed.pocc").stat().st_size < 1500
    assert f"{structure['file_bytes']:,} bytes" in said


def test_a_finished_run_is_loaded_and_its_weights_are_whole_numbers(run):
    folder, _ = run
    result = load_fit(folder)
    assert isinstance(result.guide.by, guides.WholeSteps)
    net = read(folder / "compressed.pocc")
    weights = {name.split(".")[0]: p for name, p in net.named_parameters() if p.dim() == 2}
    assert weights.keys() == result.guide.steps.keys()
    for layer, step in result.guide.steps.items():
        weight = weights[layer].detach()
        whole = weight.double() / torch.tensor(step).double()
        assert (whole - whole.round()).abs().max() < 1e-4
        assert 2 < weight.unique().numel() < 100


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("prior=integers:0", "step=0"),
        ("prior=normal:1", "WholeSteps of the prior Normal"),
        ("threshold=valley", "guide='rounded'"),
        ("finish=0.2", "finish=0.2"),
    ],
)
def test_what_cannot_be_is_said_before_the_training(option, message):
    assert message in call("fit", "epr", "--data", "digits", "--set", option, code=2)
