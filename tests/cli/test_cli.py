"""The command line as a person uses it."""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import onnxruntime
import pytest
import torch
from command_line import call, metrics_of
from pyroccam import inference
from pyroccam.cli.commands import app
from pyroccam.cli.methods.table import METHODS
from pyroccam.cli.runs import config as configs
from pyroccam.cli.runs import execution as runs
from pyroccam.cli.runs import loading
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.training.trainer import Trainer
from typer.testing import CliRunner

SMALL = ["--set", "max_depth=4", "--set", "width=8", "--set", "data.n=400", "--set", "steps=40"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    return folder, call("fit", "ldn", "--out", folder, *SMALL, rendered=True)


def test_a_run_writes_everything_it_promises(run):
    folder, _ = run
    files = ["config.json", "metrics.json", "history.csv", "model.safetensors"]
    files += [f"{part}/model.safetensors" for part in ("pruned", "single_exit")]
    files += [f"figures/{one}.png" for one in ("depth", "functions", "reliability", "training")]
    for name in (*files, "pruned/description.json"):
        assert (folder / name).stat().st_size > 0, name
    found = metrics_of(folder)
    assert {"method", "data", "seed", "versions", "test", "structure", "pruned"} <= set(found)
    assert {"accuracy", "nll", "brier", "ece"} <= set(found["test"])
    structure = found["structure"]
    assert len(structure["depth_probs"]) == len(structure["exact_depth_probs"]) == 5
    assert sum(structure["depth_probs"]) == pytest.approx(1)
    assert {"depth_chosen", "depth_expected", "tv_to_exact"} <= set(structure)
    pruned = found["pruned"]
    assert pruned["parameters"] <= pruned["parameters_before"]
    assert pruned["seconds_per_batch"] > 0
    assert {"accuracy", "nll", "brier", "ece"} <= set(pruned["test"])


def test_the_end_of_a_run_tells_depth_and_how_sure(run):
    folder, said = run
    found = metrics_of(folder)
    d = found["structure"]["depth_chosen"]
    for sentence in found["warnings"]:
        assert f"Beware: {sentence}" in said
    assert f"Depth {d} of 4 was chosen" in said
    assert f"q(d={d}) = " in said
    assert "E[d] = " in said  # brackets are not eaten as markup
    for name in ("all depths", "cut at the chosen depth", "trained at that depth"):
        assert name in said
    assert "Traceback" not in said


def test_the_saved_network_is_the_one_that_was_measured(run):
    folder, _ = run
    spirals = configs.RunConfig.read(folder).load_data()
    net = inference.load(folder / "pruned")
    assert not any("pyro" in type(m).__module__.split(".")[:1] for m in net.modules())
    accuracy = (net(spirals.x_test).argmax(-1) == spirals.y_test).double().mean()
    assert float(accuracy) == pytest.approx(metrics_of(folder)["pruned"]["test"]["accuracy"])


def test_a_fit_is_rebuilt_from_its_folder(run):
    folder, _ = run
    fit = load_fit(folder, "cpu")
    found = metrics_of(folder)
    assert fit.structure.depth_probs.tolist() == pytest.approx(found["structure"]["depth_probs"])
    assert fit.evaluate()["nll"] == pytest.approx(found["test"]["nll"], rel=1e-6)


def test_a_finished_run_is_not_overwritten(run):
    folder, _ = run
    assert "holds a run already" in call("fit", "ldn", "--out", folder, *SMALL, code=2)


def test_resume_with_other_settings_says_which(run):
    folder, _ = run
    said = call("fit", "ldn", "--out", folder, "--resume", *SMALL, "--set", "lr=0.5", code=2)
    assert "settings.lr was 0.01, is 0.5" in said
    said = call("fit", "ldn", "--out", folder, "--resume", *SMALL, "--seed", "3", code=2)
    assert "data.seed was 0, is 3" in said


def test_resume_of_a_finished_run_gives_the_same(run):
    folder, _ = run
    before = metrics_of(folder)
    call("fit", "ldn", "--out", folder, "--resume", "--no-figures", *SMALL)
    after = metrics_of(folder)
    assert without_times(after) == without_times(before)


def without_times(found):
    if isinstance(found, dict):
        timing = ("seconds", "compile_seconds")
        return {k: without_times(v) for k, v in found.items() if not k.startswith(timing)}
    return [without_times(v) for v in found] if isinstance(found, list) else found


def test_ctrl_c_and_resume_end_in_the_same_numbers(tmp_path, monkeypatch):
    """The signal of Ctrl-C in the 51st step; against a whole run."""
    # dropout-free, but minibatched: the order of the rows has to be taken up again too
    arguments = ["fit", "ldn", "--set", "max_depth=3", "--set", "width=8", "--set", "batch_size=32"]
    arguments += ["--set", "data.n=300", "--set", "steps=120", "--no-compare"]
    call(*arguments, "--out", tmp_path / "whole")
    original = Trainer._step

    def step(trainer, rows):
        original(trainer, rows)
        if trainer.step_number == 50:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", step)
        said = call(*arguments, "--out", tmp_path / "broken", code=130)
    assert "Stopped after step 51 of 120" in said
    assert "same command with --resume" in said
    assert "\x1b" not in said  # no progress bar where nobody watches
    assert not (tmp_path / "broken/metrics.json").exists()
    call(*arguments, "--out", tmp_path / "broken", "--resume")
    whole, broken = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "broken")
    assert without_times(broken) == without_times(whole)


