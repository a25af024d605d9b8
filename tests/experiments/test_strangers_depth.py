"""A learnt depth beside a fixed one: its runs, and the table of them."""

import json
import re

import pytest
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.run import RunOptions, run
from pyroccam.inference.storage.checkpoint import write_json
from torch.distributions import Normal
from typer import BadParameter

from experiments.trials.strangers import depth
from experiments.trials.strangers.depth import write_depths

POLYNOMIAL, REGIMES = "experiments.sets:polynomial", "experiments.sets:regimes"


def put(out, name, seed, *, running=0.1, arrived=True, **scores):
    """Both files of a pair, the learnt depth 4 of 10 with a quarter of the parameters."""
    for method, nll in (("ddn", 3.0), ("ldn", 2.5)):
        one = {"set": name, "method": method, "seed": seed, "rows": 90, "seconds": 7.4, **scores}
        one["test"] = {**scores["test"], "nll": nll}
        if method == "ldn":
            structure = {"depth_probs": [0.0] * 11, "depth_chosen": 4, "tv_to_exact": 0.0}
            one |= {"structure": {**structure, "tv_running": running}, "arrived": arrived}
            one["pruned"] = {"parameters": 25, "parameters_before": 100}
        write_json(out / "depth" / f"{name}-{method}-{seed}.json", one)


def test_the_table_says_what_the_files_say(tmp_path):
    put(tmp_path, "lines", 1, coverage=0.719, test={"rmse": 4.6})
    put(tmp_path, "clothes", 0, running=0.54, arrived=False, test={"accuracy": 0.917})
    put(tmp_path, "alone", 0, test={"rmse": 1.0})
    (tmp_path / "depth/alone-ddn-0.json").unlink()  # a pair that is not whole yet
    write_depths(tmp_path)
    assert (tmp_path / "depth.md").read_text().splitlines()[2:4] == [
        "| clothes | 90 | 0 | 91.7 % | 91.7 % | 3.000 | 2.500 |  |  | 4 of 10 | "
        "0.54, not arrived | 25 | 7 | 7 |",
        "| lines | 90 | 1 | 4.600 | 4.600 | 3.000 | 2.500 | 72 | 72 | 4 of 10 | "
        "0.10 | 25 | 7 | 7 |",
    ]
    assert "alone" not in (tmp_path / "depth.md").read_text()


def test_runs_go_on_and_images_have_one_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(depth, "DATA", ("spirals", REGIMES))
    monkeypatch.setattr(depth, "IMAGES", REGIMES)
    how = {
        "out": tmp_path,
        "data": f"spirals,{REGIMES}",
        "images": 60,
        "settings": ["epochs=2"],
    }
    depth.main(seeds=1, **how)
    first = re.findall(r"^\S+:", capsys.readouterr().out, re.M)
    assert first == [
        "spirals-ddn-0:",
        "spirals-ldn-0:",
        "experiments.sets:regimes-60-ddn-0:",
        "experiments.sets:regimes-60-ldn-0:",
    ]
    for method in ("ddn", "ldn"):
        path = tmp_path / f"depth/spirals-{method}-0.json"
        one = json.loads(path.read_text())
        assert one["epochs"] == 2
        assert "coverage" not in one
        write_json(path, {**one, "rows": 12345})
    depth.main(seeds=2, **how)
    second = re.findall(r"^\S+:", capsys.readouterr().out, re.M)
    assert second == ["spirals-ddn-1:", "spirals-ldn-1:"]
    table = (tmp_path / "depth.md").read_text()
    assert "| spirals | 12345 | 0 |" in table  # read, and not computed again
    assert "| spirals | 200 | 1 |" in table
    assert f"| {REGIMES} | 60 | 0 |" in table
    assert f"| {REGIMES} | 60 | 1 |" not in table
    depth.main(seeds=1, **{**how, "images": 40})  # other rows of images are another run
    assert f"| {REGIMES} | 40 | 0 |" in (tmp_path / "depth.md").read_text()


def test_the_coverage_of_a_mixture_of_depths():
    config, rows = RunConfig.resolve("ldn", POLYNOMIAL, sets={"epochs": 2, "max_depth": 3})
    found = run(config, rows, options=RunOptions(progress=False, figures=False, compare=False)).fit
    means = found.outputs(rows.x_test).double()
    scale = found.model.likelihood.scale.detach().double()
    below = sum(
        weight * Normal(mean, scale).cdf(rows.y_test.double())
        for weight, mean in zip(found.weights.double(), means, strict=True)
    )
    for share in (0.5, 0.95):
        inside = (below > (1 - share) / 2) & (below < (1 + share) / 2)
        assert depth.coverage(found, share) == pytest.approx(float(inside.double().mean()))
        assert depth.coverage(found, share) > 0
    assert depth.coverage(found, 0.5) < depth.coverage(found, 0.95)


def test_a_set_that_nobody_asked_for_is_refused(tmp_path):
    with pytest.raises(BadParameter, match="uci/concrete"):
        depth.main(out=tmp_path, data="uci/concret")
    assert not list(tmp_path.iterdir())
