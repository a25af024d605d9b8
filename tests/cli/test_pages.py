"""A page of runs is whole, safe, small and readable in any light; it says what their files say."""

import base64
import io
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import call, metrics_of
from pages import Reader, check
from PIL import Image
from pyroccam.cli.pages import html, read_run, report, slug
from pyroccam.cli.pages.html import BUDGET, Page, Picture, Section, render
from pyroccam.cli.pages.inlined import inline
from pyroccam.cli.pages.numbers import best_of
from pyroccam.cli.pages.words import doubts, summary
from pyroccam.cli.runs import METRICS, Cell, Table, learnt
from pyroccam.data import TooLarge
from pyroccam.inference.storage import seal
from scipy.stats import ttest_ind

EVIL = '<script>alert(1)</script> & "quotes" \' </style>'


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


# -- one run --------------------------------------------------------------------------------------


def said(folder):
    run = read_run(folder)
    return " ".join([*doubts(run), *summary(run)])


def test_words_of_a_run(tmp_path):
    why = "The network is no better than the mean."
    assert why in said(made(tmp_path / "a", [scores(0.5)], warnings=[why]))
    assert f"Seed 1: {why}" in said(made(tmp_path / "b", [scores(0.5)] * 2, warnings=[why]))
    folder = made(tmp_path / "d", [scores(0.5)] * 3)
    content = metrics_of(folder)
    content["spread"]["together"] = scores(0.75, 0.25)
    (folder / "metrics.json").write_text(json.dumps(content))
    seal(folder)
    assert "accuracy 0.7500 and NLL 0.2500" in said(folder)


def test_the_page_of_a_run_has_its_numbers(runs):
    folder, printed = runs("gnj")
    page = report([folder])
    read, found = check(page), metrics_of(folder)
    for one in found["learnt"]:
        assert all(text in printed and text in page for text in one["sentences"])
        assert not one["rows"] or (one["title"] in printed and read.table(one["title"]))
    head, *rows = read.table("Metrics on the test rows")
    shown = [name for name, title in METRICS.items() if title in head]
    assert shown == ["accuracy", "nll", "brier", "ece"]
    cut, structure = found["compressed"], found["structure"]
    sources = [found["test"][way] for way in ("ensemble", "stochastic", "deterministic")]
    sources += [found["numbers"]["test"], cut["test"]]
    for row, source in zip(rows, sources, strict=True):
        assert row[1:5] == [f"{source[name]:.4f}" for name in shown]
        assert {source[name] for name in shown} <= {*read.numbers()}  # all digits
    by_name = {row[0]: row for row in rows}
    assert by_name["handed back"][5] == f"{cut['parameters']:,}"
    assert by_name["ensemble (20 draws)"][5:] == [f"{cut['parameters_before']:,}", ""]
    assert by_name["deterministic (means)"][6] == f"{1e3 * found['mean']['seconds_per_batch']:.2f}"
    left = dict(zip(*read.table("What is left"), strict=True))
    assert left["left"] == structure["architecture"]
    assert left["file, bytes"] == f"{structure['file_bytes']:,}"
    text = read.of("header")[0].text
    assert f"{structure['file_bytes']:,} bytes" in text
    assert "1,294 rows for training, 144 for validation and 359 for testing" in text
    settings = dict(read.table("Settings, gnj")[1:])
    assert (settings["settings.lr"], settings["network_options.hidden"]) == ("0.01", "[12]")
    assert dict(read.table("Versions, gnj")[1:]) == found["versions"]
    images = read.of("img")
    assert len({one.attributes["src"] for one in images}) == len([*folder.glob("figures/*.png")])
    assert all("gnj" in one.attributes["alt"] for one in images)
    assert len(page) < 1_000_000