def test_repeats_report_mean_and_spread(tmp_path):
    said = call("fit", "ldn", "--repeats", 2, "--out", tmp_path / "r", "--no-compare", *SMALL)
    assert "Mean ± standard deviation of 2" in said
    found = metrics_of(tmp_path / "r")
    accuracy = [one["test"]["accuracy"] for one in found["repeats"]]
    spread = found["spread"]["test"]["accuracy"]
    assert spread["mean"] == pytest.approx(np.mean(accuracy))
    assert spread["sd"] == pytest.approx(np.std(accuracy, ddof=1))
    assert [one["seed"] for one in found["repeats"]] == [0, 1]


@pytest.mark.parametrize(
    "method",  # occam, whose weights are random, has tests of its own
    [name for name, row in METHODS.items() if row.over == "stack" and name != "occam"],
)
def test_every_method_over_depth_runs(method, tmp_path):
    call("fit", method, "--out", tmp_path / method, "--no-compare", *SMALL)
    found = metrics_of(tmp_path / method)
    assert found["method"] == method
    assert 0 <= found["test"]["accuracy"] <= 1
    assert ("structure" in found) == (method != "ddn")
    load_fit(tmp_path / method, "cpu")


def test_regression_on_a_table_of_ones_own(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = x[:, 0] ** 2 + 10 + 0.1 * rng.normal(size=300)
    table = np.column_stack([x, y])
    path = tmp_path / "mine.csv"
    np.savetxt(path, table, delimiter=",", header="a,b,c,price", comments="")
    folder = tmp_path / "run"
    arguments = ("--set", "steps=150", "--set", "max_depth=2", "--set", "data.target=price")
    call("fit", "ldn", "--data", path, "--out", folder, "--no-compare", *arguments, rendered=True)
    assert (folder / "figures" / "predictive.png").stat().st_size > 0
    found = metrics_of(folder)
    assert found["test"]["rmse"] < 0.5 * y.std()  # in units of the price
    assert "accuracy" not in found["test"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "seed=7"], "--set seed=...: that is the option --seed."),
        (["--set", "seed=abc"], "that is the option --seed"),
        (["--set", "device=cpu"], "that is the option --device"),
        (["--set", "data_root=/a"], "that is the option --data-root"),
        (["--epochs", "3", "--set", "epochs=4"], "--epochs and --set epochs=... were both given"),
        (["--compile", "--set", "compile=false"], "--compile and --set compile=... were both"),
        (["--set", "steps=3", "--epochs", "4"], "both epochs=4 and steps=3"),
        (["--set", "lr=1", "--set", "lr=2"], "--set lr was given twice"),
        (["--data-root", "/a", "--set", "data.data_root=/b"], "is --data-root: give one"),
        (["--set", "data.seed=abc"], "data.seed='abc'"),
        (["--set", "data.name=b.csv"], "that is the option --data."),
        (["--repeats", "1000000000"], "1000"),
        (["--threads", "1000000"], "1024"),
        (["--epochs", "1000000000000000000"], "epochs"),
        (["--device", "[/x]"], "device='[/x]'"),
        (["--set", "width=100000000"], "asks for"),
        (["--set", f"lr={'9' * 5000}"], "lr"),
    ],
)
def test_no_option_is_passed_over(arguments, words, tmp_path):
    said = call("fit", "ldn", "--data", "spirals", "--out", tmp_path / "a", *arguments, code=2)
    assert words in said
    assert not (tmp_path / "a" / "checkpoint.pt").exists()


def test_a_place_that_cannot_be_written_is_refused_first(run, tmp_path, monkeypatch):
    folder, _ = run
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(loading, "load_fit", None)  # nothing is computed before
    monkeypatch.setattr(runs, "run", None)
    for where in (file, file / "x"):
        for command in (("fit", "ldn"), ("prune", folder), ("decompress", file)):
            assert "is a file; expected a folder" in call(*command, "--out", where, code=2)
    assert "is empty" in call("fit", "ldn", "--out", "", code=2)
    for command in (("evaluate", folder), ("compress", folder)):
        assert "is a folder; expected a file" in call(*command, "--out", tmp_path, code=2)


