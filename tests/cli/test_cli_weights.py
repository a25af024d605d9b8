"""Methods over random weights on the command line, from training to the small file."""

import json
import math
import re

import numpy as np
import onnxruntime
import pytest
import scripts
import torch
from command_line import SMALL, WHOLE, call, metrics_of
from pyroccam import data as data_sets
from pyroccam import guides, inference, models
from pyroccam.cli.methods import weights
from pyroccam.cli.methods.table import METHODS
from pyroccam.cli.pages import report
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.files.packed import read
from pyroccam.inference.rounding.biases import rest_bits
from pyroccam.inference.storage.checkpoint import seal
from pyroccam.inference.training import numbers
from pyroccam.inference.training import ordinary as retraining
from safetensors.torch import load_file

from experiments.published import coded_draws, tables

BOOK = ("--code", "codebook", "--code.values", 8)
DRAW, ONE = ("--code", "draw"), ("--code.epochs", 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    return folder, call("fit", "gnj", "--out", folder, *SMALL, *WHOLE, rendered=True)


def test_a_run_compresses_its_network_and_says_how_much_is_left(run):
    folder, said = run
    found = metrics_of(folder)
    structure = found["structure"]
    assert {"architecture", "nonzero_percent", "bits", "rates", "file_bytes"} <= set(structure)
    assert set(structure["rates"]) == {"pruning", "fast_prediction", "maximum"}
    assert structure["file_bytes"] == (folder / "compressed.pocc").stat().st_size
    (row,) = found["learnt"][0]["rows"]
    assert row["left"] == structure["architecture"]
    assert row["file, bytes"] == structure["file_bytes"]
    for one in found["learnt"]:
        assert all(sentence in " ".join(said.split()) for sentence in one["sentences"])
    assert f"{structure['file_bytes']:,} bytes" in said
    assert "Traceback" not in said
    for figure in ("irrelevance", "training", "reliability"):
        assert (folder / "figures" / f"{figure}.png").stat().st_size > 0
    ways = found["test"]
    assert list(ways) == ["stochastic", "deterministic", "ensemble"]
    for scores in (*ways.values(), found["compressed"]["test"]):
        assert scores["accuracy"] > 0.5  # of ten classes
    assert ways["ensemble"]["nll"] < ways["stochastic"]["nll"]  # Jensen's inequality
    sent, rows = found["sent"], load_fit(folder, "cpu").data
    assert sent["uniform"] == pytest.approx(rows.N * math.log2(10))
    assert sent["file"] == 8 * structure["file_bytes"]
    with torch.no_grad():
        outputs = read(folder / "compressed.pocc")(rows.x_train)
    left = torch.nn.functional.cross_entropy(outputs, rows.targets, reduction="sum")
    assert sent["left"] == pytest.approx(float(left) / math.log(2), rel=1e-4)
    assert f"and {sent['file'] + sent['left']:,.0f} with the file" in " ".join(said.split())
    # What is said of the small network is of its file.
    small = weights.evaluate(load_fit(folder, "cpu"), read(folder / "compressed.pocc"))
    assert found["compressed"]["test"] == pytest.approx(small, rel=1e-6)
    assert f"{small['nll']:.4f}" in report([folder])


def test_an_opened_run_has_the_length_of_its_fit(run):
    """Not that of the whole run, of which numbers had a part: a trend is of the same epochs."""
    fit = load_fit(run[0], "cpu")
    assert fit.settings.epochs_for(fit.data.N) == metrics_of(run[0])["epochs"] < 6


def test_weights_that_are_left_are_those_of_the_file(run):
    folder, _ = run
    net = read(folder / "compressed.pocc")
    weights = [p for _, p in sorted(net.named_parameters()) if p.dim() == 2]
    structure = metrics_of(folder)["structure"]
    assert sum(int(p.count_nonzero()) for p in weights) == structure["weights"]
    inputs = [p.shape[1] for p in weights]
    assert "-".join(map(str, inputs)) == structure["architecture"]
    # A weight and its place, and a pointer for each output.
    stored = 2 * structure["weights"] + sum(p.shape[0] for p in weights)
    assert structure["rates"]["pruning"] == pytest.approx((64 * 12 + 12 * 10) / stored)


def test_compress_takes_a_threshold_and_rules(run, tmp_path):
    folder, _ = run
    file = tmp_path / "whole.pocc"
    said = call("compress", folder, "--cut", 100, "--code.significand", "deviation", "--out", file)
    assert "64-12" in said  # nothing is above 100
    size = int(re.search(r"([\d,]+) bytes", said)[1].replace(",", ""))
    assert size == file.stat().st_size
    assert "valley" in call("compress", "--help")
    assert "accuracy" in call("compress", folder, "--cut", "valley", "--out", file)


def test_a_tolerance_is_of_the_validation_rows(tmp_path):
    folder = tmp_path / "run"
    call("fit", "gnj", *SMALL, *WHOLE, "--set", "threshold=100", "--out", folder)
    said = call("compress", folder, "--cut", "noise", "--cut.nats", 0.1, code=2)
    assert "--cut.nats with --cut noise" in said
    sizes = []
    for tolerance in (0, 0.5):
        call("compress", folder, "--cut.nats", tolerance)
        file = folder / f"compressed-nats-{float(tolerance)}.pocc"
        sizes.append(sum(p.numel() for p in read(file).parameters()))
    assert sizes[0] > sizes[1]


def test_compress_does_as_the_run_did(tmp_path):
    """The same file again by default; another beside it by other rules."""
    more = [*WHOLE, "--set", "threshold=valley", "--out", tmp_path / "run"]
    call("fit", "gnj", *SMALL, *more)
    file = tmp_path / "run" / "compressed.pocc"
    before = file.read_bytes()
    found = metrics_of(tmp_path / "run")["structure"]
    assert "Beware" not in call("evaluate", tmp_path / "run")
    file.unlink()
    assert "compressed.pocc of the run is gone" in call("evaluate", tmp_path / "run")
    said = call("compress", tmp_path / "run")
    assert file.read_bytes() == before
    assert found["architecture"] in said
    call("compress", tmp_path / "run", "--cut", 100, *BOOK)
    assert file.read_bytes() == before
    other = tmp_path / "run" / "compressed-cut-100-code-codebook-values-8.pocc"
    assert other.stat().st_size != len(before)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["run"]["options"]["threshold"] = {"1": 100.0}  # by layer
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    seal(tmp_path / "run")
    assert "64-12" in call("compress", tmp_path / "run")
    assert file.read_bytes() != before  # by the thresholds that the run has now
    call("evaluate", tmp_path / "run")


def test_options_that_cannot_be_are_refused(run):
    folder, _ = run
    said = call("compress", folder, "--cut", "vally", code=2)
    assert "--cut='vally'" in said
    said = call("compress", folder, *BOOK, "--code.exponent", "published_three", code=2)
    assert "--code.exponent is nothing of --code codebook" in said
    said = call("compress", folder, "--code.significand", "exact", code=2)
    assert "significand='exact'" in said
    assert "values=0" in call("compress", folder, *BOOK[:-1], 0, code=2)
    said = call("compress", folder, "--code.resume", code=2)
    assert "--code.resume is nothing of --code digits" in said


def test_a_threshold_that_would_leave_nothing_leaves_a_network(tmp_path):
    more = [*WHOLE, "--set", "threshold=-100"]
    with pytest.warns(UserWarning, match="would cut the whole of layer '1'; left is the smallest"):
        said = call("fit", "gnj", *SMALL, *more, "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")
    assert found["test"]["ensemble"]["accuracy"] > 0.5
    warned = found["warnings"]
    assert any(
        one.startswith("Thresholds(at=-100) would cut the whole of layer '1'") for one in warned
    )
    assert f"{found['structure']['architecture']} filters or inputs" in said
    small, mean = found["compressed"]["test"], found["test"]["deterministic"]
    assert small["nll"] < mean["nll"] + 0.1


def test_decompress_writes_tensors_and_a_description(run, tmp_path):
    folder, _ = run
    call("decompress", folder / "compressed.pocc", "--out", tmp_path / "plain")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    net = read(folder / "compressed.pocc")
    assert sum(t.numel() for t in tensors.values() if t.dim() == 2) == sum(
        p.numel() for p in net.parameters() if p.dim() == 2
    )
    x = torch.randn(5, 1, 8, 8)
    assert torch.equal(inference.load(tmp_path / "plain")(x), net(x))
    damaged = tmp_path / "damaged.pocc"
    damaged.write_bytes((folder / "compressed.pocc").read_bytes()[:-3])
    assert "cannot be read" in call("decompress", damaged, code=2)


def test_export_is_of_the_compressed_network(run, tmp_path):
    folder, _ = run
    call("export", folder, "--form", "onnx", "--out", tmp_path / "net.onnx")
    data = load_fit(folder).data
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    raw = (data.x_test * data.x_std[:, None, None] + data.x_mean[:, None, None]).numpy()
    (found,) = session.run(None, {session.get_inputs()[0].name: raw})
    with torch.no_grad():
        expected = read(folder / "compressed.pocc")(data.x_test)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)
    aside = (folder / "compressed.pocc").rename(tmp_path / "aside")
    assert "has no compressed.pocc" in call("export", folder, code=2)
    aside.rename(folder / "compressed.pocc")


