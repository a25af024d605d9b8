"""Depth, widths and bits on the command line: what is printed, drawn, read back and refused."""

import json

import pytest
import torch
from command_line import call
from pyroccam import data, guides, inference, models
from pyroccam.cli.methods import find
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.files.packed import read
from pyroccam.inference.training.settings import Settings

SMALL = (
    "--data",
    "digits",
    "--set",
    "width=10",
    "--set",
    "max_depth=3",
    "--set",
    "epochs=10",
    "--set",
    "number_bits=2",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    return folder, call("fit", "occam", "--out", folder, *SMALL, rendered=True)


def test_a_run(run):
    folder, said = run
    found = json.loads((folder / "metrics.json").read_text())
    depth, near = found["depth"], found["neighbours"]
    assert len(depth["depth_probs"]) == 4
    assert f"Depth {depth['depth_chosen']} of 3 was chosen" in said
    assert [row["depth"] for row in near if row["chosen"]] == [depth["depth_chosen"]]
    assert all(row["file_bytes"] > 0 and row["multiply_adds"] > 0 for row in near)
    # A scale and a shift of ten channels in each block, of two bits.
    assert all(row["number_bytes"] == 2 * 20 * row["depth"] / 8 for row in near)
    assert [one["name"] for one in found["stages"]] == ["occam", "joint", "narrow-1"]
    assert found["structure"]["file_bytes"] == (folder / "compressed.pocc").stat().st_size
    for name in ("depth", "trade", "bytes", "training", "sparsity"):
        assert (folder / "figures" / f"{name}.png").stat().st_size > 0


def test_it_is_read_back(run):
    folder, _ = run
    fit = load_fit(folder)
    assert type(fit.model) is models.BayesianNetwork
    found = json.loads((folder / "metrics.json").read_text())["test"]["deterministic"]
    assert fit.evaluate(how="deterministic") == pytest.approx(found, abs=1e-5)
    net = read(folder / "compressed.pocc")
    assert net(fit.data.x_test[:5]).shape == (5, 10)
    call("export", folder, "--no-scaling", "--out", folder / "net.pt2")
    exported = torch.export.load(folder / "net.pt2").module()
    torch.testing.assert_close(exported(fit.data.x_test[:5]), net(fit.data.x_test[:5]))


def test_a_run_that_is_complete_is_resumed_at_once(run):
    folder, _ = run
    before = (folder / "compressed.pocc").read_bytes()
    call("fit", "occam", "--out", folder, "--resume", *SMALL)
    assert (folder / "compressed.pocc").read_bytes() == before


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (("prior=integers", "guide=rounded", "scale=null"), "finish=0"),
        (("prior=multi-spike",), "weights on levels"),
        (("prior=log-uniform", "guide=zero-mean"), "weights with a mean"),
        (("hold=0.1", "kl_warmup=0.3"), "while the KL still gains weight"),
        (("last=0", "narrow_at=noise"), "no fit follows that cut"),
        (("prior=integers", "guide=rounded", "finish=0"), "scale=0.1 of the guide 'rounded'"),
    ],
)
def test_what_is_refused(sets, says, tmp_path):
    options = [part for one in sets for part in ("--set", one)]
    said = call("fit", "occam", "--out", tmp_path / "run", *SMALL, *options, code=2)
    assert says in " ".join(said.split())


def test_bits_in_the_bound(tmp_path):
    """Whole numbers of a learnt step, whose code is what a block costs."""
    sets = ("prior=integers", "guide=rounded", "scale=null", "finish=0", "kl_weight=0.1")
    options = [part for one in sets for part in ("--set", one)]
    call("fit", "occam", "--out", tmp_path / "run", *SMALL, *options)
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert found["structure"]["file_bytes"] > 0
    fit = load_fit(tmp_path / "run")
    assert {*fit.guide.steps} == {*fit.model.layers}
    assert inference.shrink(fit).net(fit.data.x_test[:5]).shape == (5, 10)


def test_one_fit_alone():
    """Without numbers at first, and without more training at the end."""
    method = find("occam").with_options({"start": 0.0, "last": 0.0, "finish": 0.0})
    settings = Settings(**{**method.settings, "steps": 500})
    assert method.stages(settings) == []
    assert method.first(settings) == {"steps": 500}
    digits = data.load("digits")
    stack = models.networks.residual_mlp(digits.input_shape, 10, width=8, max_depth=2)
    model, guide = method.build(stack, digits)
    assert isinstance(model, models.BayesianStack)
    assert isinstance(guide, guides.MeanField)
    assert guide.schedule.held == method.hold


def test_a_run_that_ends_with_its_stack(tmp_path):
    """The smaller network is cut of the posterior over depth and weights itself."""
    options = ("--set", "start=0", "--set", "last=0", "--set", "finish=0")
    said = call("fit", "occam", "--out", tmp_path / "run", *SMALL, *options)
    fit = load_fit(tmp_path / "run")
    assert isinstance(fit.model, models.BayesianStack)
    assert f"Depth {fit.structure.depth_chosen} of 3 was chosen" in said
    small = inference.shrink(fit).net
    net = read(tmp_path / "run" / "compressed.pocc")
    assert sum(p.numel() for p in small.parameters()) == sum(p.numel() for p in net.parameters())
    assert "diagnostics.json" in call("diagnose", tmp_path / "run")
