"""The toys: coverage by hand, the code by simulation, and the script on small settings."""

import json
import math

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from experiments.published.variance import toys
from experiments.published.variance.toys import (
    CENTRES,
    REGIONS,
    blob_fit,
    blobs,
    code,
    coverage,
    gap,
    inputs,
    unlike,
)


def test_coverage_of_a_normal_predictive():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(20_000, 5, generator=generator)
    y = torch.tensor([0.0, 1.9, -1.9, 2.1, -2.1])  # 1.96 is the limit
    share, width = coverage(drawn, y)
    assert share == pytest.approx(3 / 5)
    assert width == pytest.approx(2 * 1.96, abs=0.1)
    share, width = coverage(drawn, y / 4, level=0.5)  # 0.674
    assert share == 1.0
    assert width == pytest.approx(2 * 0.674, abs=0.05)


def test_rows_of_the_toys_are_where_they_are_said_to_be():
    data = gap(0)
    x = data.x_train * data.x_std + data.x_mean
    sides = torch.tensor(toys.SIDES)
    inside = ((x >= sides[:, 0] - 1e-5) & (x <= sides[:, 1] + 1e-5)).sum(0)
    assert inside.tolist() == [200, 200]
    generator = torch.Generator().manual_seed(0)
    for region, intervals in REGIONS.items():
        x = inputs(intervals, 50, generator)
        low, high = torch.tensor(intervals).T
        assert bool(((x >= low) & (x <= high)).any(1).all()), region
        if region != "between rows":
            assert not bool(((x >= sides[:, 0]) & (x <= sides[:, 1])).any())
    four = blobs(0)
    x = four.x_train * four.x_std + four.x_mean
    for k, centre in enumerate(CENTRES):
        own = x[four.y_train == k]
        assert len(own) == 500
        # five standard errors
        assert float((own.mean(0) - torch.tensor(centre)).abs().max()) < 5 / math.sqrt(500)
        assert float((own.std(0) - 1).abs().max()) < 5 / math.sqrt(1000)


def test_the_code_is_what_the_layer_draws_by():
    data = blobs(0, each=50)
    fit = blob_fit(data, seed=0, steps=20, width=12)
    x = data.x_test[:3]
    found = code(fit, x)
    seen = []
    layer = dict(fit.model.part("net").named_children())["variance"]
    hook = layer.register_forward_hook(lambda module, given, out: seen.append(out.detach()))
    fit.outputs(x.repeat(4000, 1), draws=1, noise="activations")  # each row has its own noise
    hook.remove()
    drawn = torch.cat(seen).view(4000, 3, 2)
    # of a normal: mean zero, and the deviation to within five standard errors
    z = drawn.mean(0) / (drawn.std(0) / math.sqrt(4000))
    assert float(z.abs().max()) < 5
    ratio = drawn.std(0) / found
    assert float((ratio - 1).abs().max()) < 5 / math.sqrt(2 * 4000)


def test_the_codes_of_most_and_least_agreement():
    def run(*rows):
        return {"code": [list(row) for row in rows]}

    one_scale = run((1, 2), (10, 20), (100, 200), (1000, 2000))
    nearly = run((1, 2), (10, 15), (100, 250), (1000, 2000))
    two_bits = run((1, 1), (100, 1), (1, 100), (100, 100))
    assert unlike([nearly, two_bits, one_scale]) == (2, 1)
    assert unlike([two_bits, one_scale]) == (1, 0)


def test_script(tmp_path):
    app = Typer()
    app.command()(toys.main)

    def call(*arguments, code=0):
        small = (
            "--regression-steps",
            "8",
            "--blob-steps",
            "8",
            "--width",
            "6",
            "--draws",
            "5",
            "--band-draws",
            "20",
        )
        result = CliRunner().invoke(app, [*small, "--out", str(tmp_path), *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    call("--seeds", "2")
    first = json.loads((tmp_path / "blobs.json").read_text())
    assert len(first["runs"]) == 2
    call("--parts", "blobs", "--seeds", "3")
    found = json.loads((tmp_path / "blobs.json").read_text())
    assert found["runs"][:2] == first["runs"]  # a finished seed is kept
    accuracy = [run["accuracy"]["deterministic"] for run in found["runs"]]
    assert accuracy == [0.25] * 3  # the mean network sends zeros through the layer
    assert found["spread"]["ensemble"]["n"] == 3
    found = json.loads((tmp_path / "regression.json").read_text())
    for name in toys.CONTENDERS:
        rows = [run["contenders"][name] for run in found["runs"]]
        for region in REGIONS:
            shares = [row[region]["coverage"] for row in rows]
            assert found["spread"][name][region]["coverage"]["mean"] == pytest.approx(
                sum(shares) / 2
            )
        assert len(rows[0]["bands"]) == 4
        assert all(a <= b for a, b in zip(rows[0]["bands"][0], rows[0]["bands"][3], strict=True))
    for part in toys.PARTS:
        assert (tmp_path / f"{part}.png").exists()
    assert "other settings" in call("--seeds", "2", "--width", "7", code=2)
    assert "Did you mean 'blobs'?" in call("--parts", "blob", code=2)