def test_evaluate_reads_the_file_back(run):
    folder, _ = run
    said = call("evaluate", folder)
    accuracy = metrics_of(folder)["compressed"]["test"]["accuracy"]
    assert "compressed" in said
    assert f"{accuracy:.4f}" in said


@pytest.mark.parametrize(
    "method",
    [name for name, row in METHODS.items() if row.over == "net" and name not in ("gnj", "sws")],
)
def test_every_method_over_weights_runs(method, tmp_path):
    # Methods over point estimates have no threshold, and fits of their own lengths.
    options = {"retrain": 1, "surgery": 1, "c": 0.5, "size": 300, "coding": 1, "between": 0}
    options |= {} if method == "epr" else {"threshold": "valley"}  # whose weights are points
    mine = [f"{k}={v}" for k, v in options.items() if k in METHODS[method].options]
    more = [part for one in mine for part in ("--set", one)]
    call("fit", method, *SMALL, *more, "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")
    assert found["method"] == method
    if method == "variance":
        assert "structure" not in found  # there is no mean network to cut
    else:
        assert found["structure"]["weights"] > 0
    assert ("message" in found) == (method in ("ghs", "graves", "bayes"))
    fit = load_fit(tmp_path / "run", "cpu")
    if method == "miracle":
        path = tmp_path / "run" / "draw.poccd"
        assert 295 <= found["draw"]["file_bytes"] == path.stat().st_size <= 300
        net = METHODS[method].smaller(fit, tmp_path / "run")
        assert weights.evaluate(fit, net) == pytest.approx(found["draw"]["test"])
        assert found["draw"]["sent"]["file"] == 8 * path.stat().st_size
        x, _ = fit.data.split("test")
        assert torch.equal(net(x), inference.load(path)(x))


