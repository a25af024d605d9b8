"""A network of every size on the command line: what is chosen, written, read back and refused."""

import json

import pytest
from command_line import call, metrics_of
from pyroccam import data, guides, inference, models
from pyroccam.cli.methods import every_size, find
from pyroccam.cli.pages import pages
from pyroccam.cli.pages.files import read_run
from pyroccam.cli.pages.words import summary
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.files.packed import read
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.inference.training.settings import Settings
from torch import nn

DIGITS = ("--data", "digits")
FIT = (*DIGITS, "--epochs", "6", "--set", "lr=0.01", "--set", "batch_size=64",
       "--set", "points=3", "--set", "scale=null")  # fmt: skip
NET = (*FIT, "--set", "hidden=[12]", "--set", "low=0.05", "--set", "high=5")
STACK = ("--network", "mlp", "--set", "width=10", "--set", "max_depth=2")


def options(*sets):
    return [part for one in sets for part in ("--set", one)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    return folder, call("fit", "every-size", "--out", folder, *NET, rendered=True)


def test_a_run_ends_with_the_best_network_of_its_path(run):
    folder, said = run
    found = metrics_of(folder)
    networks = found["path"]["networks"]
    assert [one["weight"] for one in networks] == pytest.approx([0.05, 0.5, 5.0])
    (chosen,) = [one for one in networks if one["chosen"]]
    assert chosen is min(networks, key=lambda one: one["small_scores"]["nll"])
    assert found["path"]["weight"] == chosen["weight"]
    file = folder / "compressed.pocc"
    assert chosen["file_bytes"] == found["structure"]["file_bytes"] == file.stat().st_size
    assert found["compressed"]["test"] == pytest.approx(chosen["test"])
    assert {one["name"] for one in found["stages"]} == {"every-size", "joint"}
    for one in networks:
        assert f"{one['file_bytes']:,}" in said
    at_end = chosen["weight"] in (networks[0]["weight"], networks[-1]["weight"])
    assert ("the end of what was trained" in " ".join(said.split())) == at_end
    for name in ("path", "trade", "training", "sparsity"):
        assert (folder / "figures" / f"{name}.png").stat().st_size > 0


def test_a_report_is_as_long_as_its_path():
    method = find("every-size")
    short, long = (method.with_options({"points": points}).passes for points in (5, 15))
    assert long == 3 * short


def test_the_report_shows_the_path(run):
    folder, _ = run
    page = pages.report([folder])
    assert "A network for every weight of the KL" in page
    for one in metrics_of(folder)["path"]["networks"]:
        assert f"{one['file_bytes']:,}" in page


def test_it_is_read_back_as_the_fit_of_the_weight_that_was_chosen(run, monkeypatch):
    folder, _ = run
    monkeypatch.setattr(
        inference.shrinking.weight_path, "_measured", None
    )  # nothing is chosen anew
    fit, found = load_fit(folder), metrics_of(folder)
    assert type(fit.guide) is guides.MeanField
    assert fit.settings.kl_weight == found["path"]["weight"]
    assert fit.history  # of the training that all weights have in common
    ways = found["test"]["deterministic"]
    assert fit.evaluate(how="deterministic") == pytest.approx(ways, abs=1e-5)
    net = read(folder / "compressed.pocc")
    after = found["compressed"]["test"]
    assert evaluate_net(net, fit.model, fit.data) == pytest.approx(after, abs=1e-5)
    before = (folder / "compressed.pocc").read_bytes()
    call("fit", "every-size", "--out", folder, "--resume", *NET)
    assert (folder / "compressed.pocc").read_bytes() == before
    assert metrics_of(folder)["path"] == found["path"]


def test_another_size_is_chosen_without_training(run, tmp_path):
    folder, _ = run
    sizes = sorted(one["file_bytes"] for one in metrics_of(folder)["path"]["networks"])
    budget = sizes[0] + 1
    call("compress", folder, "--bytes", budget)
    file = folder / f"compressed-bytes-{budget}.pocc"
    assert file.stat().st_size <= budget
    read(file)
    said = call("compress", folder, "--bytes", 10, code=2)
    assert "meets Bytes(most=10) (the least is" in said
    said = call("compress", folder, "--bytes", budget, "--code.exponent", "published_three", code=2)
    assert "--bytes or --milliseconds" in said


def test_a_budget_that_nothing_meets_loses_nothing(tmp_path):
    out = tmp_path / "run"
    said = call("fit", "every-size", "--out", out, *NET, *options("bytes=20"), code=2)
    assert "No network on the path from λ = 0.05 to 5 meets Bytes(most=20) (the least is" in said
    found = metrics_of(out)
    assert "the least is" in found["path"]["unmet"]
    assert not (out / "compressed.pocc").exists()
    best = min(found["path"]["networks"], key=lambda one: one["small_scores"]["nll"])
    assert load_fit(out).settings.kl_weight == best["weight"]
    assert found["parameters"] > 0
    assert not any(one["chosen"] for one in found["path"]["networks"])
    assert "meets Bytes(most=20)" in call("compress", out, code=2)  # which would be larger
    assert not (out / "compressed.pocc").exists()
    call("compress", out, "--bytes", 100_000)  # with what was trained
    assert any("Nothing was cut: No network on the path" in one for one in summary(read_run(out)))


def test_a_path_that_cannot_be_measured_loses_nothing(tmp_path, monkeypatch):
    def refuse(*given, **how):
        raise RuntimeError("a layer of 3 units cannot be cut")

    out = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(every_size, "path", refuse)
        said = call("fit", "every-size", "--out", out, *NET, code=2)
        assert "a layer of 3 units cannot be cut" in said
        assert load_fit(out).settings.kl_weight == pytest.approx(0.5)  # between 0.05 and 5
    assert "Nothing was cut: a layer of 3 units" in " ".join(summary(read_run(out)))
    call("compress", out, "--bytes", 100_000)  # where it can


def test_a_stack_has_a_depth_for_each_weight(tmp_path):
    out = tmp_path / "run"
    said = call("fit", "every-size", "--out", out, *FIT, *STACK)
    found = metrics_of(out)
    networks = found["path"]["networks"]
    assert all(0 <= one["depth"] <= 2 for one in networks)
    (chosen,) = [one for one in networks if one["chosen"]]
    assert found["depth"]["depth_chosen"] >= chosen["depth"]
    assert "of 2 was chosen" in said
    assert (out / "figures" / "depth.png").is_file()
    fit = load_fit(out)
    assert isinstance(fit.model, models.BayesianStack)
    assert fit.structure.blocks_left == chosen["depth"]
    assert (out / "compressed.pocc").stat().st_size == chosen["file_bytes"]


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (("high=0.01", "low=0.02"), "low=0.02, high=0.01"),
        (("pivots=1",), "pivots=1"),
        (("bytes=0",), "bytes=0"),
        (("kl_weight=0.5",), "is one weight of the KL, and all from low= to high= are learnt"),
        (("depth=geometric:0.5",), "depth='geometric:0.5'"),
        (('threshold={"9":1}',), "Unknown Bayesian layer '9'"),
        (("guide=delta", "prior=normal"), "guide='delta'"),
        (("guide=rounded", "prior=integers"), "cannot be functions"),
        (("data.val_fraction=0",), "data.val_fraction=0.1"),
    ],
)
def test_what_is_refused_before_the_training(sets, says, tmp_path):
    said = call("fit", "every-size", "--out", tmp_path / "run", *FIT, *options(*sets), code=2)
    assert says in said
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_other_methods_have_no_sizes_to_choose_from(tmp_path):
    folder = tmp_path / "run"
    call("fit", "ddn", *DIGITS, "--out", folder, "--epochs", "1", "--set", "max_depth=1")
    assert "Unknown option of ddn 'bytes'" in call("compress", folder, "--bytes", 9, code=2)


def test_the_pair_of_a_network_and_of_a_stack():
    digits = data.load("digits")
    method = find("every-size").with_options({"start": 0.0, "low": 0.1, "high": 3.0})
    assert method.stages(Settings(**method.settings)) == []
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    stack = models.networks.residual_mlp(digits.input_shape, 10, width=8, max_depth=2)
    for one, kind in ((net, models.BayesianNetwork), (stack, models.BayesianStack)):
        model, guide = method.build(one, digits)
        assert type(model) is kind
        assert type(guide) is guides.Conditional
        assert (guide.low, guide.high) == (0.1, 3.0)
    assert json.dumps(method.options)
