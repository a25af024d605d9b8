"""The scripts behind the published tables run, and write what their readers read."""

import numpy as np
import pytest
import torch
from pyroccam.cli.runs.config import RunConfig, changed_settings
from scipy.stats import norm
from scripts import call, read
from typer import Typer
from typer.testing import CliRunner

from experiments.published import compression, path_of_lambda, quantisation, tables
from experiments.published.depth import head, images, noise, spirals, uci


def test_spirals(tmp_path):
    small = ("--set", "max_depth=3", "--set", "width=8", "--set", "steps=40")
    call(spirals, "--out", tmp_path, "--seeds", 2, *small, rendered=False)
    for method in spirals.METHODS:
        found = read(tmp_path / f"{method}.json")
        accuracy = [run["test"]["accuracy"] for run in found["runs"]]
        assert found["spread"]["test"]["accuracy"]["mean"] == pytest.approx(np.mean(accuracy))
        assert found["spread"]["pruned"]["accuracy"]["n"] == 2
    assert (tmp_path / "figures/functions.png").exists()


def test_images(tmp_path):
    small = ("--set", "width=8", "--set", "inner=4", "--set", "max_depth=2")
    arguments = ("--data", "digits", "--seeds", 2, "--epochs", 2, "--depths", "1,2", *small)
    call(images, *arguments, "--out", tmp_path)
    found = read(tmp_path / "digits.json")
    for contender in ("ldn", "ldn-pruned", "ldn-cost", "ddn-1", "ddn-2"):
        assert {"accuracy", "nll", "ece", "poster_ece"} <= set(found["test"][contender])
    faster = found["speed"]["times_faster"]
    assert faster["2"] == {"marginal_over_all_depths": 1.0, "single_over_deepest": 1.0}
    assert set(faster) >= {str(d) for picked in found["depth_chosen"].values() for d in picked}
    assert (tmp_path / "digits-ldn.png").exists()
    # a finished seed is kept: a second call trains nothing
    before = (tmp_path / "digits-seed-0.json").stat().st_mtime_ns
    call(images, *arguments, "--out", tmp_path)
    assert (tmp_path / "digits-seed-0.json").stat().st_mtime_ns == before