def test_a_size_is_of_a_code_that_keeps_it():
    said = call(
        "fit", "miracle", *SMALL, "--set", "size=300", "--set", "code=ordered-random", code=2
    )
    assert "size=300 is kept by code=minimal-random only" in said.replace("\n", " ")


def test_a_run_tells_the_bits_of_its_message(tmp_path):
    said = call("fit", "graves", *SMALL, "--set", "threshold=valley", "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")["message"]
    fit = load_fit(tmp_path / "run", "cpu")
    again = inference.description_length(fit, passes=weights.MESSAGE_PASSES)
    assert found == pytest.approx(again.to_json(), rel=1e-5)
    assert found["total"] == found["weights"] + found["targets"]
    assert found["per_row"] == found["total"] / found["rows"]
    assert f"the message of weights and targets has {found['total']:,.0f} bits" in said


@pytest.mark.parametrize(
    ("prior", "guide"), [("half-cauchy:0.001", "mean-field"), ("normal:1", "dropout-neuron")]
)
def test_any_prior_and_guide(prior, guide, tmp_path):
    call(
        "fit", "bayes", *SMALL, "--set", f"prior={prior}", "--set", f"guide={guide}",
        "--set", "threshold=valley", "--out", tmp_path / "run",
    )  # fmt: skip
    structure = metrics_of(tmp_path / "run")["structure"]
    assert structure["weights"] > 0


