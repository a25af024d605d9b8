"""The three-regime toy and the structure transition: their parts, and the script on few steps."""

import csv
import math

import pytest
import torch
from pyroccam import guides, models
from pyroccam.inference.figures.structure import simplex_panels
from pyroccam.models.distributions.temperature import LearntTemperature
from scripts import call, read
from typer import Typer
from typer.testing import CliRunner

from experiments.published.runner import ResultFile
from experiments.published.structure import regimes
from experiments.published.structure.competing import (
    PRIMITIVES,
    SITE,
    Protocol,
    build,
    learn,
    look,
)
from experiments.published.structure.regimes import repelled


@pytest.fixture(scope="module")
def learnt():
    made, finite = learn(1.0, 100.0, [0], Protocol(steps=2))
    assert finite
    return made[0]


def test_the_start_is_that_of_the_protocol():
    (model, guide), data = build(3, 10.0, Protocol(scale=0.07, prior=-1.0))
    assert data.N == 50
    assert float(model.structure[SITE].temperature()) == 10.0
    assert look((model, guide))["temperature"] == pytest.approx(0.2)
    assert isinstance(guide.edge(SITE).temperature, LearntTemperature)
    weights = [guide.posterior(site).base_dist for site in model.sites]
    assert sum(q.loc.numel() for q in weights) == 15
    assert all(torch.allclose(q.scale, torch.tensor(0.07)) for q in weights)
    assert look((model, guide))["log_scale"] == -1.0
    again = build(3, 10.0, Protocol())[0][0]
    assert torch.equal(again.structure[SITE].logits, model.structure[SITE].logits)
    assert not torch.equal(build(4, 10.0, Protocol())[1].y_train, data.y_train)


def test_the_graph_is_the_three_models():
    (model, _), data = build(0, 1.0, Protocol())
    graph, x = model.part("net"), data.x_train[:4]
    parts = graph.modules()  # Bayesian or not yet
    layers = [m for m in parts if isinstance(m, torch.nn.Linear) or hasattr(m, "start")]
    assert len(layers) == 3
    gamma = torch.tensor([0.5, 0.3, 0.2])
    w, b = torch.linspace(-1, 1, 11)[None], torch.tensor([0.3])
    one = torch.tensor([[0.8]])
    weights = {
        name: (w, b) if "complex" in name else (one, b if "simple" in name else None)
        for name in model.layers
    }
    net = model.plain(weights, {"x-y": gamma})
    expected = 0.5 * (x @ w.T + b).tanh() + 0.3 * (0.8 * x[:, :1] + b).tanh() + 0.2 * 0.8
    assert torch.allclose(net(x), expected, atol=1e-6)


def test_the_prior_is_broad_and_has_gamma_from_the_middle_on(learnt):
    (model, _), _ = learnt
    assert isinstance(model.scaling, models.Floored)
    assert model.scaling.floor == pytest.approx(math.exp(-4))
    # one step of Adam from 10
    assert look(learnt[0])["log_scale"] == pytest.approx(10.0, abs=0.1)


def test_a_repelled_pair_is_a_copy(learnt):
    pair, data = learnt
    before = look(pair)
    model, guide = repelled(pair, data, (0, 2), -1.0, 2)
    assert look(pair) == before
    assert model.scaling is None
    assert isinstance(guide, guides.MeanField)
    moved = look((model, guide))
    # two steps of Adam from σ = 1, and p(Γ) away from the two
    assert abs(moved["log_scale"]) < 3 * regimes.LR
    assert moved["p"][1] > before["p"][1]


def test_script(tmp_path, monkeypatch, learnt):
    # Fits and repulsion are tested above; here nothing moves, so that a search finds one structure.
    monkeypatch.setattr(regimes, "learn", lambda *args: ([learnt], True))
    monkeypatch.setattr(regimes.inference, "select", lambda *args, **options: None)
    small = ("--seeds", 1, "--steps", 2, "--transition-seeds", 1, "--weights", "0,-1")
    toy = ("--parts", "toy", "--regimes", "equal", "--temperatures", "0.2", *small)
    call(regimes, "--out", tmp_path, *toy)
    call(regimes, "--out", tmp_path, "--parts", "transition", *small)
    found = read(tmp_path / "toy.json")
    (cell,) = found["cells"]
    assert cell["winners"][cell["runs"][0]["winner"]] == 1
    assert sum(cell["mean_q"]) == pytest.approx(1.0, abs=1e-3)
    assert cell["finite"]
    assert cell["cpu_seconds_per_fit"] >= 0
    simple = cell["mean_q"][1]
    assert found["verdict"]["q_expected"] == {"equal, T 0.2": simple}
    assert found["verdict"]["below_0.7"] == ([] if simple >= 0.7 else ["equal, T 0.2"])
    with (tmp_path / "toy.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["q_simple"]) == simple
    assert 1 / 3 <= float(row["largest_gamma"]) <= 1
    moved = read(tmp_path / "transition.json")
    assert [row["weight"] for row in moved["sweep"]] == [0.0, -1.0]
    assert moved["with_gamma"][0]["weight"] == -1.0
    assert moved["search"][0]["order"] == [moved["start"][0]["winner"]] * 3
    with (tmp_path / "transition.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    for name in ("toy", "transition"):
        assert (tmp_path / f"{name}.png").exists()
        assert (tmp_path / f"{name}.svg").exists()
    # where nothing is trained, no file is touched
    monkeypatch.setattr(ResultFile, "trained", False)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    call(regimes, "--out", tmp_path, *toy)
    call(regimes, "--out", tmp_path, "--parts", "transition", *small)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    for arguments, message in (
        (("--parts", "toys"), "Unknown part 'toys'"),
        (("--regimes", "likely"), "Unknown regime 'likely'"),
        (("--parts", "toy", "--steps", "4"), "other settings"),
    ):
        app = Typer()
        app.command()(regimes.main)
        result = CliRunner().invoke(app, ["--seeds", "1", "--out", str(tmp_path), *arguments])
        assert result.exit_code == 2
        assert message in result.output.replace("\n", " ")


def test_triangles():
    points = torch.eye(3)
    one = {"row": {"column": points}}
    figure = simplex_panels(one, PRIMITIVES, shares={"row": {"column": [0.2, 0.5, 0.3]}})
    (ax,) = figure.axes
    x, y = ax.lines[0].get_data()
    assert list(x) == [0.0, 1.0, 0.5]
    assert y[2] == pytest.approx(math.sqrt(0.75))
    texts = {text.get_text(): text.get_fontweight() for text in ax.texts}
    assert texts == {"complex 0.20": "normal", "simple 0.50": "bold", "constant 0.30": "normal"}