def test_a_run_that_learnt_nothing_says_so(tmp_path):
    """Before it speaks of a depth, which then is not called enough."""
    x = np.random.default_rng(0).standard_normal((200, 3))
    lines = [",".join(map(str, row)) for row in x]  # the target has nothing to do with the inputs
    (tmp_path / "noise.csv").write_text("\n".join(["a,b,y", *lines]))
    sets = ("steps=300", "max_depth=3", "lr=0.05", "checkpoint=last")
    said = fitted(tmp_path / "noise.csv", *sets, "--out", tmp_path / "run")
    assert "Beware: The network is no better than the mean" in said
    assert "was chosen: the first depth" in said
    assert metrics_of(tmp_path / "run")["warnings"]


def fitted(path, *sets_and_more):
    """What a fit without comparison says, for settings and, from the first option on, arguments."""
    words = [w for one in sets_and_more for w in (("--set", one) if "=" in str(one) else (one,))]
    return call("fit", "ldn", "--data", path, "--no-compare", *words)


def yes_and_no(path):
    """A table of two columns, which have names, and of two classes."""
    x = np.random.default_rng(0).standard_normal((60, 2))
    lines = [f"{a},{b},{'yes' if a > 0 else 'no'}" for a, b in x]
    path.write_text("\n".join(["[/q],[bold]b,[/x] kind", *lines]))
    return path


def test_names_are_no_markup(tmp_path):
    """Of columns and folders; a run that is done does not die of its name."""
    out = tmp_path / "d" / "[/x]"
    table = yes_and_no(tmp_path / "[red].csv")
    said = fitted(table, "steps=4", "max_depth=1", "--out", out)
    assert f"Written to {out}" in said
    assert "Dataset('[red]'" in said
    assert "[red]" in call("evaluate", out)
    assert "wiggle[/y]" in call("evaluate", out, "--data", "wiggle[/y]", code=2)


def test_prune_and_evaluate(run, tmp_path):
    folder, _ = run
    said = call("prune", folder, "--form", "single", "--depth", 2, "--out", tmp_path / "cut")
    assert "Cut at depth 2 (single)" in said
    net = inference.load(tmp_path / "cut")
    assert net(torch.zeros(3, 2)).shape == (3, 2)
    call("evaluate", folder, "--out", tmp_path / "e.json")
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["full"]["nll"] == pytest.approx(metrics_of(folder)["test"]["nll"], rel=1e-6)


def test_export_takes_rows_as_they_are_in_the_data(run, tmp_path):
    folder, _ = run
    said = call("export", folder, "--form", "torch", "--out", tmp_path / "net.pt2")
    assert f"{(tmp_path / 'net.pt2').stat().st_size:,} bytes; takes rows x 2 (as in the" in said
    assert "Read back: outputs differ by" in said
    data = load_fit(folder).data
    expected = inference.load(folder / "pruned")(data.x_test)
    net = torch.export.load(tmp_path / "net.pt2").module()
    torch.testing.assert_close(net(data.x_test * data.x_std + data.x_mean), expected)
    said = call("export", folder, "--no-scaling")
    assert "(as the network was trained on)" in said
    net = torch.export.load(folder / "exported.pt2").module()
    torch.testing.assert_close(net(data.x_test), expected)
    call("export", folder, "--form", "onnx", "--out", tmp_path / "other.pt2", code=2)
    call("export", folder, "--out", tmp_path / "net", code=2)
    assert not (tmp_path / "other.pt2").exists()
    call("export", folder, "--out", tmp_path / "by_name.onnx")
    assert onnxruntime.InferenceSession(tmp_path / "by_name.onnx").get_inputs()
    call("evaluate", folder)  # it is no part of the run


