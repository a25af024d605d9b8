"""The program that runs experiments: files that go on, options, and, at night, each experiment at
its least size."""

import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import command_line
import numpy as np
import pytest
from command_line import SMALL, WHOLE
from downloads import downloaded
from pyroccam.cli import RunRequest, parse_settings
from pyroccam.cli.runs import RunConfig
from scripts import call, read

from experiments.published import catalogue, coded_draws, compression, runner, tables
from experiments.published.markdown import plus_minus
from experiments.published.runner import RESULTS, Choice, File, Spec, seeds
from experiments.published.variance import networks
from experiments.trials import methods
from experiments.trials.strangers import __main__ as strangers
from experiments.trials.strangers import depth

SPECS = [*map(tables.find, tables.MODULES), strangers.SPEC, depth.SPEC, methods.SPEC]
SETTINGS = {"lr": 0.1}


@pytest.fixture
def spec():
    """Two files, one of which has two parts."""
    ran = []

    def run(seed):
        ran.append(seed)
        return {"error": float(seed), "nested": {"x": 2.0 * seed}}

    def files(given):
        says = {"config": {**given.set, "names": given.names, "sizes": (1, 2)}}
        for part in given.parts:
            yield File("rows", says, run, seeds(given), ("runs", part))
        yield File("whole", {}, lambda: {"all": [given.width]})

    options = {"set": SETTINGS, "names": ("a",), "parts": Choice("xyz", "xy"), "width": 3}
    drawn = {"sum.json": lambda: {"ran": len(ran)}, "note.md": lambda: "a note"}
    made = Spec("none", "None", "none", options, files, lambda folder: [], lambda given: drawn)
    return made, ran


def test_what_is_finished_is_kept(spec, tmp_path, capsys):
    spec, ran = spec
    call(spec, "--out", tmp_path, "--seeds", 1)
    assert ran == [0, 0]
    call(spec, "--out", tmp_path, "--seeds", 2)
    assert ran == [0, 0, 1, 1]
    found = read(tmp_path / "rows.json")
    assert found["config"] == {"lr": 0.1, "names": ["a"], "sizes": [1, 2]}
    assert found["runs"]["x"][1].pop("seconds") >= 0.0
    assert found["runs"]["x"][1] == {"seed": 1, "error": 1.0, "nested": {"x": 2.0}}
    assert "torch" in found["versions"]
    assert read(tmp_path / "whole.json")["all"] == [3]
    assert read(tmp_path / "sum.json") == {"ran": 4}
    assert "rows: seed 1, error 1, nested x 2" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    call(spec, "--out", tmp_path, "--seeds", 2)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    call(spec, "--out", tmp_path, "--seeds", 2, "--parts", "z")
    assert [*read(tmp_path / "rows.json")["runs"]] == ["x", "y", "z"]


@pytest.mark.parametrize("wrong", [
    ("--set", "lr=0.2"), ("--names", "a,b"), ("--set", "particles=3"), ("--parts", "x,w"),
])  # fmt: skip
def test_mistakes_are_told_before_anything_is_run(wrong, spec, tmp_path):
    spec, ran = spec
    call(spec, "--out", tmp_path, "--seeds", 1)
    with pytest.raises(SystemExit):
        call(spec, "--out", tmp_path, "--seeds", 2, *wrong)
    assert ran == [0, 0]


def test_nothing_is_written_unless_it_is_asked_for(spec, tmp_path, monkeypatch, capsys):
    spec, ran = spec
    monkeypatch.chdir(tmp_path)
    spec.main([])
    assert (ran, [*tmp_path.iterdir()]) == ([], [])
    assert "### None" in capsys.readouterr().out
    call(spec, "--seeds", 1)
    assert (tmp_path / "runs/experiments/none/rows.json").is_file()


