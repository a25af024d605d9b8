"""Scripts over depth and widths at once run, and their tables are made."""

import pytest
import torch
from scripts import call, read
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock
from typer import Typer
from typer.testing import CliRunner

from experiments.published import joint, path_of_lambda, tables
from experiments.published.small_resnet import small_resnet, small_resnet_stack
from experiments.published.structure import path_of_costs
from experiments.trials import bit_gates, every_size, in_turn, rounding, widths
from experiments.trials.encoder import encoder_stack
from experiments.trials.strangers import ordinary


def lines_of(folder, name):
    return "\n".join(tables.sections()[name].lines(folder))


def test_joint(tmp_path):
    small = ("--set", "width=6", "--set", "epochs=6")
    arguments = ("--data", "digits", "--depths", "2", "--fixed", "1", "--seeds", 1, *small)
    call(joint, *arguments, "--out", tmp_path, rendered=False)
    (run,) = read(tmp_path / "digits-mlp-2.json")["runs"]
    assert run["measure"] == "error, %"
    assert len(run["depth_probs"]) == 3
    assert read(tmp_path / "digits-mlp-fixed-1.json")["runs"][0]["depth"] == 1
    found = lines_of(tmp_path, "joint")
    assert "digits, mlp (seeds)" in found
    assert f"{run['error']:.2f}" in found
    assert joint._error({"rmse": 2.0, "nll": 1.0}) == 2.0


def test_widths(tmp_path, monkeypatch):
    monkeypatch.setattr(widths, "ROWS", 200)
    arguments = ("--seeds", 1, "--true", "1", "--width", 2, "--epochs", 4, "--out", tmp_path)
    call(widths, *arguments)
    (run,) = read(tmp_path / "units-1.json")["runs"]
    assert len(run["bounds"]) == len(run["width_probs"]) == 3
    assert lines_of(tmp_path, "widths").count("\n") == 2


def test_a_unit_is_a_block():
    """The stack of k units is the perceptron of their weights."""
    torch.manual_seed(0)
    stack, x = widths.unit_stack((3,), 2, max_depth=4), torch.randn(5, 3)
    units = list(stack.blocks)[:3]
    hidden = torch.cat([torch.relu(unit.into(x)) for unit in units], 1)
    out = torch.cat([unit.out.weight for unit in units], 1)
    torch.testing.assert_close(stack.at(3)(x), hidden @ out.T + stack.stem.bias)


def test_in_turn(tmp_path, monkeypatch):
    pytest.importorskip("torch_pruning")
    monkeypatch.setattr(in_turn, "SHAPE", {"blocks": 1, "width": 8})
    monkeypatch.setattr(in_turn, "RATIOS", (0.5,))
    short = {"batch_size": 128, "epochs": 1, "retrain": 1, "share": 1}
    monkeypatch.setattr(in_turn, "DEEP_COMPRESSION", short)
    monkeypatch.setattr(ordinary, "epochs_of", lambda rows: 2)
    call(in_turn, "--data", "digits", "--seeds", 1, "--set", "epochs=4", "--out", tmp_path)
    (run,) = read(tmp_path / "digits.json")["runs"]
    names = [row["name"] for row in run["contenders"]]
    expected = ["joint", "deep-compression", "in-turn", "ordinary", "int8"]
    assert names == [*expected, "without 50 % of channels"]
    found = lines_of(tmp_path, "in_turn")
    assert all(f"| {name} (1) |" in found for name in names)


