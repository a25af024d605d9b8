"""Random structure on the command line: the choice, its network, and what chance would do."""

import io
import json

import pytest
import torch
from command_line import call
from pyroccam import inference
from pyroccam.cli.console import PlainConsole
from pyroccam.cli.runs.loading import load_fit
from pyroccam.cli.runs.summary import print_run

SMALL = ("--data", "digits", "--epochs", "2", "--set", "width=8")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    sets = ("--set", "structure=gumbel-softmax:1:0.3", "--set", "random=2")
    return folder, call("fit", "structure", "--out", folder, *SMALL, *sets, rendered=True)


def test_a_run(run):
    folder, said = run
    found = json.loads((folder / "metrics.json").read_text())
    structure, small = found["structure"], found["discretised"]
    assert list(structure["chosen"]) == ["2.v0-v1", "2.v0-v2", "2.v1-v2"]
    for edge, probs in structure["probs"].items():
        assert sum(probs.values()) == pytest.approx(1.0, abs=1e-4)
        assert structure["chosen"][edge] == [max(probs, key=probs.get)]
    assert set(found["test"]) == {"stochastic", "deterministic", "ensemble"}
    assert small["test"] == pytest.approx(found["test"]["deterministic"])
    assert small["parameters"] < small["parameters_before"]
    assert found["retrained"]["parameters"] == small["parameters"]
    runs = found["random"]["runs"]
    assert len(runs) == found["random"]["spread"]["accuracy"]["n"] == 2
    assert " ".join(found["learnt"][0]["sentences"][0].split()) in " ".join(said.split())
    for name in ("structure-2", "training", "reliability"):
        assert (folder / "figures" / f"{name}.png").stat().st_size > 0


def test_the_network_of_a_run_and_the_run_itself_are_read_back(run):
    folder, _ = run
    fit = load_fit(folder)
    # The temperature is part of the state: it has fallen to its end.
    assert float(fit.model.temperature.value) == pytest.approx(0.3)
    net = inference.load(folder / "discretised")
    x = fit.data.x_test
    torch.testing.assert_close(net(x), inference.shrink(fit).net(x))


def test_export_is_of_the_chosen_network(run, tmp_path):
    folder, _ = run
    call("export", folder, "--no-scaling", "--out", tmp_path / "net.pt2")
    x = load_fit(folder).data.x_test[:5]
    with torch.no_grad():
        expected = inference.load(folder / "discretised")(x)
    torch.testing.assert_close(torch.export.load(tmp_path / "net.pt2").module()(x), expected)


def test_one_random_structure_has_no_deviation(run):
    found = json.loads((run[0] / "metrics.json").read_text())
    found["random"]["runs"] = found["random"]["runs"][:1]
    console = PlainConsole(file=io.StringIO(), width=200)
    print_run(console, found)
    assert "chosen structure, cut out" in console.file.getvalue()
    assert "1 structures at random" in console.file.getvalue()
    assert "±" not in console.file.getvalue()


def test_resuming_a_finished_run_changes_nothing(run):
    folder, _ = run
    before = json.loads((folder / "metrics.json").read_text())
    sets = ("--set", "structure=gumbel-softmax:1:0.3", "--set", "random=2")
    call("fit", "structure", "--out", folder, "--resume", *SMALL, *sets)
    after = json.loads((folder / "metrics.json").read_text())
    assert after["structure"] == before["structure"]
    assert after["random"]["spread"] == before["random"]["spread"]


def test_random_weights_and_no_comparison(tmp_path):
    sets = ("--set", "prior=normal:1", "--set", "structure=categorical", "--no-compare")
    call("fit", "structure", "--out", tmp_path / "run", *SMALL, *sets)
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "retrained" not in found
    assert "random" not in found


def test_repeats(tmp_path):
    more = ("--repeats", "2", "--no-compare", "--out", tmp_path / "runs")
    said = call("fit", "structure", *SMALL, *more)
    found = json.loads((tmp_path / "runs" / "metrics.json").read_text())
    assert found["spread"]["discretised"]["accuracy"]["n"] == 2
    assert "entropy" in said
