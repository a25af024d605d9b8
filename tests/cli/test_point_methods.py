"""Deep compression and dynamic network surgery as methods: their fits, files and options."""

import pytest
import torch
from command_line import call, metrics_of
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.execution import RunOptions, run
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.files.packed import read
from safetensors.torch import load_file

SMALL = ["--data", "digits", "--epochs", "10", "--set", "hidden=[12]", "--set", "lr=0.02"]
PRUNE = ["--set", "retrain=3", "--set", "retrain_lr=0.01"]
SURGERY = ["--set", "surgery=6", "--set", "c=0.5"]


def weights_of(net):
    return [p.detach() for _, p in sorted(net.named_parameters()) if p.dim() == 2]


def same_after_reading(folder, found):
    """What is rebuilt from the folder is what was trained."""
    again = load_fit(folder, "cpu")
    ours = found["test"]["ensemble"]
    assert ours["nll"] == pytest.approx(again.evaluate()["nll"], rel=1e-5)
    return again


def test_deep_compression_prunes_in_rounds_and_shares_values(tmp_path):
    said = call(
        "fit", "deep-compression", *SMALL, *PRUNE, "--set", "keep=[0.25,0.5]",
        "--set", "bits=[3,2]", "--set", "share=2", "--out", tmp_path / "run",
    )  # fmt: skip
    assert "Traceback" not in said
    found = metrics_of(tmp_path / "run")
    names = ["deep-compression", "prune-1", "prune-2", "share"]
    assert [one["name"] for one in found["stages"]] == names
    assert found["epochs"] == 10 + 3 + 3 + 2
    assert found["compressed"]["test"]["accuracy"] > 0.6
    structure = found["structure"]
    assert structure["weights"] <= 192 + 60  # those that fed what died are gone too
    assert list(structure["bits"].values()) == [3, 2]
    assert structure["rates"]["fast_prediction"] is None
    net = read(tmp_path / "run/compressed.pocc")
    for weight, most in zip(weights_of(net), (8, 4), strict=True):
        values = weight.unique()
        assert 1 < len(values[values != 0]) <= most
    again = same_after_reading(tmp_path / "run", found)
    assert again.guide.sizes.keys() == {"1", "3"}
    count = {n: int(again.guide.posterior(f"{n}.weight").v.count_nonzero()) for n in ("1", "3")}
    assert count == {"1": 192, "3": 60}  # a quarter of 64 x 12, half of 12 x 10
    before = load_file(tmp_path / "run/prune-1/model.safetensors")
    kept = before["guide.factors.1/weight.kept"]
    assert int(kept.sum()) == round(0.5 * 768)  # the rounds go down in equal ratios
    call("compress", tmp_path / "run", "--out", tmp_path / "again.pocc")
    assert all(map(torch.equal, weights_of(read(tmp_path / "again.pocc")), weights_of(net)))


def test_surgery_switches_weights_and_then_leaves_them(tmp_path):
    call("fit", "dns", *SMALL, *SURGERY, "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")
    assert [one["name"] for one in found["stages"]] == ["dns", "surgery"]
    assert found["compressed"]["test"]["accuracy"] > 0.6
    assert found["structure"]["nonzero_percent"] < 60
    assert found["structure"]["rates"]["pruning"] > 1
    again = same_after_reading(tmp_path / "run", found)
    factor = again.guide.factor_of("1.weight")
    steps = 6 * again.settings.steps_per_epoch(again.data.N)
    assert int(factor.step) == steps
    assert factor.stop == round(0.7 * steps)
    small = sum(int(w.count_nonzero()) for w in weights_of(read(tmp_path / "run/compressed.pocc")))
    assert small == found["structure"]["weights"] <= sum(again.guide.nonzero.values())


def test_a_point_keeps_its_digits_and_takes_no_threshold(tmp_path):
    once = ("--set", "guide=delta", "--set", "finish=0")  # it is not trained further
    call("fit", "bayes", *SMALL, *once, "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")
    assert found["structure"]["weights"] == 64 * 12 + 12 * 10
    assert found["structure"]["rates"]["pruning"] == 1.0
    accuracy = found["compressed"]["test"]["accuracy"]
    for scores in found["test"].values():  # of one point it is all the same
        assert scores["accuracy"] == pytest.approx(accuracy)
    call(
        "compress",
        tmp_path / "run",
        "--code",
        "codebook",
        "--code.values",
        4,
        "--out",
        tmp_path / "four.pocc",
    )
    assert all(len(w.unique()) <= 4 for w in weights_of(read(tmp_path / "four.pocc")))
    said = call("compress", tmp_path / "run", "--cut", "valley", code=2)
    assert "of a point estimate" in " ".join(said.split())


@pytest.mark.parametrize(("method", "option", "message"), [
    ("deep-compression", {"sensitivity": None}, "neither sensitivity nor keep"),
    ("deep-compression", {"bits": {"nope": 5}}, "Unknown layer in bits= 'nope'"),
    ("deep-compression", {"bits": 40}, "bits=40.0 of layer '1'"),
    ("deep-compression", {"keep": 2.0}, "keep=2.0 of layer '1'"),
    ("dns", {"c": [1.0]}, r"c=\[1\.0\]"),
    ("gaussian-dropout", {"threshold": {"nope": 1.0}}, "Unknown Bayesian layer 'nope'"),
])  # fmt: skip
def test_numbers_by_layer_are_checked_before_training(method, option, message):
    """The whole run would have an end that is long in coming."""
    sets = {"epochs": 10**6, **option}
    with pytest.raises(ValueError, match=message):
        run(*RunConfig.resolve(method, "digits", sets=sets), options=RunOptions(progress=False))
