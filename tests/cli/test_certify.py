"""``pyroccam certify``: of a run by each way that it has, of a file by its data."""

import json
from dataclasses import replace

import pytest
import torch
from command_line import SMALL, WHOLE, call
from pyroccam import data, inference
from pyroccam.inference.certificates import ByTest


def test_runs_and_files_are_certified(tmp_path):
    run = tmp_path / "run"
    call("fit", "gnj", "--out", run, *SMALL, *WHOLE)
    said = call("certify", run, "--out", tmp_path / "found.json")
    assert "posterior: none" in said  # the prior is improper
    found = json.loads((tmp_path / "found.json").read_text())
    file = run / "compressed.pocc"
    by_test = inference.certify(file, data.load("digits"), by=ByTest())
    assert found["compressed.pocc, test rows"]["error"] == by_test.error
    assert found["compressed.pocc"]["vacuous"]
    assert str(by_test) in call("certify", file, "--data", "digits")
    assert "--data" in call("certify", file, code=2)
    assert "confidence" in call("certify", file, "--data", "digits", "--confidence", 2, code=2)


def test_a_file_carries_its_certificate(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    small = inference.files.Small(net)
    found = inference.certify(small, data.load("digits"))
    kept = replace(small, note=str(found)).save(tmp_path / "small.pocc")
    assert str(found) in call("certify", kept)
    assert "--data" in call("certify", kept, "--choices", 2, code=2)
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(inference.load(kept)(x), net(x))
    assert small.bytes < kept.stat().st_size < small.bytes + len(str(found))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gnj", "hidden=[8] narrow=[]"),
        ("ldn", "width=8 max_depth=2"),
        ("structure", "width=8 random=1 structure=gumbel-softmax:1:0.3"),
    ],
)
def test_classes_in_an_order_are_told_by_their_cut_points(method, options, tmp_path):
    """Their networks have one output, which alone says no class."""
    more = [part for one in options.split() for part in ("--set", one)]
    said = call("fit", method, "--data", "digits", "--epochs", 2, "--set", "likelihood=ordinal",
                "--no-compare", *more, "--out", tmp_path / "run")  # fmt: skip
    assert "With 95 % certainty" in said
    assert "test rows: With 95 % certainty" in call("certify", tmp_path / "run")
