"""Several inputs of a row on the command line: from an archive to a file for other programs."""

import numpy as np
import pytest
import torch
from command_line import WHOLE, call, metrics_of
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.files.packed import read
from several import logits, pictured, texts

SHORT = ["--epochs", "2", "--set", "batch_size=24", *WHOLE]


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
def runs(tmp_path_factory):
    """Of a network that has words, and of one that has none."""
    folder = tmp_path_factory.mktemp("several")
    found = {}
    for name, rows in (("Pair", pictured), ("Reader", texts)):
        own = archive(folder / f"{name}.npz", rows, ("_train", 80, 0), ("_test", 30, 1))
        options = ["--data", own, "--network", f"networks_of_runs:{name.lower()}"]
        found[name] = folder / name
        with pytest.MonkeyPatch.context() as patch:
            (folder / "networks_of_runs.py").write_text(
                "import several\n"
                "def pair(input_shape, outputs):\n"
                "    assert input_shape['picture'] == (2, 3, 3), input_shape\n"
                "    return several.Pair(input_shape, outputs)\n"
                "def reader(input_shape, outputs):\n"
                "    return several.Reader()\n"
            )
            patch.syspath_prepend(folder)
            call("fit", "gnj", *options, "--out", found[name], *SHORT)
    return found


def test_a_run_is_opened_without_its_code_and_its_file_takes_the_inputs(runs, tmp_path):
    run = runs["Pair"]
    fit = load_fit(run, "cpu")  # by its description
    net = read(run / "compressed.pocc")
    x = fit.data.fields.split(fit.data.x_test)
    with torch.no_grad():
        right = logits(net(**x)).argmax(1) == fit.data.y_test
    assert metrics_of(run)["compressed"]["test"]["accuracy"] == pytest.approx(
        float(right.float().mean())
    )
    new = archive(tmp_path / "new.npz", pictured, ("", 20, 7))
    said = call("evaluate", run, "--data", new)
    assert "20 test rows of new" in said
    assert "compressed" in said
    other = archive(tmp_path / "other.npz", texts, ("", 20, 7))
    said = call("evaluate", run, "--data", other, code=2)
    assert "has the inputs input_ids, attention_mask; expected ids (5,) int64, picture" in said


def test_what_no_words_reach_is_kept_as_tensors_and_exported(runs, tmp_path, monkeypatch):
    run = runs["Reader"]
    monkeypatch.syspath_prepend(run.parent)
    own = ["--network", "networks_of_runs:reader"]
    assert "takes **others" in metrics_of(run)["structure"]["not_described"]
    said = call("export", run, *own, "--out", tmp_path / "net.pt2")
    assert "takes rows of input_ids (6,) int64, attention_mask (6,) int64" in said
    raw = texts(30, 1)[0]
    found = torch.export.load(tmp_path / "net.pt2").module()(**raw)
    rates = found.argmax(1) == texts(30, 1)[1]
    expected = metrics_of(run)["compressed"]["test"]["accuracy"]
    assert float(rates.float().mean()) == pytest.approx(expected)
    call("evaluate", run, *own)


def test_a_ready_network_takes_one_input(runs):
    said = call("fit", "gnj", "--data", runs["Pair"].with_suffix(".npz"), *SHORT, code=2)
    assert "has several inputs (ids (5,) int64" in said
