"""``pyroccam certify``: of a run by each way that it has, of a file by its data."""

import json
from dataclasses import replace

import torch
from command_line import call, sets
from pyroccam import data, inference
from pyroccam.cli.methods.base import known_of
from pyroccam.inference.certificates import ByTest


def test_runs_and_files_are_certified(runs, tmp_path):
    run, _ = runs("gnj")
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


def test_classes_in_an_order_are_told_by_their_cut_points(tmp_path):
    """Their networks have one output, which alone says no class."""
    own = sets("likelihood=ordinal structure=gumbel-softmax:1:0.3 width=8 epochs=2")
    said = call(
        "fit", "structure", "--data", "digits", *own, "--no-compare", "--out", tmp_path / "run"
    )
    assert "With 95 % certainty" in said
    assert "test rows: With 95 % certainty" in call("certify", tmp_path / "run")


def test_a_short_file_is_certified_beside_the_test_rows():
    """In place of nothing, where it says more than that the same answer to all would be as good."""
    y = torch.arange(20_000) % 2
    x = torch.randn(20_000, 2)
    x[:, 0] += 6.0 * y
    first, rest = slice(18_000), slice(18_000, None)
    whole = data.Dataset.from_tensors(x[first], y[first], x[rest], y[rest], standardise=False)
    net = torch.nn.Linear(2, 2).eval()
    for weight, count in (([1.0, 0.0], 2), ([0.0, 0.0], 1)):
        tensors = {"weight": torch.tensor([[0.0, 0.0], weight]), "bias": torch.tensor([3.0, 0.0])}
        net.load_state_dict(tensors)
        assert len([one for one in known_of(net, whole) if "certainty" in one]) == count