@pytest.fixture
def table(tmp_path):
    """A set of the standard splits, with one split."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "uci" / "energy"
    folder.mkdir(parents=True)
    x = rng.normal(size=(160, 3))
    np.savetxt(folder / "data.txt", np.column_stack([x, x.sum(1) * 10 + rng.normal(size=160)]))
    np.savetxt(folder / "index_features.txt", np.arange(3))
    np.savetxt(folder / "index_target.txt", [3])
    np.savetxt(folder / "n_splits.txt", [1])
    rows = rng.permutation(160)
    np.savetxt(folder / "index_train_0.txt", rows[:120])
    np.savetxt(folder / "index_test_0.txt", rows[120:])
    return tmp_path


def test_uci(table):
    out = table / "out"
    arguments = ("--sets", "energy", "--splits", 1, "--set", "steps=20", "--set", "max_depth=2")
    call(uci, "--data-root", table, "--out", out, *arguments)
    row = read(out / "table.json")["energy"]
    assert row["published_dun"]["nll"] == 1.037
    assert {"rmse", "nll"} <= set(row["ours"]["ldn"])


def test_noise(table):
    """The same training twice, with another noise in the end: means are alike, densities not."""
    out = table / "out"
    arguments = ("--data-root", table, "--out", out, "--sets", "energy", "--splits", 1)
    more = ("--set", "steps=400", "--set", "max_depth=2", "--set", "checkpoint=last")
    call(noise, *arguments, *more)
    found = read(out / "energy.json")
    train, validation = (found["spread"][f"ldn, {way}"] for way in noise.WAYS)
    assert train["rmse"]["mean"] == pytest.approx(validation["rmse"]["mean"], rel=0.02)
    assert train["nll"]["mean"] != pytest.approx(validation["nll"]["mean"], rel=0.02)
    assert 0 < train["coverage"]["mean"] <= 1
    before = (out / "energy.json").stat().st_mtime_ns
    call(noise, *arguments, *more)  # what is finished is kept
    assert (out / "energy.json").stat().st_mtime_ns == before


def test_coverage_is_the_share_of_draws_from_the_predictions():
    """Of 40,000 draws, within four standard errors; of half the noise, by numerical integration."""
    generator = torch.Generator().manual_seed(0)
    rows, weights, scale = 40_000, torch.tensor([0.2, 0.8]), torch.tensor([0.5])
    means = torch.randn(2, rows, 1, generator=generator)
    which = (torch.rand(rows, generator=generator) < weights[1]).long()
    mean = means[which, torch.arange(rows)]
    y = mean + scale * torch.randn(rows, 1, generator=generator)
    for share in (0.5, 0.95):
        error = 4 * (share * (1 - share) / rows) ** 0.5
        assert noise.coverage(means, weights, scale, y, share) == pytest.approx(share, abs=error)
    one = noise.coverage(mean[None], torch.ones(1), scale / 2, y)
    assert one == pytest.approx(2 * norm.cdf(norm.ppf(0.975) / 2) - 1, abs=0.01)


def test_head(tmp_path):
    call(head, "--out", tmp_path, "--seeds", 1, "--epochs", 8)
    summary = read(tmp_path / "head.json")["summary"]
    # 8 epochs are enough to see which of the two breaks
    assert summary["per depth"]["largest_gap"]["mean"] < summary["shared"]["largest_gap"]["mean"]


def test_what_was_set_otherwise():
    before = {"method": "gnj", "options": {"a": 1, "b": [2]}, "settings": {}}
    now = {"method": "gnj", "options": {"a": 1.5, "b": [2], "c": None}, "settings": {}}
    assert changed_settings(before, now) == ["options.a was 1, is 1.5"]  # c is as it was: not set
    assert changed_settings(before, {**before, "network": "mlp"}) == ["network was None, is 'mlp'"]


@pytest.mark.parametrize("method", compression.SETTINGS)
def test_settings_of_the_published_table_are_taken(method):
    sets = compression.SETTINGS[method]
    config, _ = RunConfig.resolve(method, "digits", sets=sets)
    found = {**config.options, **config.settings}
    assert {name: found[name] for name in sets} == sets


def test_compression(tmp_path, monkeypatch):
    small = ("--set", "hidden=[8]", "--epochs", 3, "--set", "lr=0.01")
    arguments = ("--data", "digits", "--networks", "perceptron", "--methods", "gnj", *small)
    call(compression, *arguments, "--seeds", 1, "--out", tmp_path)
    path = tmp_path / "digits-perceptron-gnj.json"
    first = read(path)
    call(compression, *arguments, "--seeds", 2, "--out", tmp_path)
    found = read(path)
    assert found["runs"][0] == first["runs"][0]  # a finished seed is kept
    errors = [run["error"] for run in found["runs"]]
    assert found["spread"]["error"]["mean"] == pytest.approx(np.mean(errors))
    assert {"architecture", "bits", "file_bytes", "maximum"} <= set(found["runs"][1])
    app = Typer()
    app.command()(compression.main)
    changed = ("lr=0.02" if a == "lr=0.01" else a for a in arguments)
    other = [str(a) for a in (*changed, "--out", tmp_path)]
    said = " ".join(CliRunner().invoke(app, other).output.split())
    assert "settings.lr was 0.01, is 0.02" in said

    def fail(*given, **more):
        raise ValueError("The network cannot be cut.")

    monkeypatch.setattr("pyroccam.cli.methods.weights.compress", fail)
    other = [str(a) for a in (*arguments, "--out", tmp_path / "cut")]
    outcome = CliRunner().invoke(app, other)
    assert "Seed 0 was not compressed: The network cannot be cut." in str(outcome.exception)
    names = ("my.nets:resnet", "lenet-300-100")  # a colon is no good in the name of a file
    assert [compression.short(name) for name in names] == ["resnet", "lenet-300-100"]


def test_quantisation(tmp_path, capsys):
    small = ("--set", "hidden=[8]", "--epochs", 4, "--set", "lr=0.01", "--set", "kl_weight=0.05")
    folder = tmp_path / "quantisation"
    call(quantisation, "--data", "digits", "--network", "perceptron", "--rows", "exact,published",
         "--seeds", 1, *small, "--out", folder)  # fmt: skip
    for name, prior in quantisation.ROWS.items():
        if name in ("exact", "published"):
            found = read(folder / f"digits-perceptron-{name}.json")
            assert found["config"]["options"]["prior"] == prior
            (run,) = found["runs"]
            assert 0 <= run["original_error"] < 90
            assert run["bits"] == [1, 1]
            assert found["spread"]["error"]["mean"] == pytest.approx(run["error"])
    capsys.readouterr()
    tables.main(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    (exact,) = [line for line in lines if "`multi-spike` (1)" in line]
    assert f"{read(folder / 'digits-perceptron-exact.json')['runs'][0]['error']:.2f}" in exact


def test_path_of_lambda(tmp_path, capsys):
    folder = tmp_path / "path"
    small = ("--data", "digits", "--rows", "direct,linear", "--seeds", 1, "--set", "epochs=1")
    call(path_of_lambda, *small, "--out", folder)
    names = ("direct", "linear")
    for name in names:
        found = read(folder / f"digits-{name}.json")
        (run,) = found["runs"]
        assert [*run["accuracy"]] == ["0.001", "0.1", "1", "10", "100"]
        assert all(len(one) == 4 and max(one) <= 100 for one in run["accuracy"].values())
        assert found["spread"]["10"]["60"]["accuracy"]["mean"] == run["accuracy"]["10"][1]
        assert found["published"] is None  # which is of other data
    capsys.readouterr()
    tables.main(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("| 0.1 |")]
    assert line.startswith(f"| 0.1 | {run_of(folder, 'direct', '0.1'):.1f} / ")
    (line,) = [line for line in lines if line.startswith("| fits of one λ")]
    direct, linear = (read(folder / f"digits-{n}.json")["seconds"]["mean"] for n in names)
    assert line == f"| fits of one λ in that time | 5.0 | {5 * linear / direct:.1f} |"


def test_a_convolutional_network_on_the_path(tmp_path, capsys):
    folder = tmp_path / "path"
    small = ("--data", "digits", "--network", "conv", "--width", 0.04)
    call(path_of_lambda, *small, "--rows", "piecewise", "--seeds", 1, "--common", 1,
         "--set", "epochs=1", "--out", folder)  # fmt: skip
    found = read(folder / "digits-conv-0.04-piecewise-x1.json")
    assert [*found["spread"]] == ["0.01", "0.1", "1"]
    assert found["published"] is None
    capsys.readouterr()
    tables.main(tmp_path)
    assert "| digits-conv-0.04, λ: accuracy at" in capsys.readouterr().out


def run_of(folder, name, weight):
    return read(folder / f"digits-{name}.json")["runs"][0]["accuracy"][weight][0]
