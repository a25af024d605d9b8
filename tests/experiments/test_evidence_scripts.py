"""Paths and labels, on the smallest of their models, with their tables; ladders of models."""

import math
from dataclasses import replace

import pytest
import torch
from pyroccam import data
from scripts import call, read

from experiments.published.evidence import labels, paths, tables
from experiments.published.evidence.candidates import LADDERS


@pytest.mark.parametrize("name", LADDERS)
def test_members_share_their_targets(name):
    """And the largest has the most weights."""
    ladder = LADDERS[name]
    made = [ladder.build(member, 1) for member in ladder.members]
    for _, rows in made[1:]:
        assert torch.equal(rows.y_train, made[0][1].y_train)
        assert (rows.N, len(rows.x_test)) == (40, 2000)
    sizes = [sum(p.numel() for p in model.start_network().parameters()) for model, _ in made]
    assert sizes == sorted(set(sizes))
    model, _ = made[0]
    if ladder.noise is not None:
        assert float(model.likelihood.scale) == pytest.approx(ladder.noise)


def test_paths(tmp_path, monkeypatch):
    """A line in two inputs, by all six ways."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    rows = data.Dataset.from_tensors(x, x[:, :1] + 3.0, x[:20], x[:20, :1] + 3.0)
    small = paths._Set((2,), starts=4, steps=8)
    monkeypatch.setitem(paths.SETS, "boston", small)
    monkeypatch.setitem(paths.NORMALS, "steps", 5)
    monkeypatch.setattr(paths, "_data", lambda *_: rows)
    call(paths, "--sets", "boston", "--seeds", 1, "--out", tmp_path)
    found = read(tmp_path / "boston.json")
    (one,) = found["runs"]
    assert set(one["test"]) == set(one["noisy"]) == set(paths.WAYS)
    assert one["steps"]["plain"] == 8
    curve = one["curves"]["likelihood"]
    assert curve["steps"] == [*range(9)]
    assert one["test"]["plain"] == curve["test"][-1]
    assert one["test"]["validation"] == curve["test"][one["steps"]["validation"]]
    assert min(curve["val_nll"]) == curve["val_nll"][one["steps"]["validation"]]
    assert one["bounds"].keys() == {"descent", "langevin", "normals"}
    lines = [*tables.paths(tmp_path)]
    assert any(line.startswith("| published | 8.1 | 5.9") for line in lines)


@pytest.mark.parametrize("at_random", [False, True])
def test_bits_that_send_labels(tmp_path, monkeypatch, at_random):
    """Of a few digits; a file, a bound and blocks sum up, and the table says what is there."""
    whole = data.load("digits")
    few = replace(whole, x_train=whole.x_train[:150], y_train=whole.y_train[:150])
    monkeypatch.setattr(labels, "load", lambda *_, **__: few)
    monkeypatch.setitem(labels.SETS, "digits", labels._Set(2, 2, 1, (6,)))
    monkeypatch.setattr(labels, "SHARES", [0.1, 0.5, 1.0])
    options = ("--coders", "linear,gnj,depth", "--seeds", 1, "--out", tmp_path)
    call(labels, *options, *(["--at-random"] if at_random else []))
    found = read(tmp_path / f"digits{'-random' if at_random else ''}.json")
    linear, gnj, depth = found["runs"]
    rows = 150 + len(few.x_val)
    assert linear["uniform"] == pytest.approx(rows * math.log2(10))
    assert linear["blocks"][0] == pytest.approx(round(0.1 * rows) * math.log2(10))
    assert set(linear["bound"]) == {"weights", "targets"}
    # The draw is sent at about the price of the KL, and no code shortens labels at random.
    weights = linear["bound"]["weights"]
    assert weights < linear["draw"]["network"] < 1.2 * weights + 8 * 60
    assert not at_random or sum(linear["draw"].values()) > linear["uniform"] - 20
    assert "bound" not in gnj
    assert "draw" not in gnj
    assert "refused" in gnj["file"] or gnj["file"]["network"] > 100
    assert "file" not in depth
    best = min(sum(run["blocks"]) for run in found["runs"])
    switched = found["switching"]["bits"]["mean"]
    assert switched < best + math.log2(4) + math.log2(3) + 1e-6  # to stay has a third, or more
    lines = [*tables.labels(tmp_path)]
    assert any(line.startswith("| linear (1) |") for line in lines)
    if at_random:
        assert not torch.equal(labels._data("digits", 0, None, True).y_train[:150], few.y_train)
