"""Methods over random weights on the command line, from training to the small file."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from command_line import call
from pyroccam import data as data_sets
from pyroccam import guides, inference, models
from pyroccam.experiments import weights
from pyroccam.experiments.config import RunConfig, parse_settings
from pyroccam.experiments.methods import METHODS
from pyroccam.experiments.run import load_fit
from pyroccam.experiments.run import run as run_config
from pyroccam.inference import packing, thresholds
from pyroccam.inference.packing import read
from safetensors.torch import load_file

WHOLE = ["--set", "narrow=[]"]
SMALL = ["--data", "digits", "--epochs", "6", "--set", "hidden=[12]", "--set", "lr=0.01"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    return folder, call("fit", "gnj", "--out", folder, *SMALL, *WHOLE, rendered=True)


def metrics_of(folder):
    return json.loads((folder / "metrics.json").read_text())


def test_a_run_compresses_its_network_and_says_how_much_is_left(run):
    folder, said = run
    found = metrics_of(folder)
    structure = found["structure"]
    assert {"architecture", "nonzero_percent", "bits", "rates", "file_bytes"} <= set(structure)
    assert set(structure["rates"]) == {"pruning", "fast_prediction", "maximum"}
    assert structure["file_bytes"] == (folder / "compressed.pocc").stat().st_size
    assert f"{structure['architecture']} is enough" in said
    assert f"{structure['file_bytes']:,} bytes" in said
    assert "Traceback" not in said
    for figure in ("irrelevance", "training", "reliability"):
        assert (folder / "figures" / f"{figure}.png").stat().st_size > 0
    ways = found["test"]
    assert list(ways) == ["stochastic", "deterministic", "ensemble"]
    for scores in (*ways.values(), found["compressed"]["test"]):
        assert scores["accuracy"] > 0.5  # of ten classes
    assert ways["ensemble"]["nll"] < ways["stochastic"]["nll"]  # Jensen's inequality
    # Rounding of the biases to half precision and the file's own are in the number read back.
    before, after = found["compressed"]["test"], found["compressed"]["test_after_reading"]
    assert after["nll"] == pytest.approx(before["nll"], rel=0.01)


def test_weights_that_are_left_are_those_of_the_file(run):
    folder, _ = run
    net = read(folder / "compressed.pocc")
    weights = [p for _, p in sorted(net.named_parameters()) if p.dim() == 2]
    structure = metrics_of(folder)["structure"]
    assert sum(p.numel() for p in weights) == structure["weights"]
    inputs = [p.shape[1] for p in weights]
    assert "-".join(map(str, inputs)) == structure["architecture"]
    assert structure["rates"]["pruning"] == pytest.approx(
        (64 * 12 + 12 * 10) / structure["weights"]
    )


def test_compress_takes_a_threshold_and_rules(run, tmp_path):
    folder, _ = run
    file = tmp_path / "whole.pocc"
    said = call("compress", folder, "--threshold", 100, "--significand", "deviation", "--out", file)
    assert "64-12" in said  # nothing is above 100
    size = int(re.search(r"([\d,]+) bytes", said)[1].replace(",", ""))
    assert size == file.stat().st_size
    assert "valley" in call("compress", "--help")
    assert "accuracy" in call("compress", folder, "--threshold", "valley", "--out", file)


def test_a_tolerance_is_of_the_validation_rows(tmp_path):
    folder = tmp_path / "run"
    call("fit", "gnj", *SMALL, *WHOLE, "--set", "threshold=100", "--out", folder)
    said = call("compress", folder, "--threshold", "noise", "--tolerance", 0.1, code=2)
    assert "--tolerance is of --threshold validation" in said
    sizes = []
    for tolerance in (0, 0.5):
        call("compress", folder, "--tolerance", tolerance)
        file = folder / f"compressed-tolerance-{float(tolerance)}.pocc"
        sizes.append(sum(p.numel() for p in read(file).parameters()))
    assert sizes[0] > sizes[1]


def test_compress_does_as_the_run_did(tmp_path):
    """The same file again by default; another beside it by other rules."""
    more = [*WHOLE, "--set", "threshold=valley", "--out", tmp_path / "run"]
    call("fit", "gnj", *SMALL, *more)
    file = tmp_path / "run" / "compressed.pocc"
    before = file.read_bytes()
    found = metrics_of(tmp_path / "run")["structure"]
    file.unlink()
    said = call("compress", tmp_path / "run")
    assert file.read_bytes() == before
    assert found["architecture"] in said
    call("compress", tmp_path / "run", "--threshold", 100, "--codebook", 3)
    assert file.read_bytes() == before
    other = tmp_path / "run" / "compressed-threshold-100-codebook-3.pocc"
    assert other.stat().st_size != len(before)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["run"]["options"]["threshold"] = {"1": 100.0}  # by layer
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "64-12" in call("compress", tmp_path / "run")


def test_a_threshold_that_leaves_nothing_names_the_layer(run):
    folder, _ = run
    said = call("compress", folder, "--threshold", -100, code=2)
    assert re.search(r"would cut the whole of layer '1'.*larger threshold", said)
    said = call("compress", folder, "--threshold", "vally", code=2)
    assert "--threshold 'vally': give validation, valley, noise or a number" in said
    said = call("compress", folder, "--codebook", 3, "--exponent", "published_three", code=2)
    assert "exponent='published_three' changes nothing" in said


def test_a_run_that_cannot_be_compressed_keeps_its_numbers(tmp_path):
    more = [*WHOLE, "--set", "threshold=-100"]
    said = call("fit", "gnj", *SMALL, *more, "--out", tmp_path / "run")
    assert re.search(r"Not compressed: .*would cut the whole of layer '1'", said)
    found = metrics_of(tmp_path / "run")
    assert found["test"]["ensemble"]["accuracy"] > 0.5
    assert "larger threshold" in found["not_compressed"]
    said = call("compress", tmp_path / "run", "--threshold", "valley")
    assert "accuracy" in said


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


def test_evaluate_reads_the_file_back(run):
    folder, _ = run
    said = call("evaluate", folder)
    accuracy = metrics_of(folder)["compressed"]["test_after_reading"]["accuracy"]
    assert "compressed" in said
    assert f"{accuracy:.4f}" in said


@pytest.mark.parametrize(
    "method",
    [name for name, row in METHODS.items() if row.over == "net" and name not in ("gnj", "sws")],
)
def test_every_method_over_weights_runs(method, tmp_path):
    # Methods over point estimates have no threshold, and fits of their own lengths.
    options = {"threshold": "valley", "retrain": 1, "surgery": 1, "c": 0.5}
    mine = [f"{k}={v}" for k, v in options.items() if k in METHODS[method].options]
    more = [part for one in mine for part in ("--set", one)]
    call("fit", method, *SMALL, *more, "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")
    assert found["method"] == method
    if method == "variance":
        assert "structure" not in found  # there is no mean network to cut
    else:
        assert found["structure"]["weights"] > 0
    load_fit(tmp_path / "run", "cpu")


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


def test_a_run_goes_on_over_what_is_left(tmp_path, monkeypatch):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    more = [
        "--set",
        "narrow=[0.4,0.7]",
        "--set",
        "narrow_at=valley",
        "--set",
        "max_scale=first:0.3",
    ]
    said = call("fit", "gnj", *SMALL, *more, "--out", whole)
    assert "Traceback" not in said
    found = metrics_of(whole)
    assert [one["name"] for one in found["stages"]] == ["gnj", "narrow-1", "narrow-2"]
    assert found["epochs"] == 6
    assert found["structure"]["rates"]["pruning"] == pytest.approx(
        (64 * 12 + 12 * 10) / found["structure"]["weights"]
    )
    settings = [
        json.loads((whole / part / "fit.json").read_text())["settings"]
        for part in ("", "narrow-1", "narrow-2")
    ]
    assert [s["schedule"] for s in settings] == ["constant", "constant", "linear"]
    assert [s["epochs"] for s in settings] == [2, 2, 2]
    assert [s["kl_warmup"] for s in settings] == [pytest.approx(0.06), 0.0, 0.0]
    # What is rebuilt from the folder is what was trained.
    x = torch.randn(7, 1, 8, 8)
    again = load_fit(whole, "cpu")
    ours = found["test"]["ensemble"]
    assert ours["nll"] == pytest.approx(again.evaluate()["nll"], rel=1e-5)
    file = tmp_path / "again.pocc"
    call("compress", whole, "--threshold", "validation", "--out", file)
    torch.testing.assert_close(read(file)(x), read(whole / "compressed.pocc")(x))
    # The thresholds that were found are not looked for again, which could end elsewhere.
    with monkeypatch.context() as patched:
        patched.setattr(thresholds, "valley", lambda _: 1 / 0)
        assert load_fit(whole, "cpu").model.narrowed_at == again.model.narrowed_at
    # Cut short after its first fit, the run ends with the same numbers.
    shutil.copytree(whole, folder)
    for part in ("metrics.json", "narrow-2/checkpoint.pt", "narrow-2/model.safetensors"):
        (folder / part).unlink(missing_ok=True)
    call("fit", "gnj", *SMALL, *more, "--out", folder, "--resume")
    assert metrics_of(folder)["structure"] == found["structure"]
    said = call("fit", "gnj", *SMALL, "--set", "narrow=3", code=2)
    assert "give the fractions of the run" in " ".join(said.split())


OWN = """
from torch import nn

