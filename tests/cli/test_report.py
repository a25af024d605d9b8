"""The page of runs says what their files say, and no more."""

import io
import json
import math

import numpy as np
import pytest
from command_line import call, metrics_of
from pages import check
from PIL import Image
from pyroccam.cli.console import PlainConsole
from pyroccam.cli.methods.base import smaller, told
from pyroccam.cli.pages import read_run, report
from pyroccam.cli.pages.catalogue import slug
from pyroccam.cli.pages.numbers import best_of
from pyroccam.cli.pages.words import summary
from pyroccam.cli.runs.summary import print_run
from pyroccam.cli.runs.tables import METRICS, cell, networks
from pyroccam.inference.posterior.structures import EdgeStructure
from pyroccam.inference.storage.checkpoint import seal
from scipy.stats import ttest_ind


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    """A run that ends in a small file."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    sets = ("hidden=[6]", "lr=0.02", "narrow=[]", "threshold=100")
    more = [word for one in sets for word in ("--set", one)]
    call("fit", "gnj", "--data", "digits", "--epochs", 2, "--out", folder, *more, rendered=True)
    return folder


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """Two seeds of learnt depth, with a square for each figure: none is rendered."""
    folder = tmp_path_factory.mktemp("runs") / "deep"
    sets = ("steps=12", "max_depth=2", "width=5")
    more = [word for one in sets for word in ("--set", one)]
    call("fit", "ldn", "--data", "spirals", "--repeats", 2, "--no-compare", "--out", folder, *more)
    for path in folder.glob("**/figures/*.png"):
        Image.new("RGB", (40, 20)).save(path)
        path.with_suffix(".svg").unlink()
    return folder


def made(folder, tests, data="digits", **parts):
    """The files of a run that reports these metrics, one mapping for each seed."""
    seeds = [
        {
            "method": "ddn", "data": data, "seed": seed, "device": "cpu",
            "rows": {"train": 1234, "val": 0, "test": 99}, "parameters": 5000,
            "seconds": 7.0, "engine": {"replicates": 1}, "test": test,
            "versions": {"python": "3.11"}, **parts,
        }
        for seed, test in enumerate(tests)
    ]  # fmt: skip
    run = {"method": "ddn", "data": {"name": data}, "network": "mlp"}
    run["settings"] = {"lr": 0.01, "seed": 0}
    several = len(seeds) > 1
    where = folder / "seed-0" if several else folder
    where.mkdir(parents=True)
    (where / "config.json").write_text(json.dumps({"run": run}))
    content = {"repeats": seeds, "spread": {}} if several else seeds[0]
    (folder / "metrics.json").write_text(json.dumps(content))
    seal(folder)
    return folder


def scores(accuracy, nll=0.5):
    return {"accuracy": accuracy, "nll": nll, "brier": 0.2, "ece": 0.01, "poster_ece": 9.0}


# -- one run ----------------------------------------------------------------------------------


def test_the_page_of_a_run_has_its_numbers(compressed):
    read = check(report([compressed]))
    found = metrics_of(compressed)
    head, *rows = read.table("Metrics on the test rows")
    shown = [name for name, title in METRICS.items() if title in head]
    assert shown == ["accuracy", "nll", "brier", "ece"]
    cut = found["compressed"]
    sources = [found["test"][way] for way in ("ensemble", "stochastic", "deterministic")]
    sources += [found["numbers"]["test"], cut["test"]]
    for row, source in zip(rows, sources, strict=True):
        assert row[1:5] == [f"{source[name]:.4f}" for name in shown]
        assert {source[name] for name in shown} <= {*read.numbers()}  # all digits
    by_name = {row[0]: row for row in rows}
    assert by_name["cut and rounded"][5] == f"{cut['parameters']:,}"
    assert by_name["mean of 20 drawn networks"][5] == f"{cut['parameters_before']:,}"
    assert not by_name["mean of 20 drawn networks"][6]  # what is timed is one network
    assert by_name["posterior means"][6] == f"{1e3 * found['mean']['seconds_per_batch']:.2f}"
    structure = found["structure"]
    learnt = dict(zip(*read.table("What is left"), strict=True))
    assert learnt["left"] == structure["architecture"]
    assert learnt["weights"] == f"{structure['weights']:,}"
    assert learnt["file, bytes"] == f"{structure['file_bytes']:,}"
    assert float(learnt["pruning"]) == pytest.approx(structure["rates"]["pruning"], rel=1e-3)
    text = read.of("header")[0].text
    assert f"{structure['file_bytes']:,} bytes" in text
    assert "1,294 rows for training, 144 for validation and 359 for testing" in text


def test_settings_and_versions_are_there_when_asked_for(compressed):
    read = check(report([compressed]))
    settings = dict(read.table("Settings, small")[1:])
    assert settings["options.threshold"] == "100"
    assert settings["settings.lr"] == "0.02"
    assert settings["network_options.hidden"] == "[6]"
    assert dict(read.table("Versions, small")[1:]) == metrics_of(compressed)["versions"]


def test_all_figures_of_a_run_are_in_its_page(compressed):
    drawn = {path.stem for path in (compressed / "figures").glob("*.png")}
    expected = {"sparsity", "scales", "irrelevance", "bits", "reliability", "training"}
    assert drawn == expected
    page = report([compressed])
    read = check(page)
    images = read.of("img")
    assert len(images) == len(drawn)
    assert len({one.attributes["src"] for one in images}) == len(drawn)
    assert all("small" in one.attributes["alt"] for one in images)
    bytes_ = metrics_of(compressed)["structure"]["file_bytes"]
    assert any(f"{bytes_:,} bytes" in one.attributes["alt"] for one in images)
    assert len(page) < 1_000_000


def test_the_page_of_repeats_has_their_spread(repeated):
    read = check(report([repeated]))
    found = metrics_of(repeated)
    assert len(found["repeats"]) == 2
    head, *rows = read.table("Metrics on the test rows")
    for row, part in zip(rows, ("test", "pruned", "single_exit"), strict=True):
        for column, name in ((1, "accuracy"), (2, "nll")):
            tests = [s[part] if part == "test" else s[part]["test"] for s in found["repeats"]]
            values = [test[name] for test in tests]
            mean, sd = np.mean(values), np.std(values, ddof=1)
            assert row[column] == f"{mean:.4f} ± {sd:.4f}"
            spread = found["spread"][part][name]  # as the run itself says it
            assert spread["mean"] in read.numbers()
            assert row[column] == f"{spread['mean']:.4f} ± {spread['sd']:.4f}"
    assert head[-2:] == ["parameters", "ms per batch"]
    depths = [one["structure"]["depth_chosen"] for one in found["repeats"]]
    assert [int(row[1]) for row in read.table("Depth")[1:]] == depths
    captions = {c.text.partition(".")[0]: c.text for c in read.of("figcaption")}
    assert sum("Seed 0." in text for text in captions.values()) == len(captions) - 1
    (training,) = [text for text in captions.values() if text.startswith("Training")]
    assert "Seed" not in training  # that one is of both
    assert (repeated / "figures" / "training.png").is_file()


# -- several ----------------------------------------------------------------------------------


def test_runs_side_by_side_have_comparable_columns(compressed, repeated, tmp_path):
    message = {"weights": 1500.0, "targets": 700.0, "total": 2200.0, "per_row": 2.0, "rows": 1100}
    message["uniform"] = None
    other = made(tmp_path / "other", [scores(0.5)], data="spirals", message=message)
    page = report([compressed, repeated, other])
    read = check(page)
    head, *rows = read.table("The runs side by side")
    assert head == ["", "small", "deep", "other"]
    table = {row[0]: row[1:] for row in rows}
    assert table["method"] == ["gnj", "ldn", "ddn"]
    assert table["seeds"] == ["1", "2", "1"]
    small = metrics_of(compressed)
    assert table["accuracy, whole network"][0] == f"{small['test']['ensemble']['accuracy']:.4f}"
    assert table["accuracy, small network"][0] == f"{small['compressed']['test']['accuracy']:.4f}"
    assert table["accuracy, small network"][2] == ""
    assert "±" in table["accuracy, whole network"][1]
    assert table["file, bytes"] == [f"{small['structure']['file_bytes']:,}", "", ""]
    bits = {"weights": "1,500", "targets": "700", "both": "2,200"}
    assert {n: table[f"bits by the bound, {n}"] for n in bits} == {
        name: ["", "", value] for name, value in bits.items()
    }
    assert "different data" in page
    heads = [one.text for one in read.of("h2")]
    assert heads == ["Side by side", "Figures", "small", "deep", "other"]
    assert len(page) < 3_000_000


def bold(page, row):
    lines = ([c for c in page.elements if r in c.within] for r in page.of("tr"))
    (found,) = [cells for cells in lines if cells and cells[0].text == row]
    strong = [one for one in found if one.tag == "strong"]
    columns = [c for c in found if c.tag in ("th", "td")]
    return [k for k, c in enumerate(columns) if any(c in one.within for one in strong)]


def test_the_best_is_bold_only_where_the_spread_says_so(tmp_path):
    a = made(tmp_path / "a", [scores(v, v) for v in (0.90, 0.91, 0.92)])
    b = made(tmp_path / "b", [scores(v, 0.905) for v in (0.60, 0.61, 0.62)])
    read = check(report([a, b]))
    assert bold(read, "accuracy, whole network") == [1]  # higher is better
    assert bold(read, "NLL, whole network") == []  # too near
    c = made(tmp_path / "c", [scores(v, v / 10) for v in (0.90, 0.91, 0.92)])
    assert bold(check(report([a, c])), "NLL, whole network") == [2]  # lower is better
    single = made(tmp_path / "d", [scores(0.1)])
    read = check(report([a, single]))
    assert bold(read, "accuracy, whole network") == []
    other = made(tmp_path / "e", [scores(v) for v in (0.60, 0.61, 0.62)], data="mnist")
    assert bold(check(report([a, other])), "accuracy, whole network") == []


def test_the_best_is_told_as_by_the_t_test_of_scipy():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(50):
        one, other = rng.normal(0.0, 1.0, 4), rng.normal(2.5, 0.4, 3)
        p = ttest_ind(one, other, equal_var=False).pvalue
        expected = (0 if one.mean() < other.mean() else 1) if p < 0.05 else None
        assert best_of([one, other], higher=False) == expected
        seen.add(expected)
    assert {0, None} <= seen


def test_of_equal_runs_one_is_called_the_best_by_chance_alone():
    """At most 5 % of 2000 comparisons of three runs, at a false alarm of 1e-6 of the test."""
    rng = np.random.default_rng(0)
    called = sum(best_of(list(rng.normal(size=(3, 4))), True) is not None for _ in range(2000))
    assert called < 2000 * 0.05 + 4.9 * math.sqrt(2000 * 0.05 * 0.95)
    assert called > 0


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([[1.0, 1.0], [1.0, 1.0]], None),
        ([[3.0, 3.0], [2.0, 2.0]], 1),  # no chance in either
        ([[3.0], [2.0]], None),
        ([[3.0, 3.0]], None),
        ([[3.0, 3.0], []], None),
    ],
)
def test_the_best_of_runs_without_spread(columns, expected):
    assert best_of(columns, higher=False) == expected


def test_runs_of_one_name_are_told_apart(tmp_path):
    a, b = made(tmp_path / "x" / "run", [scores(0.1)]), made(tmp_path / "y" / "run", [scores(0.2)])
    assert check(report([a, b])).table("side by side")[0] == ["", "x/run", "y/run"]


# -- words ------------------------------------------------------------------------------------


def test_a_number_with_and_without_spread():
    assert cell([]).text == ""
    assert (cell([0.12345]).text, cell([0.12345]).value) == ("0.1235", 0.12345)
    assert cell([1.0, 3.0], ".1f").text == "2.0 ± 1.4"


def said(folder):
    return " ".join(summary(read_run(folder)))


def test_words_for_structure(tmp_path):
    structure = {
        "chosen": {"x-h": ["relu"], "h-y": []}, "probs": {"x-h": {"relu": 0.75, "tanh": 0.25}},
        "log_prob": math.log(0.5), "entropy": 0.7,
    }  # fmt: skip
    part = {
        "parameters": 100, "parameters_before": 400, "seconds_per_batch": 1e-3,
        "seconds_per_batch_before": 3e-3, "batch": 99, "test": scores(0.8),
    }  # fmt: skip
    ways = {way: scores(0.9) for way in ("stochastic", "deterministic", "ensemble")}
    random = {
        "runs": [{"parameters": 90, "test": scores(0.2)}, {"parameters": 110, "test": scores(0.3)}],
        "all": True,
    }
    part["seconds_by_batch"] = []
    more = {
        "learnt": [told(EdgeStructure(**structure)), smaller(part)],
        "structure": structure,
        "discretised": part,
        "random": random,
        "retrained": part,
    }
    folder = made(tmp_path / "a", [ways], **more)
    text = said(folder)
    assert "x-h: relu; h-y: nothing. All of these together have probability 0.500;" in text
    assert "The smaller network has 100 of 400 parameters" in text
    assert "reaches accuracy 0.9000" in text
    assert "the smaller one accuracy 0.8000" in text
    read = check(report([folder]))
    assert ["x-h", "relu", "relu 0.75, tanh 0.25"] in read.table("Operations")
    *_, last = read.table("Metrics on the test rows")
    assert last[:2] == ["2 structures at random (there are no more)", "0.2500 ± 0.0707"]
    assert [n.kind for n in networks(read_run(folder).seeds)].count("small") == 1


def test_terminal_and_page_say_the_same(compressed, repeated):
    for folder in (compressed, repeated):
        run = read_run(folder)
        console = PlainConsole(file=io.StringIO(), width=10_000)
        print_run(console, run.first)
        printed, page = console.file.getvalue(), check(report([folder]))
        shown = page.of("header")[0].text
        for one in run.first["learnt"]:
            assert one["title"] in printed
            for sentence in one["sentences"]:
                assert sentence in printed
                assert sentence in shown
            if one["rows"]:
                assert {*one["rows"][0]} <= {*page.table(one["title"])[0]}
                assert all(name in printed for name in one["rows"][0])


def test_a_run_of_an_earlier_version_is_shown_with_a_sentence(tmp_path):
    folder = made(tmp_path / "a", [scores(0.5)], learnt=["Depth 3 of 5 was chosen."])
    assert "earlier version" in said(folder)
    check(report([folder]))


def test_words_for_repeats_trained_together(tmp_path):
    folder = made(tmp_path / "a", [scores(0.5)] * 3, engine={"replicates": 3}, seconds=60.0)
    content = metrics_of(folder)
    content["spread"]["together"] = scores(0.75, 0.25)
    (folder / "metrics.json").write_text(json.dumps(content))
    seal(folder)
    text = said(folder)
    assert "3 times, with the seeds 0, 1 and 2. Training took 60 s on the CPU." in text
    together = "All 3 together, their predictions averaged, reach accuracy 0.7500 and NLL 0.2500"
    assert together in text


def test_what_speaks_against_a_run_is_said_before_what_it_learnt(tmp_path):
    why = "The network is no better than the mean."
    assert why in said(made(tmp_path / "a", [scores(0.5)], warnings=[why]))
    assert f"Seed 1: {why}" in said(made(tmp_path / "b", [scores(0.5)] * 2, warnings=[why]))


def diagnosed(folder, findings):
    """The folder with what a diagnosis found."""
    content = {} if findings is None else {"findings": findings}
    (folder / "diagnostics.json").write_text(json.dumps(content))
    return folder


def test_texts_of_files_are_escaped(tmp_path):
    evil = '<script>alert("x")</script>'
    folder = made(tmp_path / "a & b", [scores(0.5)], data=evil)
    diagnosed(folder, [{"name": evil, "verdict": "poor", "text": evil, "numbers": {evil: evil}}])
    page = report([folder])
    assert "<script" not in page
    read = check(page)
    assert read.of("h1")[0].text == f"ddn on {evil}"


# -- diagnosis --------------------------------------------------------------------------------


def test_findings_stand_with_their_figures(tmp_path):
    depth = {"name": "k-hat of the depth", "verdict": "doubtful", "text": "Look."}
    elbo = {"name": "ELBO", "verdict": "refused", "text": "No.", "numbers": {}}
    found = [{**depth, "numbers": {"k": 0.75}}, elbo]
    folder = diagnosed(made(tmp_path / "a", [scores(0.5)]), found)
    (folder / "figures").mkdir()
    for name in (slug("k-hat of the depth"), "more"):
        Image.new("RGB", (40, 20)).save(folder / "figures" / f"diagnose-{name}.png")
    read = check(report([folder]))
    assert [one.text for one in read.of("h2")][1] == "Can it be trusted?"
    lines = [" ".join(one.text.split()) for one in read.of("li") if one.inside("main")]
    assert "doubtful k-hat of the depth. Look." in lines[0]
    assert "0.75" in lines[0]
    assert "not answered ELBO. No." in lines[1]
    assert [one.inside("li") for one in read.of("img")] == [True, False]


@pytest.mark.parametrize(
    "found", [None, 3, [{"name": "a"}], [{"name": "a", "verdict": "fine", "text": "b"}]]
)
def test_diagnostics_that_cannot_be_read(found, tmp_path):
    folder = diagnosed(made(tmp_path / "a", [scores(0.5)]), found)
    with pytest.raises(ValueError, match=r"diagnostics\.json cannot be read"):
        report([folder])


# -- the command ------------------------------------------------------------------------------


def test_the_command_writes_the_page(tmp_path):
    folder = made(tmp_path / "a", [scores(0.5)])
    out = tmp_path / "new" / "page.html"
    assert "Written to" in call("report", folder, "--out", out)
    assert out.read_text(encoding="utf-8") == report([folder])
    assert "ends in .html" in call("report", folder, "--out", tmp_path / "page.pdf", code=2)


def test_a_folder_that_is_no_finished_run_is_named(tmp_path):
    said = call("report", tmp_path / "none", code=2)
    assert "none is not a run" in said
    assert "Traceback" not in said
    assert "is not a run" in call("report", tmp_path, code=2)
    for where in ("begun", "repeats/seed-0"):
        (tmp_path / where).mkdir(parents=True)
        (tmp_path / where / "config.json").write_text("{}")
        top = tmp_path / where.split("/")[0]
        assert "did not finish" in call("report", top, code=2)
        assert "--resume" in call("report", top, code=2)


NEEDED = ("method", "data", "seed", "rows", "parameters", "seconds", "test", "versions")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "it holds a list"),
        ("{}", "'method' is missing"),
        ('{"repeats": []}', "it holds no runs"),
        ('{"repeats": [3]}', "'method' is missing"),
        (json.dumps({"repeats": [dict.fromkeys(NEEDED, "0/../../b")]}), "'seed' is missing"),
    ],
)
def test_metrics_that_cannot_be_read(content, message, tmp_path):
    folder = made(tmp_path / "a", [scores(0.5)])
    (folder / "metrics.json").write_text(content)
    seal(folder)
    with pytest.raises(ValueError, match=message):
        report([folder])


def test_runs_are_given_once(tmp_path):
    folder = made(tmp_path / "a", [scores(0.5)])
    with pytest.raises(ValueError, match="is given twice"):
        report([folder, tmp_path / "a" / ".." / "a"])
    with pytest.raises(ValueError, match="got no runs"):
        report([])