def test_two_roundings(tmp_path):
    """Of the same network; a cell that is there is not fitted again, and one that fails is told."""
    quick = ("--set", "epochs=6", "--networks", "mlp", "--files", tmp_path / "files")
    call(rounding, "--sets", "iris", *quick, "--out", tmp_path)
    (run,) = read(tmp_path / "gnj.json")["runs"]
    one, other = (run[rule] for rule in rounding.RULES)
    assert one["nonzero"] >= other["nonzero"] > 0  # small weights are the zeroth multiple
    assert one["bytes"] != other["bytes"]
    assert 0 <= one["error"] <= 1
    before = (tmp_path / "gnj.json").stat().st_mtime_ns
    call(rounding, "--sets", "iris", *quick, "--out", tmp_path)
    assert (tmp_path / "gnj.json").stat().st_mtime_ns == before
    call(rounding, "--sets", "iris", *quick, "--set", "threshold=noise", "--out", tmp_path / "by")
    (by_rule,) = read(tmp_path / "by" / "gnj.json")["runs"]
    assert by_rule["relative"]["nonzero"] != one["nonzero"]  # a setting of the cut is taken
    app = Typer()
    app.command()(rounding.main)
    found = CliRunner().invoke(app, ["--method", "structure", "--out", str(tmp_path)])
    assert found.exit_code == 2
    *_, line, _ = lines_of(tmp_path, "rounding").split("\n")
    times = other["bytes"] / one["bytes"]
    assert line.startswith(f"| kept | 1 | {times:.2f} | {times:.2f} | {times:.2f} |")


def test_an_encoder_stops_anywhere():
    stack = encoder_stack((60,), 2, width=8, heads=2, max_depth=3).eval()
    assert stack.outputs(torch.randn(5, 60)).shape == (4, 5, 2)


def test_a_small_resnet_begins_as_it_did():
    """Of 64 channels it is torchvision's, with its weights."""
    torch.manual_seed(0)
    given = ResNet(BasicBlock, [1] * 4, num_classes=10)
    torch.manual_seed(0)
    own = small_resnet((3, 32, 32), 10)
    for name in ("conv1", "layer1", "layer3"):
        theirs = given.get_submodule(name).state_dict()
        for key, value in own.get_submodule(name).state_dict().items():
            assert torch.equal(value, theirs[key])
    stack = small_resnet_stack((1, 16, 16), 10, blocks=2, width=8)
    assert stack.outputs(torch.randn(3, 1, 16, 16)).shape == (7, 3, 10)


def test_every_size(tmp_path):
    call(
        every_size, "--data", "digits", "--width", 8, "--max-depth", 2, "--seeds", 1, "--set",
        "steps=60", "--out", tmp_path / "every_size",
    )  # fmt: skip
    found = read(tmp_path / "every_size" / "digits-2.json")
    (run,) = found["runs"]
    assert [one["weight"] for one in run["points"]] == [*every_size.WEIGHTS]
    for one in run["points"]:
        assert sum(one["depth_probs"]) == pytest.approx(1.0)
        assert one["depth"] <= 2
        assert 0 < one["error"] < 100
    assert "| 0.02 (1) |" in lines_of(tmp_path / "every_size", "every_size")


def test_structures_by_price(tmp_path):
    call(
        path_of_costs, "--data", "digits", "--rows", 0, "--network", "perceptron-graph", "--random",
        3, "--seeds", 1, "--set", "epochs=1", "--out", tmp_path / "structure_path",
    )  # fmt: skip
    (run,) = read(tmp_path / "structure_path" / "digits-perceptron-graph.json")["runs"]
    path, others = (run["networks"][name] for name in ("path", "random"))
    assert [one["weight"] for one in path] == [*path_of_costs.WEIGHTS]
    assert len(others) == 3
    assert run["front"] == path_of_costs.front(path, others)
    assert "| 0 | 1 |" in lines_of(tmp_path / "structure_path", "structure_path")


def test_a_front_against_random_networks():
    path = [{"parameters": 10, "accuracy": 0.5}, {"parameters": 3, "accuracy": 0.9}]
    others = [{"parameters": n, "accuracy": a} for n, a in ((8, 0.4), (10, 0.6), (12, 0.1))]
    assert path_of_costs.front(path, others) == {"beaten": 0.5, "gain": pytest.approx(-0.1)}


@pytest.mark.parametrize("script", [in_turn, bit_gates, path_of_lambda, every_size, path_of_costs])
def test_a_setting_that_a_script_chooses_itself_is_refused(script, tmp_path):
    app = Typer()
    app.command()(script.main)
    found = CliRunner().invoke(app, ["--set", "particles=3", "--out", str(tmp_path)])
    assert found.exit_code == 2
    assert "Unknown setting 'particles'" in " ".join(found.output.split())