def net(input_shape, outputs, *, units=7):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.Tanh(), nn.Linear(units, outputs))

def tied(input_shape, outputs):
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    made[3].weight = made[1].weight
    return made

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


def test_a_network_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    basic = ["--data", "digits", "--epochs", "2", "--out"]
    call("fit", "gnj", "--network", "my_networks:net", "--set", "units=9", *basic, "run")
    assert metrics_of(tmp_path / "run")["compressed"]["parameters_before"] == 65 * 9 + 10 * 10
    assert "accuracy" in call("compress", "run", "--threshold", "valley")
    for network, words in (
        ("my_networks:net2", "my_networks has no function 'net2'"),
        ("no_networks:net", "no_networks cannot be imported"),
        ("my_networks:tied", "are one tensor"),
        ("my_networks:nothing", "gave a int, expected a torch.nn.Module"),
        ("lenet", "MODULE:FUNCTION"),
        ("torchvision.models:resnet18", "not be built from input_shape=(1, 8, 8), outputs=10: too"),
        ("my_networks:net --set units=a", "could not be built from input_shape=(1, 8, 8), outpu"),
    ):
        said = call("fit", "gnj", "--network", *network.split(), *basic, "other", code=2)
        assert words in " ".join(said.split())


def test_a_network_that_cannot_be_cut(tmp_path, monkeypatch):
    """Said before it is trained; trained whole if that is asked for."""
    (tmp_path / "choosy_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    basic = ("--network", "choosy_networks:choosy", "--data", "digits", "--epochs", 2)
    said = call("fit", "gnj", *basic, "--out", "a", code=2)
    assert re.search("cuts the network while it trains, which cannot be done: .*narrow=", said)
    with pytest.warns(UserWarning, match="can be trained, but not be compressed in the end: .*fx"):
        said = call("fit", "gnj", *basic, "--set", "narrow=[]", "--set", "noise=activations",
                    "--out", "b")  # fmt: skip
    assert "Not compressed" in said
    assert {"test", "not_compressed"} <= set(metrics_of(tmp_path / "b"))


def test_a_network_without_words_for_it_is_compressed_all_the_same(tmp_path, monkeypatch):
    """Its file holds tensors only; what it says of sizes is of the whole network."""
    (tmp_path / "recurrent_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = call("fit", "gnj", "--network", "recurrent_networks:recurrent", *SMALL[:4],
                "--set", "layers=b", "--out", "run")  # fmt: skip
    assert "The file holds tensors only: a (GRU) cannot be described" in said
    found = metrics_of(tmp_path / "run")
    size = (tmp_path / "run" / "compressed.pocc").stat().st_size
    numbers = 3 * 5 * (8 + 5 + 2) + 5 * 10 + 10
    assert found["structure"]["file_bytes"] == size
    assert found["structure"]["file_rate"] == pytest.approx(4 * numbers / size)
    assert found["compressed"]["parameters_before"] == numbers
    before, after = found["compressed"]["test"], found["compressed"]["test_after_reading"]
    assert after["nll"] == pytest.approx(before["nll"], rel=0.01)
    for command in (("compress", "run"), ("evaluate", "run")):
        assert f"{after['nll']:.4f}" in call(*command)
    with pytest.raises(packing.PackedFileError, match="without a description"):
        read(tmp_path / "run" / "compressed.pocc")


@pytest.mark.parametrize(("settings", "words"), [
    (("threshold=noize",), "threshold must be .* got 'noize'"),
    (("narrow_at=walley",), "narrow_at must be .* got 'walley'"),
    (("threshold=validation", "tolerance=-1"), "tolerance=-1: give a number of nats"),
    (("narrow_tolerance=-0.1",), "narrow_tolerance=-0.1: give a number of nats"),
    (('threshold={"b":1.0}',), "Unknown Bayesian layer 'b'"),
    (("max_scale=first:x",), "max_scale='first:x': give a number"),
    (("max_scale=last:1",), "max_scale='last:1': give a number"),
    (("guide=zero-mean", "narrow=[0.5]", "max_scale=null"), "weights of layer '1' have no mean"),
    (("threshold=validation", "data.val_fraction=0"), "threshold=validation needs val.*noise"),
    (("narrow_at=validation", "data.val_fraction=0"), "narrow_at=validation needs val"),
    (("narrow_at=valley", "narrow=[]"), "narrow_at='valley' changes nothing"),
    (("random_biases=maybe",), "random_biases='maybe': give true or false"),
    (("data.flatten=0",), "flatten=0; expected true or false"),
])  # fmt: skip
def test_what_cannot_be_is_said_before_the_training(settings, words, tmp_path):
    more = [part for one in settings for part in ("--set", one)]
    said = call("fit", "gnj", *SMALL, *more, "--out", tmp_path / "run", code=2)
    assert re.search(words, said)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_layers_are_named_as_they_were_before_they_were_cut(tmp_path):
    asked = ["--set", 'threshold={"1":100.0,"3":50.0}', "--set", "narrow_tolerance=0.2"]
    call("fit", "gnj", *SMALL, *asked, "--set", "narrow=[0.5]", "--out", tmp_path / "run")
    found = metrics_of(tmp_path / "run")["structure"]["thresholds"]
    assert found == {"1.1": 100.0, "3": 50.0}


def test_repeats_are_compressed_one_by_one(tmp_path):
    call("fit", "gnj", *SMALL, *WHOLE, "--repeats", 2, "--out", tmp_path / "runs")
    said = call("compress", tmp_path / "runs", code=2)
    assert re.search("holds the runs of 2 seeds: give one, such as ", said)
    call("compress", tmp_path / "runs" / "seed-1")


def test_half_precision_where_it_does_no_harm(tmp_path):
    """Targets far from zero need all digits of the last bias, and of its network no more."""
    x = torch.randn(200, 3, generator=torch.manual_seed(0))
    for shift, expected in ((0.0, torch.float16), (1000.3, torch.float32)):
        y = 0.05 * x[:, :1] + shift
        rows = data_sets.Dataset.from_tensors(x, y, x, y, standardise=False)
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        with torch.no_grad():
            net[2].bias.fill_(shift)
        model = models.BayesianNetwork(net, rows, prior=models.priors.Normal(), random_biases=False)
        settings = {"epochs": 60, "lr": 0.02, "weight_decay": 0.0, "progress": False}
        fit = inference.fit(model, guides.MeanField(model), rows, device="cpu", **settings)
        small = inference.compress(fit, threshold=100.0).net
        assert weights._rest(fit, small) == expected
        path = tmp_path / f"{shift}.pocc"
        _, said = weights.compress_run(fit, 100.0, None, path)
        assert said["test"]["nll"] == pytest.approx(weights.evaluate(fit, small)["nll"], abs=1e-3)


def test_a_cut_on_the_way_may_cost_more_than_the_last(tmp_path):
    left = []
    for more in ((), ("--set", "narrow_tolerance=0.001"), ("--set", "narrow_tolerance=0.8")):
        out = tmp_path / str(len(left))
        call("fit", "gnj", *SMALL, "--set", "narrow=[0.5]", *more, "--out", out)
        net = load_fit(out, "cpu").model.start_network()
        left.append(sum(p.numel() for p in net.parameters()))
    assert left[0] == left[1] > left[2]


def test_the_last_fit_may_train_on_all_rows(tmp_path):
    folder = tmp_path / "run"
    asked = [*SMALL, "--set", "narrow=[0.3,0.6]", "--set", "last_rows=all", "--out", folder]
    call("fit", "gnj", *asked)
    found = metrics_of(folder)
    data = RunConfig.resolve("gnj", "digits")[1]
    train, val, test = (len(data.split(name)[0]) for name in ("train", "val", "test"))
    assert found["rows"] == {"train": train + val, "val": 0, "test": test}
    # Of the fits before it the thresholds had rows to be chosen on.
    told = [np.genfromtxt(folder / part / "history.csv", delimiter=",", names=True)["val_nll"][-1]
            for part in ("", "narrow-1", "narrow-2")]  # fmt: skip
    assert np.isfinite(told).tolist() == [True, True, False]
    again = load_fit(folder, "cpu")
    assert again.model.size == again.data.N == train + val
    assert found["test"]["ensemble"]["nll"] == pytest.approx(again.evaluate()["nll"], rel=1e-5)
    said = call("compress", folder, "--tolerance", "0.01", code=2)
    assert re.search(r"by its validation rows: the last fit trained on them\. Give --thr", said)
    assert "There are no val rows" in call("evaluate", folder, "--split", "val", code=2)
    for part in ("metrics.json", "narrow-2/checkpoint.pt", "narrow-2/model.safetensors"):
        (folder / part).unlink()
    call("fit", "gnj", *asked, "--resume")
    assert metrics_of(folder)["structure"] == found["structure"]


def test_epochs_are_counted_over_the_rows_of_each_fit():
    sets = {"steps": 400, "batch_size": 16, "kl_warmup": 0.0, "narrow": [0.5], "last_rows": "all"}
    config, data = RunConfig.resolve("gnj", "spirals", sets=sets)
    rows = [data.N, data.N + len(data.x_val)]
    expected = [math.ceil(200 / math.ceil(n / 16)) for n in rows]
    assert expected[0] != expected[1]
    found = run_config(config, data, progress=False, figures=False).metrics
    assert found["epochs"] == sum(expected)


@pytest.mark.parametrize(("settings", "refused"), [
    (("last_rows=all",), None),
    (("last_rows=all", "threshold=3.0"), None),
    (("last_rows=val",), r"last_rows='val': give all, or null"),
    (("last_rows=all", "narrow=[]"), r"narrow=\[\] cuts nothing .*data\.val_fraction=0"),
    (("last_rows=all", "epochs=1"), r"narrow=\[0\.22, 0\.44, 0\.67\] cuts nothing"),
    (("last_rows=all", "data.val_fraction=0"), "changes nothing: there are no validation rows"),
    (("last_rows=all", "threshold=validation"), "threshold='validation' is chosen.*=noise"),
    (("last_rows=all", "threshold=null"), "threshold=None is chosen.*=noise"),
])  # fmt: skip
def test_rows_of_the_last_fit_that_cannot_be(settings, refused):
    def resolve():
        return RunConfig.resolve("gnj", "digits", sets=parse_settings(list(settings)))

    if refused is None:
        resolve()
    else:
        with pytest.raises(ValueError, match=refused):
            resolve()


@pytest.mark.parametrize(("method", "settings", "refused"), [
    ("sparse-vd", ("tolerance=0.01",), "tolerance=0.01"),
    ("sparse-vd", ("threshold=validation", "tolerance=0.01"), None),
    ("ghs", ("tolerance=0.01",), "tolerance=0.01"),
    ("gnj", ("tolerance=0.01",), None),  # of its cuts on the way
    ("gnj", ("narrow=[]", "narrow_tolerance=0.01"), "narrow_tolerance=0.01"),
    ("ghs", ("narrow_at=valley", "narrow_tolerance=0.01"), "narrow_tolerance=0.01"),
    ("ghs", ("narrow=[]",), None),
    ("ghs", ("data.val_fraction=0.0", "narrow_tolerance=0.01"), "narrow_tolerance=0.01"),
])  # fmt: skip
def test_tolerances_without_effect_are_refused(method, settings, refused):
    def resolve():
        return RunConfig.resolve(method, "digits", sets=parse_settings(list(settings)))

    if refused is None:
        resolve()
    else:
        with pytest.raises(ValueError, match=f"^{refused} changes nothing"):
            resolve()


def test_the_warm_up_ends_before_the_first_cut(tmp_path):
    more = ("--set", "narrow=[0.5]", "--epochs", 4, "--out", tmp_path / "run")
    said = call("fit", "gnj", *SMALL, *more, "--set", "kl_warmup=0.5", code=2)
    assert re.search(r"narrowed after 2 of 4 epochs, .*kl_warmup=0\.5.*below 0\.5", said)


def test_a_stage_that_fails_says_what_is_kept(tmp_path):
    more = ("--set", "narrow=[0.5]", "--set", "narrow_at=-100", "--out", tmp_path / "run")
    said = call("fit", "gnj", *SMALL, *more, code=2)
    assert re.search("Stage narrow-1 .* whole of layer '1'.* trained before it is in", said)
    assert (tmp_path / "run" / "model.safetensors").exists()


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
    assert "compressed" in said


def test_a_regression_is_compressed_by_its_likelihood(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator)
    y = x[:, :1] * 2 + 0.1 * torch.randn(300, 1, generator=generator)
    import numpy as np

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
    assert "differ" in said
    assert "--set data.seed=0" in said
    same = (*more, "--set", "data.seed=5", "--epochs", 2, "--out", tmp_path / "same")
    assert "All 2 together" in call("fit", "bayes", *same)
    fits = [load_fit(tmp_path / "same" / f"seed-{k}", "cpu") for k in (0, 1)]
    assert torch.equal(fits[0].data.y_test, fits[1].data.y_test)
    assert [fit.settings.seed for fit in fits] == [0, 1]
    call("fit", "bayes", *more, "--set", "data.seed=true", "--out", tmp_path / "no", code=2)
