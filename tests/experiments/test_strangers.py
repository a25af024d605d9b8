"""Sets, networks, rivals and table of strangers."""

import json
import math

import pytest
import torch
from pyroccam import data as datasets
from pyroccam.data import Dataset
from pyroccam.experiments.strangers import networks, ordinary
from pyroccam.experiments.strangers.__main__ import main
from pyroccam.experiments.strangers.sets import SETS
from pyroccam.experiments.strangers.table import Interval, left_by_magnitude, write_table
from torch import nn


@pytest.mark.parametrize("name", ["digits", "digit-rows", "small-words", "waves", "diabetes"])
def test_each_network_of_a_set_takes_its_rows(name, tmp_path):
    one = SETS[name]
    path = one.write(tmp_path / f"{name}.npz", None)
    rows = datasets.load(str(path), **one.options)
    assert len(rows.x_train) + len(rows.x_val) <= 7000
    for network in one.networks:
        net = getattr(networks, network)(rows.input_shape, rows.outputs)
        assert net(rows.x_train[:3]).shape == (3, rows.outputs)
    before = path.stat().st_mtime_ns
    assert one.write(path, None).stat().st_mtime_ns == before  # as it is there


def test_halves_are_apart_and_about_equal():
    halves = [one.half for one in SETS.values()]
    assert set(halves) == {"tuned", "kept"}
    assert abs(halves.count("tuned") - halves.count("kept")) <= 1
    assert len(SETS) >= 20


def sines():
    torch.manual_seed(0)
    x = torch.rand(300, 2) * 4
    y = torch.sin(2 * x[:, :1]) + 0.1 * torch.randn(300, 1)
    return Dataset.from_tensors(x[:200], y[:200], x[200:], y[200:], val_fraction=0.2)


def test_the_ordinary_training_learns_and_its_checkpoint_is_the_best():
    data = sines()

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))

    found = ordinary.search(make, data, 0)
    assert found.test["rmse"] < 0.25
    assert found.val_nll == pytest.approx(
        min(ordinary.train(make(), data, lr=lr, seed=0, epochs=ordinary.epochs_of(160)).val_nll
            for lr in ordinary.RATES)
    )  # fmt: skip
    outputs, y = found.net(data.x_test).detach(), data.y_test
    sd = (found.net(data.x_val) - data.y_val).detach().square().mean().sqrt()
    nll = -torch.distributions.Normal(outputs, sd).log_prob(y).mean() + data.y_std.log()
    assert found.test["nll"] == pytest.approx(float(nll), rel=1e-4)
    pruned = ordinary.prune_by_magnitude(found, data, 0, sparsities=(0.5, 0.9))
    for one, share in zip(pruned, (0.5, 0.9), strict=True):
        weights = [p for p in one.net.parameters() if p.dim() > 1]
        zeros = sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)
        assert zeros == pytest.approx(share, abs=0.02)
    largest = found.net[0].weight.abs().max()
    assert bool((pruned[1].net[0].weight[found.net[0].weight.abs() == largest] != 0).all())


def test_verdicts_of_differences():
    assert Interval.of([-1.0, -1.1, -0.9]).verdict == "win"
    assert Interval.of([1.0, 1.1, 0.9]).verdict == "loss"
    assert Interval.of([-1.0, 1.5]).verdict == "tie"
    assert Interval.of([1.0, 2.0, 3.0]).half == pytest.approx(2 / math.sqrt(3))


def test_what_magnitude_pruning_shows():
    pruned = [{"val_nll": 0.31, "left": 0.5}, {"val_nll": 0.315, "left": 0.2}]
    cell = {"ordinary": {"val_nll": 0.3}, "pruned": [*pruned, {"val_nll": 0.4, "left": 0.1}]}
    assert left_by_magnitude(cell) == 0.2
    assert left_by_magnitude({"ordinary": {"val_nll": 0.0}, "pruned": cell["pruned"]}) == 1.0


@pytest.mark.filterwarnings("ignore")
def test_a_night_goes_on_and_is_told_in_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ordinary, "RATES", (1e-2,))
    monkeypatch.setattr(ordinary, "epochs_of", lambda rows: 2)
    how = {"out": tmp_path / "out", "files": tmp_path / "files", "sets": "iris", "settings":
           ["steps=40"], "networks": "mlp"}  # fmt: skip
    main(seeds=1, **how)
    assert "iris-mlp-0: ordinary accuracy" in capsys.readouterr().out
    main(seeds=2, **how)
    said = capsys.readouterr().out
    assert "iris-mlp-1" in said
    assert "iris-mlp-0" not in said
    cell = json.loads((tmp_path / "out/gnj/iris-mlp-0.json").read_text())
    assert cell["half"] == "kept"
    assert {"test", "numbers", "compressed", "seconds"} <= set(cell["ours"])
    assert cell["pruned"][0]["left"] == pytest.approx(0.5, abs=0.05)
    table = (tmp_path / "out/gnj.md").read_text()
    assert "| iris | mlp |" in table
    assert "half `kept`" in table
    assert (tmp_path / "out/gnj.png").stat().st_size > 5000
    path = tmp_path / "out/gnj/iris-norm-0.json"
    path.write_text(json.dumps({**cell, "network": "norm", "failed": "x", "ours": {}}))
    write_table(tmp_path / "out", "gnj")
    assert "Failed: iris norm" in (tmp_path / "out/gnj.md").read_text()