def test_the_page_of_repeats_has_their_spread(repeated):
    folder, _ = repeated
    read, found = check(report([folder])), metrics_of(folder)
    head, *rows = read.table("Metrics on the test rows")
    for row, part in zip(rows, ("test", "pruned", "single_exit"), strict=True):
        for column, name in ((1, "accuracy"), (2, "nll")):
            tests = [s[part] if part == "test" else s[part]["test"] for s in found["repeats"]]
            values = [test[name] for test in tests]
            assert row[column] == f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}"
            assert found["spread"][part][name]["mean"] in read.numbers()
    assert head[-2:] == ["parameters", "ms per batch"]
    assert "(mean ± standard deviation over the seeds)" in read.of("header")[0].text
    depths = [one["structure"]["depth_chosen"] for one in found["repeats"]]
    assert [int(row[1]) for row in read.table("Depth")[1:]] == depths
    captions = [c.text for c in read.of("figcaption")]
    (of_both,) = [text for text in captions if "Seed 0." not in text]
    assert of_both.startswith("Training")


@pytest.mark.parametrize(
    ("seconds", "before", "quartiles", "words"),
    [
        (1e-3, 3.2e-3, [3.0, 3.5], "3.2 x faster in a batch of 256 rows (1 ms, before 3.2 ms; half "
         "of the rounds 3.00 to 3.50 x)"),
        (2e-3, 1e-3, [0.4, 0.8], "2.0 x slower in a batch of 256 rows (2 ms, before 1 ms; half of "
         "the rounds 1.25 to 2.50 x)"),
        (1e-3, 1.3e-3, [0.9, 1.4], "about as fast"),  # an interval around 1
        (1.3e-3, 1e-3, [1.1, 1.4], "about as fast"),  # it would contradict the table
        (1e-3, 1.01e-3, [1.005, 1.02], "about as fast"),  # it would be 1.0 x faster
    ],
)  # fmt: skip
def test_a_speed_never_contradicts_the_times_beside_it(seconds, before, quartiles, words):
    one = {"batch": 256, "seconds": seconds, "seconds_before": before, "times_faster": quartiles}
    part = {
        "title": "a",
        "sentences": [],
        "rows": [],
        "seconds_by_batch": [one, {**one, "batch": 1}],
    }
    ((text,),) = [one["sentences"] for one in learnt({"learnt": [part]})]
    assert f"it is {words}" in text
    assert "in a batch of 1 row (" in text


# -- several --------------------------------------------------------------------------------------


def test_runs_side_by_side_have_comparable_columns(runs, repeated, tmp_path):
    message = {"weights": 1500.0, "targets": 700.0, "total": 2200.0, "per_row": 2.0, "rows": 1100}
    other = made(tmp_path / "other", [scores(0.5)], data="spirals", message=message)
    page = report([runs("gnj")[0], repeated[0], other])
    read, small = check(page), metrics_of(runs("gnj")[0])
    head, *rows = read.table("The runs side by side")
    assert head == ["", "gnj", "deep", "other"]
    table = {row[0]: row[1:] for row in rows}
    assert table["method"] == ["gnj", "ldn", "ddn"]
    assert table["seeds"] == ["1", "2", "1"]
    assert table["accuracy, whole network"][0] == f"{small['test']['ensemble']['accuracy']:.4f}"
    assert table["accuracy, small network"][0] == f"{small['compressed']['test']['accuracy']:.4f}"
    assert table["accuracy, small network"][2] == ""
    assert "±" in table["accuracy, whole network"][1]
    assert table["file, bytes"] == [f"{small['structure']['file_bytes']:,}", "", ""]
    for name, bits in (("weights", "1,500"), ("targets", "700"), ("both", "2,200")):
        assert table[f"bits by the bound, {name}"] == ["", "", bits]
    assert "different data" in page
    heads = [one.text for one in read.of("h2")]
    assert heads == ["Side by side", "Figures", "gnj", "deep", "other"]
    assert len(page) < 3_000_000


def bold(folders, row):
    page = check(report(folders))
    lines = ([c for c in page.elements if r in c.within] for r in page.of("tr"))
    (found,) = [cells for cells in lines if cells and cells[0].text == row]
    strong = [one for one in found if one.tag == "strong"]
    columns = [c for c in found if c.tag in ("th", "td")]
    return [k for k, c in enumerate(columns) if any(c in one.within for one in strong)]