def test_evaluate_puts_other_data_on_the_scale_of_the_run(run, tmp_path):
    """The run's own test rows, in raw units and beside other training rows, score the same."""
    folder, _ = run
    own = configs.RunConfig.read(folder).load_data()
    raw = (own.x_test * own.x_std + own.x_mean).numpy()
    other = np.concatenate([raw[:50] * 3 + 7, raw[50:60]])  # statistics far from the run's
    labels = own.y_test.numpy()
    rows = {"x_train": other, "y_train": labels[:60], "x_test": raw, "y_test": labels}
    np.savez(tmp_path / "other.npz", **rows)
    call("evaluate", folder, "--data", tmp_path / "other.npz", "--out", tmp_path / "e.json")
    found = json.loads((tmp_path / "e.json").read_text())
    assert "expected the kind of" in call("evaluate", folder, "--data", "wiggle", code=2)
    expected = metrics_of(folder)["test"]
    assert found["full"]["nll"] == pytest.approx(expected["nll"], rel=1e-3)
    assert found["full"]["accuracy"] == pytest.approx(expected["accuracy"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "ldnn"], "Did you mean 'ldn'"),
        (["fit", "ldn", "--data", "spirls"], "spirals"),
        (["fit", "ldn", "--set", "widht=3"], "Did you mean 'width'"),
        (["fit", "ldn", "--set", "width"], "key=value"),
        (["fit", "ldn", "--set", "lr=-1"], "lr=-1"),
        (["fit", "ldn", "--set", "prior=geometrical"], "geometric:0.85"),
        (["fit", "ldn", "--set", "threshold=validation"], "a number in (0, 1]"),
        (["fit", "ldn", "--set", "threshold=null"], "a number in (0, 1]"),
        (["fit", "ldn", "--network", "conv"], "residual_mlp"),
        (["fit", "ldn", "--device", "tpu"], "tpu"),
        (["fit", "ldn", "--resume"], "--resume needs --out"),
        (["fit", "ldn-marginal", "--set", "batch_size=10"], "full batch"),
        (["evaluate", "nowhere"], "not a run"),
        (["prune", "nowhere"], "not a run"),
    ],
)
def test_mistakes_get_a_message_and_no_traceback(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = call(*arguments, code=2)
    assert said in output
    assert "Traceback" not in output


LIGHT = """
import sys
from pyroccam.cli.main import main
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
heavy = {"torch", "numpy", "pyro", "matplotlib", "scipy", "pandas"} & {*sys.modules}
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--help"], {}, "Learn how much network your data needs"),
        (["fit", "gnj", "--help"], {}, "--compare"),
        (["--version"], {}, f"pyroccam {version('pyroccam')}, torch {version('torch')}, pyro-ppl"),
        # What a shell asks when a person presses tab.
        ([], {"_PYROCCAM_COMPLETE": "complete_bash", "COMP_WORDS": "pyroccam dec",
              "COMP_CWORD": "1"}, "decompress"),
        ([], {"_PYROCCAM_COMPLETE": "source_zsh"}, "compdef _pyroccam_completion pyroccam"),
    ],
)  # fmt: skip
def test_help_versions_and_completion_come_without_what_takes_seconds(arguments, environment, said):
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *arguments], capture_output=True, text=True, timeout=60,
        env={**os.environ, "COLUMNS": "100", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_methods_are_listed_whole_in_eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = CliRunner().invoke(app, ["methods"]).output
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("Networks of"))
    assert "…" not in out
    words = " ".join(out.split())
    for row in METHODS.values():
        for part in (row.name, row.title, row.reference):
            assert " ".join(part.split()) in words
        for name, value in row.options.items():
            assert f"{name}={value}".replace(" ", "") in out.replace(" ", "").replace("\n", "")


def test_settings_are_read_as_json():
    read = configs.parse_settings(["a=1", "b=0.5", "c=null", "d=uniform", "e=geometric:0.9"])
    assert read == {"a": 1, "b": 0.5, "c": None, "d": "uniform", "e": "geometric:0.9"}
    read = configs.parse_settings(["a=True", "b=False", "c=None", "d=true", "e=false"])
    assert read == {"a": True, "b": False, "c": None, "d": True, "e": False}


def test_warm_up_is_for_the_latent_and_the_comparison_has_none(tmp_path):
    call("fit", "ldn-gradient", "--out", tmp_path / "w", *SMALL, "--set", "kl_warmup=0.2")
    assert "ddn" in metrics_of(tmp_path / "w")
    said = call("fit", "ldn-gradient", "--out", tmp_path / "x", *SMALL, "--set", "rate=0.1", code=2)
    assert "Unknown setting 'rate'" in said


@pytest.mark.skipif(sys.platform != "linux", reason="paths that are no text")
def test_paths_that_are_no_text(tmp_path):
    """Bytes that no encoding explains, in the name of the data and of the folder."""
    out = tmp_path / "o\udcff"
    said = fitted(yes_and_no(tmp_path / "t\udcff.csv"), "steps=4", "max_depth=1", "--out", out)
    assert said.count(r"o\udcff") == 3
    for command in ("evaluate", "prune", "diagnose"):
        assert "Error" not in call(command, out)
    for path in out.glob("figures/*"):
        path.unlink()  # empty files here
    call("report", out, "--out", tmp_path / "page.html")
    assert rb"o\udcff" in (tmp_path / "page.html").read_bytes()