@pytest.mark.parametrize(("settings", "words"), [
    (("threshold=noize",), "threshold='noize'"),
    (("narrow_at=walley",), "narrow_at='walley'"),
    (("threshold=validation", "tolerance=-1"), "tolerance=-1"),
    (("narrow_tolerance=-0.1",), "narrow_tolerance=-0.1"),
    (('threshold={"b":1.0}',), "Unknown Bayesian layer 'b'"),
    (("max_scale=first:x",), "max_scale='first:x'"),
    (("max_scale=last:1",), "max_scale='last:1'"),
    (("guide=zero-mean", "narrow=[0.5]", "max_scale=null"), "weights of layer '1' have no mean"),
    (("threshold=validation", "data.val_fraction=0"), "threshold='validation' needs val.*noise"),
    (
        ("narrow=[0.5]", "narrow_at=validation", "data.val_fraction=0"),
        "narrow_at='validation' needs val",
    ),
    (("narrow_at=valley", "narrow=[]"), "narrow_at='valley' changes nothing"),
    (("random_biases=maybe",), "random_biases='maybe'"),
    (("data.flatten=0",), "flatten=0"),
])  # fmt: skip
def test_what_cannot_be_is_said_before_the_training(settings, words, tmp_path):
    more = [part for one in settings for part in ("--set", one)]
    said = call("fit", "gnj", *SMALL, *more, "--out", tmp_path / "run", code=2)
    assert re.search(words, said)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_repeats_are_compressed_one_by_one(tmp_path):
    call("fit", "gnj", *SMALL, *WHOLE, "--repeats", 2, "--out", tmp_path / "runs")
    said = call("compress", tmp_path / "runs", code=2)
    assert "seed-0" in said
    call("compress", tmp_path / "runs" / "seed-1")


def _rest(fit, net):
    return rest_bits(net, lambda one: weights.evaluate(fit, one, "val")["nll"], 0.001)


def test_as_few_digits_as_do_no_harm(tmp_path):
    """Targets far from zero need many digits of the last bias, and of its network no more."""
    x = torch.randn(200, 3, generator=torch.manual_seed(0))
    for shift, least, most in ((0.0, 3, 9), (1000.3, 12, 22)):
        y = 0.05 * x[:, :1] + shift
        rows = data_sets.Dataset.from_tensors(x, y, x, y, standardise=False)
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        with torch.no_grad():
            net[2].bias.fill_(shift)
        model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(), random_biases=False)
        settings = {"epochs": 60, "lr": 0.02, "weight_decay": 0.0, "progress": False}
        fit = inference.fit(model, guides.MeanField(model), rows, device="cpu", **settings)
        small = inference.shrink(fit, cut=inference.Thresholds(100.0)).net
        assert all(least <= bits <= most for bits in _rest(fit, small).values())
        path = tmp_path / f"{shift}.pocc"
        _, said = weights.compress_run(fit, inference.Thresholds(100.0), path)
        assert said["test"]["nll"] == pytest.approx(weights.evaluate(fit, small)["nll"], abs=1e-3)


def test_numbers_that_few_digits_would_spoil(tmp_path):
    """What is not finite is left out, and digits that make a prediction infinite are not taken."""

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.into = torch.nn.Linear(3, 1)
            self.last = torch.nn.Parameter(torch.tensor([3.95]))
            self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

        def forward(self, x):
            return self.into(x) + (self.last - 3.9).sqrt() + self.mask[0]

    x = torch.randn(100, 3, generator=torch.manual_seed(0))
    rows = data_sets.Dataset.from_tensors(x, x[:, :1], x, x[:, :1])
    model = models.BayesianNetwork(Odd(), rows, prior=models.priors.Normal())
    fit = inference.fit(model, guides.MeanField(model), rows, epochs=2, progress=False)
    with torch.no_grad():
        model.part("net").last.fill_(3.95)
    small, found = weights.compress_run(fit, inference.Thresholds(100.0), tmp_path / "small.pocc")
    assert math.isfinite(found["test"]["nll"])
    assert "mask" not in _rest(fit, small.net)


def test_unknown_words_are_refused_with_the_nearest(tmp_path):
    said = call("fit", "bayes", *SMALL, "--set", "prior=gjn", "--out", tmp_path / "a", code=2)
    assert "gnj" in said
    said = call("fit", "bayes", *SMALL, "--set", "guide=meanfield", "--out", tmp_path / "b", code=2)
    assert "mean-field" in said
    more = ["--set", "guide=dropout-neuron"]
    said = call("fit", "gnj", *SMALL, *more, "--out", tmp_path / "c", code=2)
    assert "set it to null" in said
    call("fit", "gnj", *SMALL, *WHOLE, *more, "--set", "max_scale=null", "--out", tmp_path / "c")
    said = call("fit", "gnj", "--data", "digits", "--network", "mlp", code=2)
    assert "perceptron" in said


