"""Data and networks of a person's own: likelihoods, several inputs, tables, code, and files for
places that have no pyroccam."""

import json
import math

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from command_line import SMALL, WHOLE, call, metrics_of, sets
from pyroccam import data as datasets
from pyroccam import models
from pyroccam.cli import RunRequest
from pyroccam.cli.methods import METHODS, weights
from pyroccam.cli.runs import RunConfig, load_fit
from pyroccam.cli.runs.building import build_network
from pyroccam.inference.files import packed
from pyroccam.inference.posterior import evaluate_outputs
from several import logits, pictured, texts
from targets import WORDS, made

SCORES = {
    "heteroscedastic": {"rmse", "nll", "coverage"},
    "poisson": {"rmse", "mae", "deviance", "nll"},
    "negative-binomial": {"rmse", "mae", "deviance", "nll"},
    "multi-label": {"accuracy", "f1", "auroc", "brier", "ece", "nll"},
    "ordinal": {"accuracy", "nll", "brier", "ece", "rank_mae"},
}
NET = sets("max_depth=1 width=6 steps=8")

# -- likelihoods ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The data of every likelihood as a file, by its word."""
    folder = tmp_path_factory.mktemp("data")
    for word in WORDS:
        data, parts = made(word, n=60, test=40), {}
        for k in ("train", "test"):
            x, y = data.split(k)
            y = y * data.y_std + data.y_mean if data.classes is None else y
            parts |= {f"x_{k}": x.numpy(), f"y_{k}": y.numpy()}
        np.savez(folder / f"{word}.npz", **parts)
    return {word: folder / f"{word}.npz" for word in WORDS}


@pytest.mark.parametrize("word", ["heteroscedastic", "poisson", "multi-label", "ordinal"])
def test_a_word_says_the_task_the_outputs_and_the_scores(word, files, tmp_path):
    out, page = tmp_path / "run", tmp_path / "page.html"
    more = (*NET, *sets(f"likelihood={word}"), "--figures", "--out", out)
    call("fit", "ldn", "--data", files[word], *more, made=word in ("poisson", "multi-label"))
    config = RunConfig.read(out)
    assert config.options["likelihood"] == word
    assert config.data["task"] == models.likelihoods.words()[word].task
    found = metrics_of(out)
    for test in (found["test"], found["pruned"]["test"], found["ddn"]["test"]):
        assert {*test} - {"poster_ece"} == SCORES[word]
    figure = "reliability" if "accuracy" in SCORES[word] else "predictive"
    assert (out / "figures" / f"{figure}.png").is_file()
    fit = load_fit(out, "cpu")
    known = {k: v for k, v in found["test"].items() if k != "poster_ece"}
    assert fit.evaluate() == pytest.approx(known, rel=1e-5)
    assert fit.outputs(fit.data.x_test).shape[-1] == fit.model.likelihood.outputs
    assert "NLL" in call("evaluate", out, "--data", files[word])
    if word in ("poisson", "multi-label"):  # whose figures are drawn
        call("report", out, "--out", page)
        shown = {"rmse": "RMSE", "accuracy": "accuracy"}
        titles = [title for name, title in shown.items() if name in SCORES[word]]
        assert all(f">{title}" in page.read_text() for title in titles)


def test_validation_rows_that_a_cut_network_knows_are_left_out(files, tmp_path):
    """It predicts what the first depths of the whole one do."""
    more = sets("max_depth=1 width=6 steps=8 likelihood=closed-form")
    call("fit", "ldn", "--data", files["closed-form"], *more, "--out", tmp_path)
    fit = load_fit(tmp_path, "cpu")
    x, y = fit.data.split("val")
    kept = fit.structure.depth_chosen + 1
    outputs, shares = fit.left_out(fit.outputs(x), y)[:kept], fit.weights[:kept]
    known = evaluate_outputs(
        outputs, shares / shares.sum(), fit.model.likelihood, y, fit.data.y_std
    )
    found = RunConfig.read(tmp_path).chosen.scores(fit, "val", tmp_path)
    assert found["pruned"] == pytest.approx(known, rel=1e-4)


def test_every_method_makes_the_likelihood_that_is_asked_for(files):
    for name, method in METHODS.items():
        if name == "transfer":  # over transformers alone
            continue
        network = "perceptron-graph" if method.over == "graph" else None
        asked = {"set_": {"likelihood": "heteroscedastic"}, "network": network}
        config, data = RunConfig.resolve(RunRequest(name, str(files["heteroscedastic"]), **asked))
        torch.manual_seed(0)
        model, _ = config.chosen.build(build_network(config, data), data)
        assert type(model.likelihood) is models.Heteroscedastic, name


