"""What a command line means, what it refuses before anything is computed, and what it says."""

import os
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch
from command_line import call, sets
from pyroccam import data, guides, models
from pyroccam.cli import RunRequest, parse_settings, requests, said_of
from pyroccam.cli.methods import METHODS, find
from pyroccam.cli.runs import RunConfig, loading
from pyroccam.cli.runs import execution as runs_of
from pyroccam.data import PyroccamError
from pyroccam.inference.shrinking import irrelevance
from torch import nn

LIGHT = """
import sys
from pyroccam.cli.main import main
try:
    main()
except SystemExit as left:
    assert left.code in (None, 0, 2), left.code
heavy = {"torch", "numpy", "pyro", "matplotlib", "scipy", "pandas"} & {*sys.modules}
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--help"], {}, "Learn how much network your data needs"),
        (["fit", "gnj", "--help"], {}, "--compare"),
        (["fit", "gnjj"], {}, "Error: the method 'gnjj'; expected one of `pyroccam methods`; try:"),
        (["--version"], {}, f"pyroccam {version('pyroccam')}, torch {version('torch')}, pyro-ppl"),
        # What a shell asks when a person presses tab.
        ([], {"_PYROCCAM_COMPLETE": "complete_bash", "COMP_WORDS": "pyroccam dec",
              "COMP_CWORD": "1"}, "decompress"),
        ([], {"_PYROCCAM_COMPLETE": "complete_bash", "COMP_WORDS": "pyroccam fit ldn-m",
              "COMP_CWORD": "2"}, "ldn-marginal"),
        ([], {"_PYROCCAM_COMPLETE": "source_zsh"}, "compdef _pyroccam_completion pyroccam"),
    ],
)  # fmt: skip
def test_help_versions_and_completion_come_without_what_takes_seconds(arguments, environment, said):
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *arguments], capture_output=True, text=True, timeout=60,
        env={**os.environ, "COLUMNS": "100", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr


def test_names_that_are_known_before_their_tables_are_imported():
    assert [*METHODS] == requests.METHOD_NAMES
    assert [one.name for one in data.available()] == requests.DATA_NAMES


def test_methods_are_listed_whole():
    said = call("methods")
    for row in METHODS.values():
        assert all(" ".join(one.split()) in said for one in (row.name, row.title, row.reference))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_can_be_set_of_it(name):
    told, texts = call("methods", name), said_of(type(METHODS[name]))
    for option in METHODS[name].options:
        assert f" {option}=" in told
        assert texts[option]
    assert "kl_warmup=" in told
    assert f"For example: pyroccam fit {name} --set " in told


def test_settings_are_read_as_json():
    read = parse_settings(["a=1", "b=0.5", "c=null", "d=uniform", "e=geometric:0.9", "f=True"])
    assert read == {"a": 1, "b": 0.5, "c": None, "d": "uniform", "e": "geometric:0.9", "f": True}
    assert parse_settings(["b=False", "c=None", "e=false"]) == {"b": False, "c": None, "e": False}


# -- refusals -------------------------------------------------------------------------------------

NARROWED = "narrow=[0.22,0.44,0.67] "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ldnn", "Did you mean 'ldn'"),
        ("ldn --data spirls", "spirals"),
        ("ldn --set widht=3", "Did you mean 'width'"),
        ("ldn --set width", "key=value"),
        ("ldn --set lr=1 --set lr=2", "lr was given twice"),
        (f"ldn --set lr={'9' * 5000}", "lr"),
        ("ldn --set prior=geometrical", "geometric:0.85"),
        ("ldn --network conv", "residual_mlp"),
        ("ldn --resume", "--resume needs --out"),
        ("ldn-marginal --set batch_size=10", "full batch"),
        ("ldn-gradient --set rate=0.1", "Unknown setting 'rate'"),
        ("ldn --set seed=7", "--set seed=...: that is the option --seed."),
        ("ldn --set data.name=b.csv", "that is the option --data."),
        ("ldn --set data.data_root=/b", "that is the option --data-root"),
        ("ldn --epochs 3 --set epochs=4", "epochs was given twice"),
        ("ldn --set steps=3 --epochs 4", "both epochs=4 and steps=3"),
        ("ldn --repeats 1000000000", "1000"),
        ("ldn --set width=100000000", "asks for"),
        ('gnj threshold={"b":1.0}', "Unknown layer in threshold= 'b'"),
        ("gnj guide=zero-mean narrow=[0.5] max_scale=null", "weights of layer '1' have no mean"),
        ("gnj guide=dropout-neuron", "set it to null"),
        ("gnj threshold=validation data.val_fraction=0", "threshold='validation' needs val"),
        ("gnj narrow_at=valley narrow=[]", "narrow_at='valley' changes nothing"),
        ("gnj narrow=[0.5] kl_warmup=0.5 start=0 finish=0", "kl_warmup below 0.5"),
        (f"gnj {NARROWED} last_rows=all epochs=1", "cuts nothing"),
        ("gnj last_rows=all", "narrow=[] cuts nothing"),
        (f"gnj {NARROWED} threshold=noise last_rows=all data.val_fraction=0", "are no validation"),
        (f"gnj {NARROWED} last_rows=all threshold=validation", "threshold='validation' is chosen"),
        ("gnj threshold=3.0 tolerance=0.01 data.val_fraction=0", "tolerance=0.01 changes nothing"),
        ("gnj narrow_tolerance=0.01", "narrow_tolerance=0.01 changes nothing"),
        (f"gnj {NARROWED} narrow_at=valley narrow_tolerance=0.01", "=0.01 changes nothing"),
        ("gnj --network mlp", "perceptron"),
        ("epr prior=normal:1", "WholeSteps of the prior Normal"),
        ("epr threshold=valley", "guide='rounded'"),
        ("deep-compression sensitivity=null", "neither sensitivity nor keep"),
        ('deep-compression bits={"nope":5}', "Unknown layer in bits= 'nope'"),
        ("occam prior=integers guide=rounded scale=null", "finish=0"),
        ("occam prior=log-uniform guide=zero-mean", "weights with a mean"),
        ("occam hold=0.1 kl_warmup=0.3", "while the KL still gains weight"),
        ("occam last=0 narrow_at=noise", "no fit follows that cut"),
        ("every-size kl_weight=0.5", "is one weight of the KL, and all from low= to high="),
        ('every-size threshold={"9":1}', "Unknown layer in threshold= '9'"),
        ("every-size guide=delta prior=normal scale=null", "guide='delta'"),
        ("every-size guide=rounded prior=integers scale=null", "cannot be functions"),
        ("every-size data.val_fraction=0", "data.val_fraction=0.1"),
    ],
)
def test_what_cannot_be_is_said_before_the_training(words, said, tmp_path):
    method, *rest = words.split()
    if "--set" not in rest and "--data" not in rest:
        rest = [w for one in rest for w in (("--set", one) if "=" in one else (one,))]
    if method not in METHODS or METHODS[method].over != "stack":
        rest += ["--data", "digits"]
    out = [] if "--resume" in rest else ["--out", tmp_path / "run"]
    told = call("fit", method, *rest, *out, code=2)
    assert said in told
    assert "Traceback" not in told
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("own", ["basis=frequencies", "shift=1"])
def test_what_is_of_images_is_refused_for_others(own):
    asked = [RunRequest("miracle", n, set_=parse_settings([own])) for n in ("digits", "spirals")]
    RunConfig.resolve(asked[0])
    with pytest.raises(PyroccamError):
        RunConfig.resolve(asked[1])


@pytest.mark.parametrize(
    "words",
    ["narrow=[0.3] threshold=noise last_rows=all", "narrow=[0.3] last_rows=all threshold=3.0",
     "threshold=validation tolerance=0.01", "tolerance=0.01",
     "narrow=[0.3] threshold=noise narrow_tolerance=0.02 tolerance=0.01",
     "threshold=3.0 tolerance=0.01"],
)  # fmt: skip
def test_tolerances_and_rows_that_have_an_effect(words):
    RunConfig.resolve(RunRequest("gnj", "digits", set_=parse_settings(words.split())))


@pytest.mark.parametrize(("name", "option"), [
    ("ldn", {"hold": "x"}), ("gnj", {"narrow": [1.5]}), ("gnj", {"threshold": {"a": "b"}}),
    ("gnj", {"max_scale": "first:-1"}), ("sws", {"precision": [1.0]}), ("bayes", {"gaurd": 1}),
    ("dns", {"c": {"0": 10**400}}), ("gnj", {"likelihood": "nothing"}),
])  # fmt: skip
def test_options_are_of_their_types(name, option):
    with pytest.raises(PyroccamError, match=next(iter(option))):
        find(name).with_options(option)
    method = find(name)
    assert method.with_options(method.options).options == method.options


def test_places_that_cannot_be_written_are_refused_first(runs, tmp_path, monkeypatch):
    folder, _ = runs("ldn")
    for command in ("evaluate", "prune", "compress", "diagnose"):
        assert "not a run" in call(command, tmp_path / "nowhere", code=2)
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(loading, "load_fit", None)  # nothing is computed before
    monkeypatch.setattr(runs_of, "run", None)
    for where in (file, file / "x"):
        for command in (("fit", "ldn"), ("prune", folder), ("decompress", file)):
            assert "is a file; expected a folder" in call(*command, "--out", where, code=2)
    assert "is empty" in call("fit", "ldn", "--out", "", code=2)
    for command in (("evaluate", folder), ("compress", folder)):
        assert "is a folder; expected a file" in call(*command, "--out", tmp_path, code=2)


# -- pairs of methods -----------------------------------------------------------------------------


def test_graves_cuts_by_signal_to_noise():
    """As the ratio of the densities of the posterior at 0 and at its mean has it."""
    net = nn.Linear(40, 30)
    rows = data.Dataset.from_tensors(*[torch.randn(9, n) for n in (40, 30)] * 2)
    model = models.BayesianNetwork(net, rows, prior=models.priors.SharedNormal())
    guide = guides.MeanField(model)
    q = guide.factor_of(".weight")
    with torch.no_grad():
        q.loc.normal_()
        q.log_scale.normal_()
        normal = torch.distributions.Normal(q.loc, q.log_scale.exp())
        ratio = (normal.log_prob(torch.zeros(())) - normal.log_prob(q.loc)).exp()
    cut = irrelevance(model, guide)[""].values > find("graves").options["threshold"]
    assert 100 < cut.sum() < 1100
    assert torch.equal(cut, ratio > np.exp(-(0.83**2) / 2))


# -- words ----------------------------------------------------------------------------------------


def yes_and_no(path):
    """A table of two columns, which have names, and of two classes."""
    x = np.random.default_rng(0).standard_normal((60, 2))
    lines = [f"{a},{b},{'yes' if a > 0 else 'no'}" for a, b in x]
    path.write_text("\n".join(["[/q],[bold]b,[/x] kind", *lines]))
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="paths that are no text")
def test_names_are_no_markup_and_may_be_no_text(tmp_path):
    """Of columns, data and folders, with bytes that no encoding explains; a run that is done does
    not die of its name."""
    out, table = tmp_path / "d" / "[/x]o\udcff", yes_and_no(tmp_path / "[red]\udcff.csv")
    more = [*sets("steps=4 max_depth=1"), "--no-compare", "--out", out]
    said = call("fit", "ldn", "--data", table, *more)
    assert f"Written to {out.parent}" in said
    assert r"[/x]o\udcff" in said
    assert r"[red]\udcff" in said
    assert "wiggle[/y]" in call("evaluate", out, "--data", "wiggle[/y]", code=2)
    for command in ("evaluate", "prune", "diagnose"):
        assert "Error" not in call(command, out)
    call("report", out, "--out", tmp_path / "page.html")
    assert rb"o\udcff" in (tmp_path / "page.html").read_bytes()


@pytest.mark.parametrize(("method", "suited"), [("gnj", "digits"), ("ldn", "spirals")])
def test_data_that_suit_the_method_where_none_are_named(method, suited):
    assert RunRequest(method).data == suited
    assert RunRequest(method, "wiggle").data == "wiggle"
