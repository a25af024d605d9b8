"""Runs that cut the network while it trains."""

import json
import math
import re
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from command_line import SMALL, call, metrics_of
from pictures import unrendered
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.cli.runs.execution import RunOptions
from pyroccam.cli.runs.execution import run as run_config
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.files.packed import read
from pyroccam.inference.shrinking import thresholds

# Random from the first step, and cut by a rule.
AT_ONCE = [word for one in ("start=0", "finish=0", "threshold=noise") for word in ("--set", one)]


def test_a_run_goes_on_over_what_is_left(tmp_path, monkeypatch):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    sets = ("narrow=[0.4,0.7]", "narrow_at=valley", "max_scale=first:0.3")
    more = [word for one in sets for word in ("--set", one)]
    said = call("fit", "gnj", *SMALL, *AT_ONCE, *more, "--out", whole)
    assert "Traceback" not in said
    found = metrics_of(whole)
    assert [one["name"] for one in found["stages"]] == ["gnj", "narrow-1", "narrow-2"]
    assert found["epochs"] == 6
    pruning = (64 * 12 + 12 * 10) / found["structure"]["weights"]
    assert found["structure"]["rates"]["pruning"] == pytest.approx(pruning)
    settings = [
        json.loads((whole / part / "fit.json").read_text())["settings"]
        for part in ("", "narrow-1", "narrow-2")
    ]
    assert [s["schedule"] for s in settings] == ["constant", "constant", "linear"]
    assert [s["epochs"] for s in settings] == [2, 2, 2]
    assert [s["kl_warmup"] for s in settings] == [pytest.approx(0.3), 0.0, 0.0]
    # What is rebuilt from the folder is what was trained.
    x = torch.randn(7, 1, 8, 8)
    again = load_fit(whole, "cpu")
    ours = found["test"]["ensemble"]
    assert ours["nll"] == pytest.approx(again.evaluate()["nll"], rel=1e-5)
    file = tmp_path / "again.pocc"
    call("compress", whole, "--cut", "noise", "--out", file)
    torch.testing.assert_close(read(file)(x), read(whole / "compressed.pocc")(x))
    # The thresholds that were found are not looked for again, which could end elsewhere.
    with monkeypatch.context() as patched:
        patched.setattr(thresholds, "valley", lambda _: 1 / 0)
        assert load_fit(whole, "cpu").model.narrowed_at == again.model.narrowed_at
    # Cut short after its first fit, the run ends with the same numbers.
    shutil.copytree(whole, folder)
    for part in ("metrics.json", "narrow-2/checkpoint.pt", "narrow-2/model.safetensors"):
        (folder / part).unlink(missing_ok=True)
    call("fit", "gnj", *SMALL, *AT_ONCE, *more, "--out", folder, "--resume")
    assert metrics_of(folder)["structure"] == found["structure"]
    said = call("fit", "gnj", *SMALL, *AT_ONCE, "--set", "narrow=3", code=2)
    assert "narrow=3" in said


def test_layers_are_named_as_they_were_before_they_were_cut(tmp_path):
    sets = ("start=0", "finish=0", "narrow=[0.5]", "narrow_tolerance=0.2",
            'threshold={"1":100.0,"3":50.0}')  # fmt: skip
    asked = [word for one in sets for word in ("--set", one)]
    call("fit", "gnj", *SMALL, *asked, "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")["structure"]["thresholds"]
    assert found == {"1.1": 100.0, "3": 50.0}


def test_a_cut_on_the_way_may_cost_more_than_the_last(tmp_path):
    left = []
    for more in ((), ("--set", "narrow_tolerance=0.001"), ("--set", "narrow_tolerance=0.8")):
        out = tmp_path / str(len(left))
        call("fit", "gnj", *SMALL, *AT_ONCE, "--set", "narrow=[0.5]", "--epochs", 2, *more,
             "--out", out)  # fmt: skip
        net = load_fit(out, "cpu").model.start_network()
        left.append(sum(p.numel() for p in net.parameters()))
    assert left[0] == left[1] > left[2]


