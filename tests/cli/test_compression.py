"""Runs over random weights: the cut on the way, the last cut, its file, and a draw."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from command_line import SMALL, WHOLE, call, metrics_of, sets
from pictures import unrendered
from pyroccam import data as data_sets
from pyroccam import guides, inference, models
from pyroccam.cli import RunRequest
from pyroccam.cli.methods import weights
from pyroccam.cli.runs import RunConfig, RunOptions, load_fit
from pyroccam.cli.runs import run as run_config
from pyroccam.inference.files import read
from pyroccam.inference.rounding import rest_bits
from pyroccam.inference.shrinking import decision, thresholds
from pyroccam.inference.storage import seal
from pyroccam.inference.training import ordinary as retraining
from safetensors.torch import load_file

BOOK = ("--code", "codebook", "--code.values", 8)
DRAW, ONE = ("--code", "draw"), ("--code.epochs", 1)
# Random from the first step, and cut by a rule.
AT_ONCE = sets("start=0 finish=0 threshold=noise")


# -- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cut vally", "--cut='vally'"),
        ("--cut noise --cut.nats 0.1", "--cut.nats with --cut noise"),
        ("--code codebook --code.exponent range", "--code.exponent is nothing of --code codebook"),
        ("--code.significand exact", "significand='exact'"),
        ("--code codebook --code.values 0", "values=0"),
        ("--code.resume", "--code.resume is nothing of --code digits"),
        ("--code.bytes 20", "is nothing of --code digits"),
        ("--code draw --code.values 8", "is nothing of --code draw"),
        ("--code draw --code.posterior own", "one s for its layer"),
        ("--code draw --code.posterior own --cut noise", "is sent whole"),
        ("--bytes 9 --code.exponent range", "--bytes or --milliseconds"),
    ],
)
def test_options_that_cannot_be_are_refused(words, said, runs):
    assert said in call("compress", runs("gnj")[0], *words.split(), code=2)


def test_compress_does_as_the_run_did(runs, tmp_path):
    """The same file again by default; another beside it by other rules."""
    out = shutil.copytree(runs("ghs")[0], tmp_path / "run")
    file, config = out / "compressed.pocc", json.loads((out / "config.json").read_text())
    before = file.read_bytes()
    assert "Beware" not in call("evaluate", out)
    file.unlink()
    assert "compressed.pocc of the run is gone" in call("evaluate", out)
    assert "has no compressed.pocc" in call("export", out, code=2)
    assert metrics_of(out)["structure"]["architecture"] in call("compress", out)
    assert file.read_bytes() == before
    call("compress", out, "--cut", 100, *BOOK)
    assert file.read_bytes() == before
    other = out / "compressed-cut-100-code-codebook-values-8.pocc"
    assert other.stat().st_size != len(before)
    config["run"]["options"]["threshold"] = {"1": 100.0}  # by layer
    (out / "config.json").write_text(json.dumps(config))
    seal(out)
    assert "64-12" in call("compress", out)
    assert file.read_bytes() != before  # by the thresholds that the run has now
    sizes = []
    for nats in (0.0, 0.5):
        call("compress", out, "--cut.nats", nats)
        net = read(out / f"compressed-nats-{nats}.pocc")
        sizes.append(sum(p.numel() for p in net.parameters()))
    assert sizes[0] > sizes[1]


def test_a_threshold_that_would_leave_nothing_leaves_a_network(tmp_path):
    short = (*SMALL, *WHOLE, "--no-compare", *sets("threshold=-100"))
    with pytest.warns(UserWarning, match="would cut the whole of layer '1'; left is the smallest"):
        said = call("fit", "gnj", *short, "--out", tmp_path / "run")
    assert "Beware: " in said
    found = metrics_of(tmp_path / "run")
    assert any("would cut the whole of layer '1'" in one for one in found["warnings"])
    small, mean = found["compressed"]["test"], found["test"]["deterministic"]
    assert small["nll"] < mean["nll"] + 0.1


def test_decompress_writes_tensors_and_a_description(runs, tmp_path):
    file, damaged = runs("gnj")[0] / "compressed.pocc", tmp_path / "damaged.pocc"
    call("decompress", file, "--out", tmp_path / "plain")
    net, x = read(file), torch.randn(5, 1, 8, 8)
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    sizes = (
        sum(t.numel() for t in each if t.dim() == 2)
        for each in (tensors.values(), net.parameters())
    )
    assert len({*sizes}) == 1
    assert torch.equal(inference.load(tmp_path / "plain")(x), net(x))
    damaged.write_bytes(file.read_bytes()[:-3])
    assert "cannot be read" in call("decompress", damaged, code=2)


def test_a_point_takes_a_codebook_and_no_threshold(tmp_path):
    """Which is trained no further: of one point all ways to predict are the same."""
    out, file = tmp_path / "run", tmp_path / "four.pocc"
    call(
        "fit", "bayes", *SMALL, *sets("guide=delta finish=0 start=0"), "--no-compare", "--out", out
    )
    found = metrics_of(out)
    assert found["structure"]["weights"] == 64 * 12 + 12 * 10
    assert found["structure"]["rates"]["pruning"] == 1.0
    each = {s["accuracy"] for s in (*found["test"].values(), found["compressed"]["test"])}
    assert max(each) == pytest.approx(min(each))
    call("compress", out, "--code", "codebook", "--code.values", 4, "--out", file)
    assert all(len(p.unique()) <= 4 for p in read(file).parameters() if p.dim() == 2)


# -- digits ---------------------------------------------------------------------------------------


def _rest(fit, net):
    return rest_bits(net, lambda one: weights.evaluate(fit, one, "val")["nll"], 0.001)


def test_as_few_digits_as_do_no_harm(tmp_path):
    """Targets far from zero need many digits of the last bias, and of its network no more."""
    torch.manual_seed(1)
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    for shift, least, most in ((0.0, 3, 11), (1000.3, 12, 22)):
        y = 0.05 * x[:, :1] + shift
        rows = data_sets.Dataset.from_tensors(x, y, x, y, standardise=False)
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        with torch.no_grad():
            net[2].bias.fill_(shift)
        model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(), random_biases=False)
        settings = {"epochs": 60, "lr": 0.02, "weight_decay": 0.0, "progress": False}
        fit = inference.fit(model, guides.MeanField(model), rows, device="cpu", **settings)
        small = inference.shrink(fit, cut=inference.Thresholds(100.0)).net
        found = _rest(fit, small)
        assert all(least <= bits <= most for bits in found.values()), found
        path = tmp_path / f"{shift}.pocc"
        _, said = weights.compress_run(fit, inference.Thresholds(100.0), path)
        assert said["test"]["nll"] == pytest.approx(weights.evaluate(fit, small)["nll"], abs=1e-3)


def test_numbers_that_few_digits_would_spoil(tmp_path):
    """What is not finite is left out, and digits that make a prediction infinite are not taken."""

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.into = torch.nn.Linear(3, 1)
            self.last = torch.nn.Parameter(torch.tensor([3.95]))
            self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

        def forward(self, x):
            return self.into(x) + (self.last - 3.9).sqrt() + self.mask[0]

    x = torch.randn(100, 3, generator=torch.manual_seed(0))
    rows = data_sets.Dataset.from_tensors(x, x[:, :1], x, x[:, :1])
    model = models.BayesianNetwork(Odd(), rows, prior=models.priors.Normal())
    fit = inference.fit(model, guides.MeanField(model), rows, epochs=2, progress=False)
    with torch.no_grad():
        model.part("net").last.fill_(3.95)
    small, found = weights.compress_run(fit, inference.Thresholds(100.0), tmp_path / "small.pocc")
    assert math.isfinite(found["test"]["nll"])
    assert "mask" not in _rest(fit, small.net)


# -- trainings beside the fits --------------------------------------------------------------------


def test_numbers_that_were_trained_are_not_trained_again(tmp_path, monkeypatch):
    """A run that is stopped while numbers are trained begins with those that it has."""
    trained, rates = retraining.trained, []

    def counted(net, fit, epochs, lr, *teacher):
        rates.append(lr)
        return trained(net, fit, epochs, lr, *teacher)

    def stopped(*given):
        if len(rates) == 2:
            raise KeyboardInterrupt
        return counted(*given)

    command = ["fit", "gnj", *SMALL, "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr(retraining, "trained", stopped)
        call(*command, code=130)
    assert "holds a run already" in call(*command, code=2)
    for module in (retraining, decision):
        monkeypatch.setattr(module, "trained", counted)
    call(*command, "--resume")
    together = [*rates]
    rates.clear()
    call("fit", "gnj", *SMALL, "--out", tmp_path / "whole")
    assert together == rates
    whole, again = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "run")
    for found in (whole, again):
        del found["numbers"]["seconds"]
    assert len(whole["numbers"]["tried"]) > 1
    assert again["numbers"] == whole["numbers"]
    assert again["test"] == whole["test"]
    assert again["compressed"]["test"] == whole["compressed"]["test"]
    assert again["structure"]["retrained"] == whole["structure"]["retrained"]


# -- draws ----------------------------------------------------------------------------------------


def test_a_draw_is_coded_and_read(runs, tmp_path):
    folder, file = runs("gnj")[0], tmp_path / "draw.poccd"
    said = call("compress", folder, *DRAW, "--code.bytes", 90, *ONE, "--out", file)
    assert file.stat().st_size <= 90
    assert "times the KL of the draw" in said
    assert not (tmp_path / "draw.poccd.coding").exists()
    call("decompress", file, "--out", tmp_path / "plain")
    pairs = zip(*(inference.load(p).parameters() for p in (file, tmp_path / "plain")), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    file.write_bytes(file.read_bytes()[:-9])
    assert "cut off or altered" in call("decompress", file, code=2)
    few = call("compress", folder, *DRAW, "--code.bytes", 20, "--out", file, code=2)
    assert "expected at least" in few


def test_training_is_not_lost_where_no_draw_can_be_sent(tmp_path):
    own = sets("guide=zero-mean prior=normal:1 max_scale=null size=300 coding=1")
    said = call("fit", "miracle", *SMALL, *own, "--out", tmp_path / "run")
    assert "No draw was sent: The weights of layer" in said
    assert any("have no mean" in one for one in metrics_of(tmp_path / "run")["warnings"])


# -- cuts on the way ------------------------------------------------------------------------------


def test_a_run_goes_on_over_what_is_left_at_last_on_all_rows(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    asked = ("fit", "gnj", *SMALL, *AT_ONCE, *sets("narrow=[0.4,0.7] narrow_at=valley"))
    asked += (*sets("max_scale=first:0.3 last_rows=all"), "--out", folder)
    call(*asked)
    found = metrics_of(folder)
    assert [one["name"] for one in found["stages"]] == ["gnj", "narrow-1", "narrow-2"]
    assert found["epochs"] == 6
    pruning = (64 * 12 + 12 * 10) / found["structure"]["weights"]
    assert found["structure"]["rates"]["pruning"] == pytest.approx(pruning)
    parts = [folder / part for part in ("", "narrow-1", "narrow-2")]
    settings = [json.loads((part / "fit.json").read_text())["settings"] for part in parts]
    assert [s["schedule"] for s in settings] == ["constant", "constant", "linear"]
    assert [s["epochs"] for s in settings] == [2, 2, 2]
    assert [s["kl_warmup"] for s in settings] == [pytest.approx(0.3), 0.0, 0.0]
    data = RunConfig.resolve(RunRequest("gnj", "digits"))[1]
    train, val, test = (len(data.split(name)[0]) for name in ("train", "val", "test"))
    assert found["rows"] == {"train": train + val, "val": 0, "test": test}
    # Of the fits before it the thresholds had rows to be chosen on.
    told = [np.genfromtxt(part / "history.csv", delimiter=",", names=True)["val_nll"][-1]
            for part in parts]  # fmt: skip
    assert np.isfinite(told).tolist() == [True, True, False]
    again = load_fit(folder, "cpu")
    assert again.model.size == again.data.N == train + val
    ours = found["test"]["ensemble"]
    assert ours["nll"] == pytest.approx(again.evaluate()["nll"], rel=1e-5)
    said = call("compress", folder, "--cut.nats", "0.01", code=2)
    assert "by its validation rows: the last fit trained on them" in said
    assert "--split val" in call("evaluate", folder, "--split", "val", code=2)
    # The thresholds that were found are not looked for again, which could end elsewhere.
    with monkeypatch.context() as patched:
        patched.setattr(thresholds, "valley", lambda _: 1 / 0)
        assert load_fit(folder, "cpu").model.narrowed_at == again.model.narrowed_at
    # Cut short after its first fits, the run ends with the same numbers.
    for part in ("metrics.json", "narrow-2/checkpoint.pt", "narrow-2/model.safetensors"):
        (folder / part).unlink(missing_ok=True)
    call(*asked, "--resume")
    assert metrics_of(folder)["structure"] == found["structure"]


def test_layers_are_named_as_they_were_before_they_were_cut(tmp_path):
    asked = sets(
        'start=0 finish=0 narrow=[0.5] narrow_tolerance=0.2 threshold={"1":100.0,"3":50.0}'
    )
    call("fit", "gnj", *SMALL, *asked, "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")["structure"]["thresholds"]
    assert found == {"1.1": 100.0, "3": 50.0}


def test_epochs_are_counted_over_the_rows_of_each_fit():
    settings = {"steps": 400, "batch_size": 16, "kl_warmup": 0.0, "narrow": [0.5], "hidden": [6]}
    settings |= {"start": 0.0, "finish": 0.0, "threshold": "noise", "last_rows": "all"}
    config, data = RunConfig.resolve(RunRequest("gnj", "spirals", set_=settings))
    expected = [math.ceil(200 / math.ceil(n / 16)) for n in (data.N, data.N + len(data.x_val))]
    assert expected[0] != expected[1]
    options = RunOptions(progress=False, compare=False)
    with unrendered():
        found = run_config(config, data, options=options).metrics
    assert found["epochs"] == sum(expected)


def test_a_stage_that_fails_says_what_is_kept(tmp_path, monkeypatch):
    def fail(*given, **more):
        raise ValueError("It keeps nothing of the whole of layer '1'.")

    monkeypatch.setattr("pyroccam.cli.methods.bayes.narrow", fail)
    more = (*AT_ONCE, *sets("narrow=[0.5]"), "--out", tmp_path / "run")
    said = call("fit", "gnj", *SMALL, *more, code=2)
    assert "Stage narrow-1 of the run: It keeps nothing" in said
    assert "trained before it is in" in said
    assert (tmp_path / "run" / "model.safetensors").exists()