def test_repeats_report_the_spread_of_the_structure(tmp_path):
    folder = tmp_path / "many"
    said = call("fit", "gnj", *SMALL, *WHOLE, "--repeats", 2, "--out", folder)
    spread = json.loads((folder / "metrics.json").read_text())["spread"]
    assert spread["structure"]["file_bytes"]["n"] == 2
    assert "cut and rounded" in said


def test_a_regression_is_compressed_by_its_likelihood(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator)
    y = x[:, :1] * 2 + 0.1 * torch.randn(300, 1, generator=generator)
    file = tmp_path / "rows.npz"
    np.savez(file, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    call(
        "fit", "gnj", "--data", file, "--set", "hidden=[10]", "--epochs", 30, "--set", "lr=0.01",
        "--out", tmp_path / "run",
    )  # fmt: skip
    found = metrics_of(tmp_path / "run")
    assert {"rmse", "nll"} <= set(found["compressed"]["test"])


def test_repeats_predict_together(tmp_path):
    """A deep ensemble of point estimates, if all seeds have the same test rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "own.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])
    more = ("--data", tmp_path / "own.npz", "--set", "guide=delta", "--repeats", 2)
    said = call("fit", "bayes", *more, "--epochs", 5, "--out", tmp_path / "run")
    assert "All 2 together" in said
    found = metrics_of(tmp_path / "run")
    nlls = [one["test"]["ensemble"]["nll"] for one in found["repeats"]]
    assert found["spread"]["together"]["nll"] <= sum(nlls) / 2 + 1e-6
    assert load_fit(tmp_path / "run" / "seed-1", "cpu").settings.seed == 1


def test_repeats_on_the_same_rows(tmp_path):
    """Where rows are split at random, only if it is asked for."""
    more = ("--data", "digits", "--set", "hidden=[8]", "--set", "guide=delta", "--repeats", 2)
    said = call("fit", "bayes", *more, "--epochs", 2, "--out", tmp_path / "own")
    assert "All 2 together" not in said
    assert "other test rows" in said
    assert "--set data.seed=0" in said
    same = (*more, "--set", "data.seed=5", "--epochs", 2, "--out", tmp_path / "same")
    assert "All 2 together" in call("fit", "bayes", *same)
    fits = [load_fit(tmp_path / "same" / f"seed-{k}", "cpu") for k in (0, 1)]
    assert torch.equal(fits[0].data.y_test, fits[1].data.y_test)
    assert [fit.settings.seed for fit in fits] == [0, 1]
    call("fit", "bayes", *more, "--set", "data.seed=true", "--out", tmp_path / "no", code=2)


def test_numbers_that_were_trained_are_not_trained_again(tmp_path, monkeypatch):
    """A run that is stopped while numbers are trained begins with those that it has."""
    trained, rates = retraining.trained, []

    def stopped(net, fit, epochs, lr, *teacher):
        if len(rates) == 2:
            raise KeyboardInterrupt
        return counted(net, fit, epochs, lr, *teacher)

    def counted(net, fit, epochs, lr, *teacher):
        rates.append(lr)
        return trained(net, fit, epochs, lr, *teacher)

    command = ["fit", "gnj", *SMALL, "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr(numbers, "trained", stopped)
        call(*command, code=130)
    assert "holds a run already" in call(*command, code=2)
    for module in (numbers, retraining):
        monkeypatch.setattr(module, "trained", counted)
    rates.clear()
    call(*command, "--resume")
    resumed = [*rates]
    rates.clear()
    call("fit", "gnj", *SMALL, "--out", tmp_path / "whole")
    assert [*retraining.RATES[:2], *resumed] == rates
    whole, again = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "run")
    assert [*whole["numbers"]["val_nll"]] == ["0.001", "0.003", "0.01"]
    for name in ("lr", "val_nll", "test"):
        assert again["numbers"][name] == whole["numbers"][name]
    assert again["test"] == whole["test"]
    assert again["compressed"]["test"] == whole["compressed"]["test"]
    assert again["structure"]["retrained"] == whole["structure"]["retrained"]


def test_a_draw_is_coded_and_read(run, tmp_path):
    folder, _ = run
    file = tmp_path / "draw.poccd"
    said = call("compress", folder, *DRAW, "--code.bytes", 150, *ONE, "--out", file)
    assert file.stat().st_size <= 150
    assert "times the KL of the draw" in said
    assert not (tmp_path / "draw.poccd.coding").exists()
    call("decompress", file, "--out", tmp_path / "plain")
    net, again = inference.load(file), inference.load(tmp_path / "plain")
    for ours, theirs in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    file.write_bytes(file.read_bytes()[:-9])
    assert "cut off or altered" in call("decompress", file, code=2)
    few = call("compress", folder, *DRAW, "--code.bytes", 20, "--out", file, code=2)
    assert "expected at least" in few
    assert "is nothing of --code digits" in call("compress", folder, "--code.bytes", 20, code=2)
    odd = call("compress", folder, *DRAW, "--code.values", 8, code=2)
    assert "is nothing of --code draw" in odd


def test_the_posterior_of_a_run_is_sent(run, tmp_path):
    """Whole, whatever the rule of the run; that of a prior from which nobody draws is refused."""
    quick = ("--set", "kl_weight=200", "--set", "start=0", "--set", "finish=0")
    call("fit", "bayes", *SMALL, *quick, "--out", tmp_path / "run")
    own = ("compress", tmp_path / "run", *DRAW, "--code.posterior", "own")
    said = call(*own, *ONE)
    times = float(said.split(" times the KL")[0].split()[-1])
    assert 1.0 < times < 1.6
    message = metrics_of(tmp_path / "run")["message"]
    assert 8 * (tmp_path / "run" / "draw.poccd").stat().st_size > 0.9 * message["weights"]
    assert "is sent whole" in call(*own, "--cut", "noise", code=2)
    assert "which takes" in call(*own, "--code.bytes", 60, code=2)
    folder, _ = run
    odd = call("compress", folder, *DRAW, "--code.posterior", "own", code=2)
    assert "one s for its layer" in odd
    assert "is nothing of --code digits" in call(
        "compress", folder, "--code.posterior", "own", code=2
    )


def test_draws_of_runs_by_size(run, tmp_path, capsys):
    """A row for each run, from its seed; another size, rule or shift is a file of its own."""
    folder, _ = run
    out = tmp_path / "coded_draws"
    quick = ("--runs", folder, "--epochs", 1, "--steps", 1, "--bits", 8, "--out", out)
    scripts.call(coded_draws.SPEC, *quick, "--sizes", "150,200", "--shift", 1)
    scripts.call(
        coded_draws.SPEC, *quick, "--sizes", 150, "--tolerance", 0.5, "--code", "ordered-random"
    )
    assert {path.name for path in out.iterdir()} == {
        "perceptron-shift-1-150.json", "perceptron-shift-1-200.json",
        "perceptron-ordered-random-150.json", "draws.png",
    }  # fmt: skip
    found = scripts.read(out / "perceptron-shift-1-200.json")
    (row,) = found["runs"]
    assert row["seed"] == load_fit(folder, "cpu").settings.seed
    assert 150 < row["file_bytes"] <= 200
    assert found["config"]["shift"] == 1
    other = scripts.read(out / "perceptron-ordered-random-150.json")
    assert other["config"]["tolerance"] == 0.5
    assert other["runs"][0]["weights"] < row["weights"]
    before = (out / "perceptron-shift-1-200.json").stat().st_mtime_ns
    scripts.call(coded_draws.SPEC, *quick, "--sizes", 200, "--shift", 1)
    assert (out / "perceptron-shift-1-200.json").stat().st_mtime_ns == before
    capsys.readouterr()
    tables.main(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert any(f"1 px (1) | {row['architecture']} | {row['file_bytes']}" in one for one in lines)


def test_training_is_not_lost_where_no_draw_can_be_sent(tmp_path):
    own = ("guide=zero-mean", "prior=normal:1", "max_scale=null", "size=300", "coding=1")
    sets = [part for one in own for part in ("--set", one)]
    said = call("fit", "miracle", *SMALL, *sets, "--out", tmp_path / "run")
    assert "No draw was sent: The weights of layer" in said
    assert any("have no mean" in one for one in metrics_of(tmp_path / "run")["warnings"])