def test_the_best_is_bold_only_where_the_spread_says_so(tmp_path):
    good, bad = (0.90, 0.91, 0.92), (0.60, 0.61, 0.62)
    a = made(tmp_path / "a", [scores(v, v) for v in good])
    b = made(tmp_path / "b", [scores(v, 0.905) for v in bad])
    c = made(tmp_path / "c", [scores(v, v / 10) for v in good])
    other = made(tmp_path / "e", [scores(v) for v in bad], data="mnist")
    assert bold([a, b], "accuracy, whole network") == [1]  # higher is better
    assert bold([a, b], "NLL, whole network") == []  # too near
    assert bold([a, c], "NLL, whole network") == [2]  # lower is better
    assert bold([a, made(tmp_path / "d", [scores(0.1)])], "accuracy, whole network") == []
    assert bold([a, other], "accuracy, whole network") == []


def test_the_best_is_told_as_by_the_t_test_of_scipy():
    rng, seen = np.random.default_rng(0), set()
    for _ in range(50):
        one, other = rng.normal(0.0, 1.0, 4), rng.normal(2.5, 0.4, 3)
        p = ttest_ind(one, other, equal_var=False).pvalue
        expected = (0 if one.mean() < other.mean() else 1) if p < 0.05 else None
        assert best_of([one, other], higher=False) == expected
        seen.add(expected)
    assert {0, None} <= seen
    without = {
        None: ([[1.0, 1.0]] * 2, [[3.0], [2.0]], [[3.0, 3.0], []]),
        1: ([[3.0] * 2, [2.0] * 2],),
    }
    for expected, each in without.items():  # of runs without spread, where no chance is in either
        assert all(best_of(columns, higher=False) == expected for columns in each)


def test_runs_are_given_once_and_told_apart(tmp_path):
    a, b = made(tmp_path / "x" / "run", [scores(0.1)]), made(tmp_path / "y" / "run", [scores(0.2)])
    assert check(report([a, b])).table("side by side")[0] == ["", "x/run", "y/run"]
    for folders in ([a, tmp_path / "x" / ".." / "x" / "run"], []):
        with pytest.raises(ValueError, match=r"twice|no runs"):
            report(folders)


# -- findings and files ---------------------------------------------------------------------------


def test_findings_stand_with_their_figures(tmp_path):
    depth = {"name": "k-hat of the depth", "verdict": "doubtful", "text": "Look."}
    elbo = {"name": "ELBO", "verdict": "refused", "text": "No.", "numbers": {}}
    found = [{**depth, "numbers": {"k": 0.75}}, elbo]
    folder = made(tmp_path / "a", [scores(0.5)])
    (folder / "diagnostics.json").write_text(json.dumps({"findings": found}))
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


NEEDED = ("method", "data", "seed", "rows", "parameters", "seconds", "test", "versions")


@pytest.mark.parametrize(
    ("name", "content"),
    [("metrics", "{"), ("metrics", "[]"), ("metrics", '{"repeats": []}'),
     ("metrics", json.dumps({"repeats": [dict.fromkeys(NEEDED, "0/../../b")]})),
     ("diagnostics", '{"findings": 3}'), ("diagnostics", '{"findings": [{"name": "a"}]}'),
     ("diagnostics", '{"findings": [{"name": "a", "verdict": "fine", "text": "b"}]}')],
)  # fmt: skip
def test_files_that_cannot_be_read(name, content, tmp_path):
    folder = made(tmp_path / "a", [scores(0.5)])
    (folder / f"{name}.json").write_text(content)
    seal(folder)
    with pytest.raises(ValueError, match=rf"{name}\.json"):
        report([folder])


def test_the_command_writes_the_page_of_finished_runs(tmp_path):
    folder, out = made(tmp_path / "a", [scores(0.5)]), tmp_path / "new" / "page.html"
    assert "Written to" in call("report", folder, "--out", out)
    assert out.read_text(encoding="utf-8") == report([folder])
    assert "ends in .html" in call("report", folder, "--out", tmp_path / "page.pdf", code=2)
    assert "is not a run" in call("report", tmp_path, code=2)
    for where in ("begun", "repeats/seed-0"):
        (tmp_path / where).mkdir(parents=True)
        (tmp_path / where / "config.json").write_text("{}")
        words = call("report", tmp_path / where.split("/")[0], code=2)
        assert "did not finish" in words
        assert "--resume" in words