def test_every_entry_of_the_documents_has_a_state_from_the_results():
    entries = [entry for one in catalogue.DOCUMENTS.values() for entry in one.entries]
    for entry in entries:
        word, says = entry.state()
        assert says, entry
        assert (word == "not run") <= bool(entry.lacks), entry
        assert entry.state(Path("nowhere")) == ("not run", entry.lacks)
        if entry.name:
            tables.find(tables.NAMES[entry.name]).parser().parse_args(shlex.split(entry.options))
    assert {entry.state()[0] for entry in entries} == {"met", "short", "not run"}


def test_a_command_makes_the_files_that_its_checks_read(monkeypatch):
    """With the settings that they were made with."""

    def resolved(*args, sets=None, **how):
        return SimpleNamespace(without_seed=lambda: {"sets": sets}, to_json=dict), None

    for one in [runner, *(sys.modules[spec.table.__module__] for spec in SPECS)]:
        monkeypatch.setattr(one, "resolve", resolved, raising=False)
    text, read_ = Path.read_text, []

    def noted(path, *args, **how):
        read_.append(path)
        return text(path, *args, **how)

    monkeypatch.setattr(Path, "read_text", noted)
    others = {}
    for entry in (one for each in catalogue.DOCUMENTS.values() for one in each.entries):
        if not entry.name:
            continue
        spec = tables.find(tables.NAMES[entry.name])
        if type(spec) is not Spec:  # scans, which write one file for all
            continue
        given = spec.parser().parse_args(shlex.split(entry.options))
        given.out = RESULTS / spec.folder
        for name in (n for n, usual in spec.options.items() if isinstance(usual, Mapping)):
            setattr(given, name, {**spec.options[name], **parse_settings(getattr(given, name))})
        with suppress(FileNotFoundError):
            read_.clear()
            [*entry.checks(RESULTS)]
        elsewhere = any(path.parent.name != spec.folder for path in read_)
        names = {path.name for path in read_ if path.parent.name == spec.folder}
        files = {f"{file.name}.json": file for file in spec.files(given)}
        if names - files.keys() - spec.drawn(given).keys() or (elsewhere and not names):
            others[entry.place, entry.shows] = names - files.keys()
        for name in names & files.keys():
            config = read(given.out / name).get("config", {})
            flat = {
                k: v for part in config.values() if isinstance(part, dict) for k, v in part.items()
            }
            sets = json.loads(json.dumps(files[name].says.get("config", {}).get("sets", {})))
            if wrong := {
                k: (v, flat[k]) for k, v in sets.items() if k in flat and v not in (None, flat[k])
            }:
                others[entry.place, entry.shows, name] = wrong
    assert others == {}


@pytest.mark.parametrize(("ours", "other", "met"), [
    ([1.84, 1.84], 1.8, True),  # half a unit of the last published digit
    ([1.86, 1.86], 1.8, False),
    ([1.8, 2.0], 1.8, True),
    ([2.0, 2.0], [1.8, 2.1], True),
    ([1.0], 1.8, True),
])  # fmt: skip
def test_no_worse_than_a_deviation_and_what_is_known_of_a_published_number(ours, other, met):
    assert catalogue.no_worse("error", ours, other).met is met
    negated = [-v for v in other] if isinstance(other, list) else -other
    assert catalogue.no_worse("gain", [-v for v in ours], negated, higher=True).met is met


def test_numbers_of_runs():
    runs = [{"a": {"b": 1.0}}, {"a": {"b": 3.0}}, {"a": None}]
    assert plus_minus(runs, "a/b", 2) == "2.00 ± 1.41"
    assert plus_minus(runs[:1], "a/b", 0, 100) == "100"
    assert plus_minus(runs, "c") == ""