def test_points_of_counts(files, tmp_path):
    word = "negative-binomial"
    asked = (*sets(f"retrain=1 epochs=2 likelihood={word}"), "--out", tmp_path / "run")
    call("fit", "deep-compression", "--data", files[word], *asked)
    found = metrics_of(tmp_path / "run")
    assert {*found["test"]["ensemble"]} == {*found["compressed"]["test"]} == SCORES[word]


# -- several inputs -------------------------------------------------------------------------------

SHORT = ["--no-compare", "--epochs", "2", "--set", "batch_size=24", *WHOLE]
WORDLESS = """
import torch
from torch import nn
from pyroccam.models.networks import DepthStack

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return x + self.b(torch.asinh(self.a(x)))

def stack(input_shape, outputs):
    stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Block())
    return DepthStack(stem, [Block() for _ in range(2)], nn.Linear(8, outputs))

def net(input_shape, outputs):
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Block(), nn.Linear(8, outputs))
    nn.init.eye_(made[2].b.weight)
    return made
"""
NETWORKS = """
import several
def pair(input_shape, outputs):
    assert input_shape["picture"] == (2, 3, 3), input_shape
    return several.Pair(input_shape, outputs)
def reader(input_shape, outputs):
    return several.Reader()
"""


def archive(path, rows, *parts):
    """An archive of rows by parts, such as ``x_train``: how many, and a seed."""
    found = {}
    for part, count, seed in parts:
        x, y = rows(count, seed)
        found |= {f"x{part}.{name}": value.numpy() for name, value in x.items()}
        found[f"y{part}"] = y.numpy()
    np.savez(path, **found)
    return path


@pytest.fixture(scope="module")
def of_several(tmp_path_factory):
    """Runs of a network that has words, and of one that has none."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "networks_of_runs.py").write_text(NETWORKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for name, rows in (("pair", pictured), ("reader", texts)):
            own = archive(folder / f"{name}.npz", rows, ("_train", 80, 0), ("_test", 30, 1))
            options = ["--data", own, "--network", f"networks_of_runs:{name}"]
            call("fit", "gnj", *options, "--out", folder / name, *SHORT)
    return folder


def test_a_run_is_opened_without_its_code_and_its_file_takes_the_inputs(of_several, tmp_path):
    run = of_several / "pair"
    fit, net = load_fit(run, "cpu"), packed.read(run / "compressed.pocc")  # by its description
    with torch.no_grad():
        right = logits(net(**fit.data.fields.split(fit.data.x_test))).argmax(1) == fit.data.y_test
    accuracy = metrics_of(run)["compressed"]["test"]["accuracy"]
    assert accuracy == pytest.approx(float(right.float().mean()))
    new = archive(tmp_path / "new.npz", pictured, ("", 20, 7))
    assert "20 test rows of new" in call("evaluate", run, "--data", new)
    other = archive(tmp_path / "other.npz", texts, ("", 20, 7))
    said = call("evaluate", run, "--data", other, code=2)
    assert "has the inputs input_ids, attention_mask; expected ids (5,) int64, picture" in said
    said = call("fit", "gnj", "--data", of_several / "pair.npz", *SHORT, code=2)
    assert "has several inputs (ids (5,) int64" in said  # a ready network takes one


def test_what_no_words_reach_is_kept_as_tensors_and_exported(of_several, tmp_path, monkeypatch):
    run, (raw, kind) = of_several / "reader", texts(30, 1)
    monkeypatch.syspath_prepend(of_several)
    own = ["--network", "networks_of_runs:reader"]
    assert "takes **others" in metrics_of(run)["structure"]["not_described"]
    said = call("export", run, *own, "--out", tmp_path / "net.pt2")
    assert "takes rows of input_ids (6,) int64, attention_mask (6,) int64" in said
    right = torch.export.load(tmp_path / "net.pt2").module()(**raw).argmax(1) == kind
    expected = metrics_of(run)["compressed"]["test"]["accuracy"]
    assert float(right.float().mean()) == pytest.approx(expected)
    call("evaluate", run, *own)


@pytest.mark.parametrize(
    ("method", "refused"),
    [
        ("gnj narrow=[0.5] threshold=valley start=0 finish=0", True),
        ("occam last=0 threshold=valley start=0 finish=0", False),
        ("transfer keep=0.7 finish=1 tolerance=null", False),
    ],
)
def test_a_network_without_words_is_reopened(method, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "tolerance_of", lambda *given: math.inf if refused else 0.0)
    (tmp_path / "networks_without_words.py").write_text(WORDLESS)
    monkeypatch.syspath_prepend(tmp_path)
    (name, more), run = method.split(maxsplit=1), tmp_path / "run"
    network = ["--network", f"networks_without_words:{'stack' if name == 'occam' else 'net'}"]
    cuts = sets(f"{more} epochs=3")
    call("fit", name, "--data", "digits", *network, *cuts, "--out", run)
    found = metrics_of(run)
    assert "asinh" in found["structure"]["not_described"]
    assert ("refused" in found) == refused
    said = call("evaluate", run, *network)
    assert f"{found['compressed']['test']['accuracy']:.4f}" in said.rsplit("handed back")[1]


# -- networks of one's own ------------------------------------------------------------------------

OWN = """
from torch import nn