def test_the_last_fit_may_train_on_all_rows(tmp_path):
    folder = tmp_path / "run"
    asked = [
        *SMALL,
        *AT_ONCE,
        "--set",
        "narrow=[0.3,0.6]",
        "--set",
        "last_rows=all",
        "--out",
        folder,
    ]
    call("fit", "gnj", *asked)
    found = metrics_of(folder)
    data = RunConfig.resolve("gnj", "digits")[1]
    train, val, test = (len(data.split(name)[0]) for name in ("train", "val", "test"))
    assert found["rows"] == {"train": train + val, "val": 0, "test": test}
    # Of the fits before it the thresholds had rows to be chosen on.
    told = [np.genfromtxt(folder / part / "history.csv", delimiter=",", names=True)["val_nll"][-1]
            for part in ("", "narrow-1", "narrow-2")]  # fmt: skip
    assert np.isfinite(told).tolist() == [True, True, False]
    again = load_fit(folder, "cpu")
    assert again.model.size == again.data.N == train + val
    assert found["test"]["ensemble"]["nll"] == pytest.approx(again.evaluate()["nll"], rel=1e-5)
    said = call("compress", folder, "--cut.nats", "0.01", code=2)
    assert re.search(r"by its validation rows: the last fit trained on them", said)
    assert "--split val" in call("evaluate", folder, "--split", "val", code=2)
    for part in ("metrics.json", "narrow-2/checkpoint.pt", "narrow-2/model.safetensors"):
        (folder / part).unlink()
    call("fit", "gnj", *asked, "--resume")
    assert metrics_of(folder)["structure"] == found["structure"]


def test_epochs_are_counted_over_the_rows_of_each_fit():
    sets = {"steps": 400, "batch_size": 16, "kl_warmup": 0.0, "narrow": [0.5], "last_rows": "all"}
    sets |= {"start": 0.0, "finish": 0.0, "threshold": "noise"}
    config, data = RunConfig.resolve("gnj", "spirals", sets=sets)
    rows = [data.N, data.N + len(data.x_val)]
    expected = [math.ceil(200 / math.ceil(n / 16)) for n in rows]
    assert expected[0] != expected[1]
    with unrendered():
        found = run_config(config, data, options=RunOptions(progress=False, figures=False)).metrics
    assert found["epochs"] == sum(expected)


NARROWED, BY_NOISE = "narrow=[0.22,0.44,0.67]", "threshold=noise"


@pytest.mark.parametrize(("settings", "refused"), [
    ((NARROWED, BY_NOISE, "last_rows=all"), None),
    ((NARROWED, "last_rows=all", "threshold=3.0"), None),
    ((NARROWED, "last_rows=val",), r"last_rows='val'"),
    (("last_rows=all",), r"narrow=\[\] cuts nothing .*data\.val_fraction=0"),
    ((NARROWED, "last_rows=all", "epochs=1"), r"narrow=\[0\.22, 0\.44, 0\.67\] cuts nothing"),
    ((NARROWED, BY_NOISE, "last_rows=all", "data.val_fraction=0"), "there are no validation rows"),
    ((NARROWED, "last_rows=all", "threshold=validation"), "threshold='validation' is cho.*=noise"),
    ((NARROWED, "last_rows=all"), "threshold=None is chosen.*=noise"),
    # Tolerances without effect.
    (("threshold=3.0", "tolerance=0.01"), "^tolerance=0.01 changes nothing"),
    (("threshold=validation", "tolerance=0.01"), None),
    (("tolerance=0.01",), None),
    ((NARROWED, BY_NOISE, "tolerance=0.01"), None),  # of its cuts on the way
    ((NARROWED, BY_NOISE, "narrow_tolerance=0.02", "tolerance=0.01"), "^tolerance=0.01 changes"),
    (("narrow_tolerance=0.01",), "^narrow_tolerance=0.01 changes nothing"),
    ((NARROWED, "narrow_at=valley", "narrow_tolerance=0.01"), "^narrow_tolerance=0.01 changes"),
    (("data.val_fraction=0.0", NARROWED, "narrow_tolerance=0.01"), "^narrow_tolerance=0.01 chang"),
])  # fmt: skip
def test_rows_and_tolerances_that_cannot_be(settings, refused):
    with nullcontext() if refused is None else pytest.raises(ValueError, match=refused):
        RunConfig.resolve("gnj", "digits", sets=parse_settings(list(settings)))


def test_the_warm_up_ends_before_the_first_cut(tmp_path):
    more = ("--set", "narrow=[0.5]", "--epochs", 4, "--out", tmp_path / "run")
    said = call("fit", "gnj", *SMALL, *AT_ONCE, *more, "--set", "kl_warmup=0.5", code=2)
    assert "kl_warmup below 0.5" in said


def test_a_stage_that_fails_says_what_is_kept(tmp_path, monkeypatch):
    def fail(*given, **more):
        raise ValueError("It keeps nothing of the whole of layer '1'.")

    monkeypatch.setattr("pyroccam.cli.methods.bayes.narrow", fail)
    more = ("--set", "narrow=[0.5]", "--out", tmp_path / "run")
    said = call("fit", "gnj", *SMALL, *AT_ONCE, *more, code=2)
    assert re.search("Stage narrow-1 .* whole of layer '1'.* trained before it is in", said)
    assert (tmp_path / "run" / "model.safetensors").exists()
