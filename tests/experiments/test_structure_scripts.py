"""The scripts about hyperparameters and structure."""

from dataclasses import replace

import pytest
import torch
from pyroccam import data
from scripts import call, read
from torch import nn

from experiments.published.structure import against_random as structures
from experiments.published.structure import hyperparameters, kinds_of_noise, tables


def test_the_table(tmp_path):
    small = ("--problems", "polynomial", "--methods", "greedy", "--seeds", 2)
    steps = ("--outer-steps", 3, "--inner-steps", 4, "--out", tmp_path)
    call(hyperparameters, *small, *steps)
    for method, inner in (("random", 4), ("self-tuning", 40)):  # which warms up for 100
        one = ("--problems", "polynomial", "--methods", method, "--criteria", "elbo", "--seeds", 1)
        call(hyperparameters, *one, *steps, "--inner-steps", inner)
    tuned = read(tmp_path / "polynomial-elbo-self-tuning.json")
    assert tuned["config"]["learn"] == "scale"
    assert len(tuned["runs"][0]["history"]) == 3
    assert len(read(tmp_path / "polynomial-elbo-random.json")["runs"]) == 1
    for criterion in hyperparameters.CRITERIA:
        found = read(tmp_path / f"polynomial-{criterion}-greedy.json")
        assert [run["seed"] for run in found["runs"]] == [0, 1]
        run = found["runs"][0]
        assert len(run["history"]) == 3
        assert run["Q"] == pytest.approx(max(run["history"]), abs=1e-2)
        assert {"rmse", "nll"} <= set(run["test"])
        assert found["spread"]["Q"]["n"] == 2
        assert found["spread"]["noise 0.5 rmse"]["mean"] > 0
    before = (tmp_path / "polynomial-elbo-greedy.json").stat().st_mtime_ns
    call(hyperparameters, *small, *steps)
    assert (tmp_path / "polynomial-elbo-greedy.json").stat().st_mtime_ns == before


def test_when_the_gain_was_there():
    history = [{"Q": q} for q in (-10.0, -5.0, -0.05, 0.0, -1.0)]
    assert hyperparameters.reached(history) == 2  # 99.5 % of the gain
    assert hyperparameters.reached(history[:1]) == 0


def test_noise_on_all_parameters():
    net = nn.Linear(300, 300)
    before = [p.detach().clone() for p in net.parameters()]
    state = torch.get_rng_state()
    hyperparameters.under_noise(net, 0.25, seed=0)
    assert torch.equal(state, torch.get_rng_state())
    pairs = zip(net.parameters(), before, strict=True)
    moved = torch.cat([(p.detach() - b).flatten() for p, b in pairs])
    assert float(moved.std()) == pytest.approx(0.25, rel=0.02)


def test_kinds_of_noise():
    """What each does to 20,000 outputs 3 x of an x that was measured in units of 5."""
    x = torch.full((20_000, 1), 2.0)
    rows = data.Dataset.from_tensors(x, x, x, x, standardise=False)
    rows = replace(rows, x_std=torch.tensor([5.0]))
    spreads = {}
    for kind, noisy in kinds_of_noise.KINDS.items():
        net = nn.Linear(20_000, 1, bias=False) if "weights" in kind else nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            net.weight.fill_(3.0)
            changed, other = noisy(net, rows, 0.5, 0)
            moved = 2.0 * changed.weight if "weights" in kind else changed(other.x_test)
        spreads[kind] = float(moved.std())
        assert float(moved.mean()) == pytest.approx(6.0, abs=0.1)
    assert spreads == {
        "weights": pytest.approx(2 * 0.5, rel=0.03),
        "weights, in proportion": pytest.approx(2 * 3 * 0.5, rel=0.03),
        "inputs as measured": pytest.approx(3 * 0.5 / 5, rel=0.03),
        "inputs of the network": pytest.approx(3 * 0.5, rel=0.03),
    }
    assert torch.equal(rows.x_test, x)


def test_the_table_of_kinds_of_noise(tmp_path, monkeypatch):
    quick = {"outer_steps": 2, "inner_steps": 3, "outer_lr": 0.05, "lr": 0.01}
    monkeypatch.setattr(kinds_of_noise, "settings_of", lambda problem: quick)
    call(kinds_of_noise, "--problems", "polynomial", "--methods", "greedy", "--seeds", 1,
         "--out", tmp_path)  # fmt: skip
    (run,) = read(tmp_path / "polynomial-greedy.json")["runs"]
    assert len(run["test"]) == 1 + len(kinds_of_noise.KINDS) * 2
    assert run["test"]["weights 0.5"] > run["test"]["none"]
    lines = list(tables.kinds_of_noise(tmp_path))
    assert lines[-2] == "| published | 1.42 | 1.44 | 1.54 |"
    assert f"{run['test']['none']:.2f}" in lines[2]


def test_learnt_structure_against_structure_at_random(tmp_path):
    small = ("--data", "digits", "--network", "perceptron-graph", "--set", "width=8")
    call(structures, *small, "--set", "random=1", "--epochs", 2, "--seeds", 1, "--out", tmp_path)
    found = read(tmp_path / "digits-perceptron-graph.json")
    (run,) = found["runs"]
    assert set(run["test"]) == {"mixture", "cut out", "afresh", "random"}
    assert run["test"]["random"]["accuracy"] == run["random"][0]["accuracy"]
    assert found["spread"]["afresh accuracy"]["mean"] == run["test"]["afresh"]["accuracy"]
