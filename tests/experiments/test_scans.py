"""The scans: what is run, what is kept, what is written and drawn."""

import csv
import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from drawn import inside, texts_overlap
from pyroccam import inference
from typer import Typer
from typer.testing import CliRunner

from experiments.published import tables
from experiments.published.depth import scans
from experiments.published.depth.panels import ScanPanel, scan_panels

SIZES = ("--set", "width=4", "--steps", 12)
ONE = ("--scans", "max-depth", "--values", "max-depth=1", *SIZES)
ALL = (
    "--scans", "max-depth,fixed-depth", "--values", "max-depth=1,2", "--values", "fixed-depth=1",
    "--steps", "fixed-depth=14", *SIZES,
)  # fmt: skip


def call(folder, repeats, *arguments, code=0):
    app = Typer()
    app.command()(scans.main)
    arguments = ("--out", folder, "--repeats", repeats, *arguments)
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "500"})
    assert result.exit_code == code, (result.output, result.exception)
    return " ".join(result.output.split())


def rows_of(folder, scan="max-depth"):
    with (folder / f"{scan}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def summary_of(folder):
    return json.loads((folder / "scans.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two scans; one point is trained together, the others, to save time, seed by seed."""
    folder = tmp_path_factory.mktemp("results") / "scans"
    fit_repeats = scans.fit_repeats

    def some_together(build, seeds, **settings):
        together = settings["label"] == "max-depth 1"
        return fit_repeats(build, seeds, together=together, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "fit_repeats", some_together)
        return folder, call(folder, 2, *ALL)


@pytest.fixture
def folder(finished, tmp_path):
    """A copy, to go on with."""
    return shutil.copytree(finished[0], tmp_path / "scans")


def train(monkeypatch, *raises):
    """In place of training: each call raises the next of ``raises``."""
    mock = Mock(side_effect=raises)
    monkeypatch.setattr(scans, "fit_repeats", mock)
    return mock


def test_one_row_for_each_point_and_seed(finished):
    folder, said = finished
    rows = rows_of(folder)
    assert [(r["value"], r["seed"]) for r in rows] == [(v, s) for v in "12" for s in "01"]
    for row in rows:
        assert list(row) == list(scans.COLUMNS)
        for name in ("depth_chosen", "depth_chosen_exact", "depth_rounded_mean"):
            assert 0 <= int(row[name]) <= int(row["value"])
        assert 0 <= float(row["depth_expected"]) <= int(row["value"])
        for name in ("accuracy", "ece", "pruned_accuracy"):
            assert 0 <= float(row[name]) <= 1
        for name in ("nll", "train_seconds"):
            assert float(row[name]) > 0
        assert (row["steps"], row["deterministic_depth"]) == ("12", "")
        assert row["trained_together"] == {"1": "2", "2": "1"}[row["value"]]
    for row in rows_of(folder, "fixed-depth"):
        assert (row["steps"], row["deterministic_depth"], row["depth_chosen"]) == ("14", "1", "")
    for point in ("max-depth 1", "max-depth 2", "fixed-depth 1"):
        assert said.count(f"{point} (2 seeds, 2 new): ") == 1
    assert not (folder / "unfinished").exists()


def test_the_summary_is_that_of_the_rows(finished):
    folder, _ = finished
    found = summary_of(folder)
    assert list(found) == ["max-depth", "fixed-depth"]
    for scan, content in found.items():
        for point in content["points"]:
            rows = [r for r in rows_of(folder, scan) if int(r["value"]) == point["value"]]
            for name, spread in point["spread"].items():
                values = [float(r[name]) for r in rows]
                assert spread["mean"] == pytest.approx(np.mean(values))
                assert spread["sd"] == pytest.approx(np.std(values, ddof=1))
                assert spread["n"] == point["seeds"] == 2
            ran = point["ran"]
            assert ran["config"]["network_options"]["width"] == 4
            assert "seed" not in ran["config"]["data"] | ran["config"]["settings"]
            assert ran["failed"] is None
            assert "torch" in ran["versions"]
    assert "depth_chosen" not in found["fixed-depth"]["points"][0]["spread"]


def test_the_table(finished, capsys):
    folder, _ = finished
    tables.main(folder.parent)
    said = capsys.readouterr().out
    learnt, fixed = (summary_of(folder)[scan]["points"] for scan in ("max-depth", "fixed-depth"))
    depths = [p["spread"]["depth_chosen"] for p in learnt]
    assert "### Scans" in said
    assert "| maximum depth D (blocks) | 1 | 2 |" in said
    cells = " | ".join(f"{d['mean']:.1f} ± {d['sd']:.1f}" for d in depths)
    assert f"| chosen depth | {cells} |" in said
    assert f"| accuracy, % | {100 * fixed[0]['spread']['accuracy']['mean']:.1f} ± " in said
    assert "2 seeds, 14 steps." in said
    assert said.count("chosen depth") == 1


def test_the_figure_has_a_panel_for_each_scan(finished):
    folder, _ = finished
    assert (folder / "scans.png").stat().st_size > 0
    titles = [ax.get_title() for ax in scans.Results(folder).picture().axes]
    assert [title for title in titles if title] == ["maximum depth", "deterministic networks"]


def test_what_is_done_is_not_repeated(folder, monkeypatch):
    mock = train(monkeypatch)
    before = (folder / "max-depth.csv").read_bytes(), summary_of(folder)
    assert "max-depth 2 (2 seeds, 0 new)" in call(folder, 2, *ALL)
    mock.assert_not_called()
    assert ((folder / "max-depth.csv").read_bytes(), summary_of(folder)) == before


def test_a_broken_seed_is_told_and_the_sound_one_kept(folder, tmp_path, monkeypatch):
    before = rows_of(folder)
    point = scans.Point.of("max-depth", 1, {"width": 4, "steps": 12})
    broken = inference.NonFiniteLoss("seed 3: the loss is nan")
    broken.fits = point.fit([2], tmp_path / "elsewhere", "cpu")
    mock = train(monkeypatch, broken, inference.Interrupted("Stopped."))
    assert "seed 3: the loss is nan" in call(folder, 4, *ONE, code=1)
    assert [r for r in rows_of(folder) if r["seed"] != "2"] == before
    first, second = summary_of(folder)["max-depth"]["points"]
    assert first["seeds"] == 3
    assert first["ran"]["failed"] == "seed 3: the loss is nan"
    assert second["ran"]["failed"] is None
    # the next call goes for what is still missing; stopped, it leaves everything as it was
    assert "The same command goes on" in call(folder, 4, *ONE, code=130)
    assert [c.args[1] for c in mock.call_args_list] == [[2, 3], [3]]
    assert len(rows_of(folder)) == len(before) + 1


def test_an_interrupted_point_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    mock = train(monkeypatch, *[inference.Interrupted("Stopped.")] * 3)
    call(tmp_path, 2, *ONE, code=130)
    call(tmp_path, 2, *ONE, code=130)
    call(tmp_path, 2, *ONE, "--set", "lr=0.1", code=130)
    settings = [c.kwargs for c in mock.call_args_list]
    assert all(s["resume"] for s in settings)
    first, again, other = (s["out"] for s in settings)
    assert first == again != other  # a checkpoint is of its settings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--steps", 13), "other settings: max-depth 1"),
        (("--scans", "maxdepth"), "Did you mean 'max-depth'"),
        (("--values", "width=3"), "Unknown scan 'width'"),
        (("--values", "max-depth=x"), "'x' is not a whole number"),
        (("--steps", "max-depth:7=3"), "Unknown scan or point 'max-depth:7'"),
        (("--set", "widht=3"), "Did you mean 'width'"),
    ],
)
def test_mistakes_are_told_before_anything_is_run(arguments, said, folder, monkeypatch):
    mock = train(monkeypatch)
    before = (folder / "max-depth.csv").read_bytes()
    assert said in call(folder, 3, *ONE, *arguments, code=2)
    mock.assert_not_called()
    assert (folder / "max-depth.csv").read_bytes() == before


def test_the_points_are_the_sources_and_the_expensive_come_last():
    points = scans._points(",".join(scans.SCANS), [], ["rows=7", "rows:800=9"], {})
    assert len(points) == sum(len(scan.values) for scan in scans.SCANS.values())
    assert [(p.scan, p.value) for p in points[-2:]] == [("width", 300), ("width", 1000)]
    for p in points:
        network, data = p.config.network_options, p.config.data
        varied = {
            "max-depth": network["max_depth"],
            "fixed-depth": network["max_depth"],
            "degrees": data["turns"],
            "rows": len(p.data.x_train) + len(p.data.x_val),
            "width": network["width"],
        }
        usual = {"max-depth": 20, "degrees": 720, "rows": 200, "width": 20, "fixed-depth": 20}
        for scan, value in varied.items():
            mine = scan == p.scan or ("depth" in scan and "depth" in p.scan)
            assert value == (p.value if mine else usual[scan])
        assert len(p.data.x_test) == 1800
        assert data["noise"] == (0.15 if p.scan in ("rows", "degrees") else 0.2)
        if p.scan == "rows":
            assert p.steps == (10 * 2 if p.value == 800 else 10)  # never under ten epochs


# -- the figure -------------------------------------------------------------------------------


def panel(**changes):
    arguments = {
        "title": "a",
        "xlabel": "x (units)",
        "values": [10, 1],
        "error": [[2.0, 4.0], [5.0]],
        "depth": [[3, 5], [7]],
        "reference": {1: 6.0},
    }
    return ScanPanel(**{**arguments, **changes})


def test_the_figure_shows_mean_and_spread():
    fig = scan_panels([panel(), panel(title="b", depth=None, log=False)], "theirs")
    by_title = {ax.get_title(): ax for ax in fig.axes if ax.get_title()}
    assert list(by_title) == ["a", "b"]
    mean, _, (bars,) = by_title["a"].containers[0]
    assert list(mean.get_xdata()) == [1, 10]  # in order
    assert list(mean.get_ydata()) == [7, 4]
    assert [np.ptp(s[:, 1]) / 2 for s in bars.get_segments()] == pytest.approx([0, np.sqrt(2)])
    theirs = [line.get_ydata() for line in by_title["a"].lines if line.get_label() == "theirs"]
    assert theirs == [(6.0,)]
    assert by_title["a"].get_xscale() == "log"
    assert by_title["b"].get_xscale() == "linear"
    assert by_title["b"].get_xlabel() == "x (units)"
    (legend,) = [ax.get_legend() for ax in fig.axes if ax.get_legend()]
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["chosen depth, mean ± sd", "test error, mean ± sd", "one seed", "theirs"]


def test_the_full_figure_has_no_texts_on_top_of_each_other():
    rng = np.random.default_rng(0)
    panels = []
    for scan in scans.SCANS.values():
        shape = len(scan.values), 4
        error, depth = rng.uniform(0, 50, shape), rng.integers(0, 20, shape)
        depth = None if scan.method == "ddn" else depth
        more = scan.authors, scan.ticks, scan.log
        panels.append(ScanPanel(scan.title, scan.xlabel, scan.values, error, depth, *more))
    fig = scan_panels(panels, "the code\nof others")
    assert texts_overlap(fig) == []
    assert inside(fig)