@pytest.mark.parametrize("method", compression.SETTINGS)
def test_settings_of_the_published_table_are_taken(method):
    sets = compression.SETTINGS[method]
    config, _ = RunConfig.resolve(RunRequest(method, "digits", set_=sets))
    found = {**config.options, **config.settings}
    assert {name: found[name] for name in sets} == sets


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    """Two sets of the standard splits, with one split."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    x, order = rng.normal(size=(160, 3)), rng.permutation(160)
    content = {
        "data": np.column_stack([x, x.sum(1) * 10 + rng.normal(size=160)]),
        "index_features": range(3), "index_target": [3], "n_splits": [1],
        "index_train_0": order[:120], "index_test_0": order[120:],
    }  # fmt: skip
    for name in ("energy", "bostonHousing"):
        folder = root / "uci" / name
        folder.mkdir(parents=True)
        for file, numbers in content.items():
            np.savetxt(folder / f"{file}.txt", np.asarray(numbers))
    return root


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", [one for one in SPECS if one.small], ids=lambda one: one.module)
def test_each_experiment_at_its_least_size(spec, data_root, tmp_path):
    for needed, folder in (("gymnasium", "policy_gradient"), ("art", "robustness"),
                           ("torch_pruning", "strangers")):  # fmt: skip
        if spec.folder == folder:
            pytest.importorskip(needed)
    asked = [*shlex.split(spec.small), "--out", tmp_path]
    if "data_root" in spec.options:
        asked += ["--data-root", data_root]
    if "files" in spec.options:
        asked += ["--files", tmp_path / "files"]
    call(spec, *asked)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    assert before
    call(spec, *asked)  # what is finished is kept
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == before
    lines = list(spec.table(tmp_path))
    # Those of strangers are in files, and of the phase transition there is a figure alone.
    assert bool(lines) == (spec.folder not in ("strangers", "phase_transition"))
    assert not any("nan" in line for line in lines)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_what_a_person_downloads(tmp_path, monkeypatch):
    """SVHN by learnt depth, whose entries have a state then; CIFAR-100 by a variance network."""
    downloaded(tmp_path, monkeypatch, rows=60)
    out, root = tmp_path / "out", ("--data-root", tmp_path)
    quick = ("--set", "width=8", "--set", "inner=4", "--set", "max_depth=2", "--depths", "1,2")
    asked = ("--data", "svhn", *root, "--seeds", 1, "--epochs", 1, *quick)
    call(tables.find(tables.NAMES["images"]), *asked, "--out", out / "images")
    svhn = [one for one in catalogue.POSTER.entries if "svhn" in one.options]
    assert {one.state(out)[0] for one in svhn} <= {"met", "short"}
    assert len(svhn) == 2
    asked = ("--data", "cifar100", "--network", "vgg", *root, "--seeds", 1, "--epochs", 1)
    more = ("--contenders", "variance", "--set", "width=0.03", "--set", "hidden=8")
    call(tables.find(tables.NAMES["networks"]), *asked, *more, "--out", out / "variance")
    assert "cifar100-vgg-variance" in "".join(networks.table(out / "variance"))


@pytest.mark.nightly
def test_draws_of_runs_by_size(tmp_path, capsys):
    """A row for each run, from its seed; another rule or shift is a file of its own."""
    run, out = tmp_path / "run", tmp_path / "coded_draws"
    command_line.call("fit", "gnj", *SMALL, *WHOLE, "--seed", 3, "--out", run)
    quick = ("--runs", run, "--epochs", 1, "--steps", 1, "--bits", 8, "--out", out)
    call(coded_draws.SPEC, *quick, "--sizes", "150,200", "--shift", 1)
    call(coded_draws.SPEC, *quick, "--sizes", 150, "--tolerance", 0.5)
    names = ("shift-1-150.json", "shift-1-200.json", "150.json")
    found = {name: read(out / f"perceptron-{name}")["runs"][0] for name in names}
    assert (out / "draws.png").is_file()
    assert found["shift-1-200.json"]["seed"] == 3
    assert 150 < found["shift-1-200.json"]["file_bytes"] <= 200
    capsys.readouterr()
    tables.main(tmp_path)
    row = found["shift-1-200.json"]
    said = f"1 px (1) | {row['architecture']} | {row['file_bytes']}"
    assert said in capsys.readouterr().out