# -- the page -------------------------------------------------------------------------------------


def noise(path, side=400):
    """Pixels that no packing makes small."""
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (60, 30), "#0072b2").save(tmp_path / "a.png")
    return Picture(tmp_path / "a.png", "A blue square of no meaning", "Square", "It is blue.")


def test_texts_are_escaped(picture):
    table = Table(EVIL, [EVIL, EVIL], [[Cell(EVIL), Cell(EVIL, 1.0)]], EVIL)
    hostile = replace(picture, alt=EVIL, title=EVIL, text=EVIL)
    remark = {
        "name": EVIL,
        "verdict": "good",
        "text": EVIL,
        "numbers": {EVIL: EVIL},
        "picture": hostile,
    }
    page = render(Page(EVIL, [Section(EVIL, [EVIL], [table], [remark], [hostile])], [EVIL]))
    assert "<script" not in page
    read = check(page)
    assert read.of("img")[0].attributes["alt"] == read.of("h1")[0].text == EVIL


def held(source):
    return base64.b64decode(source.partition(",")[2])


def test_pixels_keep_their_picture_on_white_and_fit(tmp_path):
    for given, shown in (
        (Image.new("RGB", (60, 30), "#0072b2"), (0, 0x72, 0xB2)),
        (Image.new("RGBA", (8, 8), (0, 0, 0, 0)), (255, 255, 255)),
    ):
        given.save(tmp_path / "a.png")
        found = inline(tmp_path / "a.png")
        assert (found.width, found.height) == given.size
        pixels = Image.open(io.BytesIO(held(found.source))).convert("RGB").getcolors()
        assert pixels == [(given.width * given.height, shown)]
    path = noise(tmp_path / "a.png")
    assert inline(path, 10**6).width == 400
    less = inline(path, 120_000)
    assert 320 <= less.width < 360  # a byte for each pixel
    assert len(held(less.source)) <= 120_000
    with pytest.raises(ValueError, match=r"a\.png of [\d,]+ bytes"):
        inline(path, 1000)


def test_what_is_no_picture_is_refused(tmp_path):
    other = {"b.png": b"\x89PNG\r\n\x1a\n nothing", "c.svg": b"<svg></svg>", "a.png": None}
    for name, content in other.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises((FileNotFoundError, ValueError), match=name):
            inline(tmp_path / name, 10)


def test_a_huge_picture_asks_before_it_is_decoded(tmp_path):
    Image.new("1", (13_000, 13_000)).save(tmp_path / "a.png")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with pytest.raises(TooLarge, match=r"a\.png"):
            inline(tmp_path / "a.png")


def test_pictures_share_the_room_of_a_page(tmp_path, monkeypatch):
    large = Picture(noise(tmp_path / "a.png"), "Nothing but noise in it", "Noise")
    for count in (1, 3):
        monkeypatch.setattr("pyroccam.cli.pages.html.BUDGET", 120_000 * count)
        page = render(Page("Many", [Section("All", pictures=[large] * count)]))
        bytes_ = [len(held(one.attributes["src"])) for one in Reader(page).of("img")]
        assert len(bytes_) == count
        assert 0.8 * 120_000 < max(bytes_) <= 120_000
    assert 4 / 3 * BUDGET < 2_900_000  # the room of a page is below 3 MB, with words to spare


def luminance(colour):
    """Relative luminance of sRGB (WCAG 2.2)."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_every_text_has_contrast_in_both_lights():
    css = (Path(html.__file__).parent / "page.css").read_text()
    blocks = re.findall(r":root\s*\{([^}]*)\}", css)
    assert len(blocks) == 3  # light, dark, print
    for block in blocks:
        colours = dict(re.findall(r"--(\w+):\s*(#[0-9a-f]{6})", block))
        for paper in ("paper", "raised"):
            for ink in ("ink", "quiet", "link", "good", "doubtful", "poor"):
                one, other = sorted((luminance(colours[ink]), luminance(colours[paper])))
                assert (other + 0.05) / (one + 0.05) > 4.5, (ink, paper, block)