def net(input_shape, outputs, *, units=7):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.Tanh(), nn.Linear(units, outputs))

def tied(input_shape, outputs):
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    made[3].weight = made[1].weight
    return made

def meta(input_shape, outputs):
    return nn.Linear(64, outputs, device="meta")

def nothing(input_shape, outputs):
    return 3

class Choosy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        x = self.a(x.flatten(1))
        return self.b(x if x.sum() > 0 else -x)

def choosy(input_shape, outputs):
    return Choosy()

class Recurrent(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.a, self.b = nn.GRU(8, 5, batch_first=True), nn.Linear(5, outputs)

    def forward(self, x):
        return self.b(self.a(x.flatten(1, 2))[0][:, -1])

def recurrent(input_shape, outputs):
    return Recurrent(outputs)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module, fresh for each test, in the present folder."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_network_of_ones_own(own, tmp_path):
    (tmp_path / "broken_networks.py").write_text("def net(:")
    (tmp_path / "leaving_networks.py").write_text("raise SystemExit(0)")
    basic = ["--data", "digits", "--epochs", "2", "--out"]
    call("fit", "gnj", "--network", f"{own}:net", "--set", "units=9", *basic, "run")
    assert metrics_of(tmp_path / "run")["compressed"]["parameters_before"] == 65 * 9 + 10 * 10
    assert "accuracy" in call("compress", "run", "--cut", "valley")
    for network, words in (
        (f"{own}:net2", "has no function 'net2'"),
        ("no_networks:net", "So no_networks, which makes the network, cannot be imported"),
        (":", "network of gnj"),
        (f"{own}:meta", "has no values, it is on the device meta"),
        ("broken_networks:net", "network failed: SyntaxError: invalid syntax (broken_networks.py"),
        ("leaving_networks:net", "failed, leaving_networks.py, line 1, in <module>: SystemExit: 0"),
        (f"{own}:tied", "are one tensor"),
        (f"{own}:nothing", "gave a int"),
        ("lenet", "MODULE:FUNCTION"),
        ("torchvision.models:resnet18", "not be built from input_shape=(1, 8, 8), outputs=10."),
        (f"{own}:net --set units=a", "could not be built from input_shape=(1, 8, 8), outpu"),
        (f"{own}:choosy --set narrow=[0.5]", "cuts the network while it trains"),
    ):
        assert words in call("fit", "gnj", "--network", *network.split(), *basic, "other", code=2)


def test_a_network_without_words_for_it_is_compressed_all_the_same(own, tmp_path):
    """Its file holds tensors only; what it says of sizes is of the whole network."""
    more = (*SMALL[:4], *sets("layers=b"), "--out", "run")
    said = call("fit", "gnj", "--network", f"{own}:recurrent", *more)
    assert "The file holds tensors only: a (GRU) cannot be described" in said
    found, file = metrics_of(tmp_path / "run"), tmp_path / "run" / "compressed.pocc"
    numbers = 3 * 5 * (8 + 5 + 2) + 5 * 10 + 10
    assert found["structure"]["file_bytes"] == file.stat().st_size
    assert found["structure"]["file_rate"] == pytest.approx(4 * numbers / file.stat().st_size)
    assert found["compressed"]["parameters_before"] == numbers
    for command in ("compress", "evaluate"):
        assert "--trust" in call(command, "run", code=2)
        for way in (["--network", f"{own}:recurrent"], ["--trust"]):
            nll = found["compressed"]["test"]["nll"]
            assert f"{nll:.4f}" in call(command, "run", *way)
    with pytest.raises(packed.PackedFileError, match="without a description"):
        packed.read(file)


# -- a file in another place ----------------------------------------------------------------------

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


def table_of(rng, first, rows):
    """Rows five seconds apart, of which the first is number ``first``."""
    time = 1.7e9 + 5.0 * (first + np.arange(rows))
    city, kind = rng.choice(["Ulm", "Oslo", "Riga"], rows), rng.choice(["old", "new, fine"], rows)
    size = rng.normal(3, 1, rows).round(3)
    delay = (time - 1.7e9) / 1500 + (city == "Riga") - 2 * (kind == "old") + 0.5 * size
    return pd.DataFrame({
        "time": time.astype(int), "city": city, "size": size, "kind": kind,
        "arrival": (1.7e9 + 60 * delay + rng.normal(0, 3, rows)).round(1),
        "mood": np.where(delay > 1.5, "good", np.where(delay > 0, "fair", "bad")),
    })  # fmt: skip


def predicted(path, frame):
    """What a place without pyroccam computes of a table, by the file alone, and what the file says
    of itself."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["data.json"])
    words = about.get("categories", {})
    numbers = about["columns"][: len(about["columns"]) - sum(map(len, words.values()))]
    dummies = (frame[name] == text for name in words for text in words[name])
    x = np.column_stack([frame[numbers], *dummies])
    (given,) = session.get_inputs()
    (found,) = session.run(["y"], {given.name: x.astype(TYPES[given.type])})
    return found, about


@pytest.mark.parametrize("target", ["arrival", "arrival likelihood=heteroscedastic", "mood"])
def test_a_file_predicts_new_rows_as_the_run_does(target, tmp_path):
    rng, out, (target, *more) = np.random.default_rng(0), tmp_path / "run", target.split()
    frames = {"train": (0, 200), "test": (200, 40), "new": (240, 40)}
    for name, rows in frames.items():
        spare = {"arrival", "mood"} - {target}
        table_of(rng, *rows).drop(columns=[*spare]).to_csv(tmp_path / f"{name}.csv", index=False)
    asked = f"data.target={target} data.categorical=auto data.test={tmp_path / 'test.csv'}"
    asked = sets(" ".join([asked, "hidden=[8] narrow=[] epochs=4", *more]))
    call("fit", "gnj", "--data", tmp_path / "train.csv", *asked, "--no-compare", "--out", out)
    call("evaluate", out, "--data", tmp_path / "new.csv", "--out", tmp_path / "scores.json")
    call("export", out, "--form", "onnx")
    scores = json.loads((tmp_path / "scores.json").read_text())["compressed"]
    frame = pd.read_csv(tmp_path / "new.csv")
    found, about = predicted(out / "exported.onnx", frame)
    assert (about["target"], bool(about["scaling"])) == (target, True)
    new = datasets.new_rows(tmp_path / "new.csv", like=load_fit(out, "cpu").data)
    with torch.no_grad():
        expected = packed.read(out / "compressed.pocc")(new.x_test).double().numpy()
    if target == "mood":
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        label = frame[target].map(about["class_names"].index).to_numpy()
        log_probs = found - np.log(np.exp(found).sum(1, keepdims=True))
        nll = -log_probs[np.arange(len(label)), label].mean()
        assert scores["accuracy"] == pytest.approx((found.argmax(1) == label).mean())
    else:
        (mean,), (spread,) = about["y_mean"], about["y_std"]
        np.testing.assert_allclose((found[:, 0] - mean) / spread, expected[:, 0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(found[:, 1:], expected[:, 1:], rtol=0, atol=1e-6)
        off, likelihood = found[:, 0] - frame[target], about["likelihood"]
        if more:
            sigma = spread * np.sqrt(likelihood["floor"] ** 2 + np.exp(found[:, 1]))
        else:
            sigma = spread * (likelihood["floor"] + np.exp(likelihood["log_scale"][0]))
        nll = (0.5 * (off / sigma) ** 2 + np.log(sigma * np.sqrt(2 * np.pi))).mean()
        assert scores["rmse"] == pytest.approx(np.sqrt((off**2).mean()), rel=1e-6)
    assert scores["nll"] == pytest.approx(nll, rel=1e-5)
