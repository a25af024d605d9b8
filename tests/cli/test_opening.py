"""A run is opened only as what it was: its data, its files, and nobody's code."""

import json
import re
import shutil
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import call, metrics_of, sets
from pyroccam import data
from pyroccam.cli.runs import load_fit
from pyroccam.cli.runs.opening import RunError
from pyroccam.inference.storage import seal
from pyroccam.inference.storage.digests import DamagedFile
from safetensors.torch import load_file, save_file

NETWORK = """
from pathlib import Path
from torch import nn
Path("imported").touch()

def net(input_shape, outputs):
    return nn.Sequential(nn.Linear(*input_shape, 6), nn.Tanh(), nn.Linear(6, outputs))

class Loop(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.a, self.b = nn.Linear(inputs, 6), nn.Linear(6, outputs)

    def forward(self, x):
        x = self.a(x)
        return self.b(x if x.sum() > 0 else -x)

def loop(input_shape, outputs):
    return Loop(*input_shape, outputs)
"""


SHORT = [*sets("steps=40 max_depth=2 width=8"), "--no-compare"]


def table(rows=200, seed=0):
    x = np.random.default_rng(seed).standard_normal((rows, 4))
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["kind"] = np.where(x[:, 0] + 0.5 * x[:, 1] ** 2 > 0.3, "yes", "no")
    return frame


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table of a person's own, and the table."""
    folder = tmp_path_factory.mktemp("opening")
    table().to_csv(folder / "mine.csv", index=False)
    call("fit", "ldn", "--data", folder / "mine.csv", *SHORT, "--out", folder / "run")
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it with its data in a place of its own, to be spoilt."""
    shutil.copytree(trained, tmp_path / "copy")
    folder = tmp_path / "copy" / "run"
    rename(folder, {"name": str(tmp_path / "copy" / "mine.csv")})
    return folder


def rename(folder, data, keep=True):
    """Let a run be of other data."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["run"]["data"] = {**(config["run"]["data"] if keep else {}), **data}
    path.write_text(json.dumps(config))
    seal(folder)


def evaluated(*arguments):
    """The numbers of `pyroccam evaluate`, and what it says."""
    out = arguments[0].parent / "numbers.json"
    said = call("evaluate", *arguments, "--out", out)
    return json.loads(out.read_text()), said


# -- the data ---------------------------------------------------------------------------------


def test_reordered_rows_are_not_the_data_of_the_run(run):
    """They would be split in another way: rows of the training would be tested."""
    table().sample(frac=1, random_state=1).to_csv(run.parent / "mine.csv", index=False)
    for command in ("evaluate", "prune", "diagnose"):
        said = call(command, run, code=2)
        assert "the rows are not the same" in said
    assert "--data FILE" in said
    again = ("fit", "ldn", "--data", run.parent / "mine.csv", *SHORT, "--out", run, "--resume")
    assert "the rows are not the same" in call(*again, code=2)
    (run / "data.json").unlink()  # without what the run remembers, though its checksums are sound
    seal(run)
    assert "data.json" in call("evaluate", run, code=2)


def test_rows_that_were_seen_are_told_from_new_ones(run, tmp_path):
    own, _ = evaluated(run)
    path = tmp_path / "reordered.csv"
    table().sample(frac=1, random_state=1).to_csv(path, index=False)
    found, said = evaluated(run, "--data", path)
    assert "Seen before: 160 of 200 rows" in said
    for name in ("full", "pruned"):
        assert found[f"{name}, unseen"] == pytest.approx(own[name], rel=1e-5)
        assert found[name] != pytest.approx(own[name], rel=1e-3)


def test_new_rows_are_scored_on_the_scale_of_the_run(run, tmp_path):
    """As is computed once more from the file and the network; other units are noticed."""
    new, path = table(80, seed=5), tmp_path / "new.csv"
    new.to_csv(path, index=False)
    plain, said = evaluated(run, "--data", path)
    assert "80 test rows of new" in said
    assert "Seen" not in said
    fit = load_fit(run, "cpu")
    x = torch.tensor(new[list("abcd")].to_numpy())
    x = ((x - fit.data.x_mean) / fit.data.x_std).float()
    label = torch.tensor([fit.data.class_names.index(kind) for kind in new["kind"]])
    right = (fit.predict(x).argmax(1) == label).float().mean()
    assert plain["full"]["accuracy"] == pytest.approx(float(right), abs=1e-6)
    new.assign(a=1000 * new["a"]).to_csv(path, index=False)
    assert "Beware: Half of the values of column 'a'" in evaluated(run, "--data", path)[1]
    new.drop(columns="c").to_csv(path, index=False)
    assert "'c'" in call("evaluate", run, "--data", path, code=2)
    assert "not split" in call("evaluate", run, "--data", path, "--split", "val", code=2)
    assert "expected the kind of" in call("evaluate", run, "--data", "wiggle", code=2)


def test_data_that_moved_is_given_by_its_new_place(run, runs, tmp_path):
    """Toys have no place at all; the data of the run may be in another than new rows."""
    own, _ = evaluated(run)
    assert evaluated(run, "--data-root", tmp_path)[0] == own
    assert "NLL" in call("evaluate", runs("ddn")[0], "--data-root", tmp_path)
    (tmp_path / "else").mkdir()
    (run.parent / "mine.csv").rename(tmp_path / "else" / "mine.csv")
    said = call("evaluate", run, code=2)
    assert "no file" in said
    assert "--data-root FOLDER, if it was moved" in said
    assert evaluated(run, "--data-root", tmp_path / "else")[0]["full"] == own["full"]
    (tmp_path / "else" / "mine.csv").rename(tmp_path / "else" / "theirs.csv")
    assert evaluated(run, "--data", tmp_path / "else" / "theirs.csv")[0]["full"] == own["full"]


def test_nothing_is_downloaded_for_a_run_that_is_opened(run, tmp_path, monkeypatch):
    def refused(*arguments, **options):
        raise AssertionError("a download")

    monkeypatch.setattr("torchvision.datasets.mnist.MNIST.download", refused)
    rename(run, {"name": "mnist", "seed": 0, "data_root": str(tmp_path / "none")}, keep=False)
    assert "none" in call("evaluate", run, code=2)


# -- the files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["config.json", "data.json", "fit.json", "history.csv", "model.safetensors",
             "metrics.json", "digests.json"],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_damaged_files_are_named(run, name, damage):
    path = run / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        middle = len(content) // 2
        content[middle : middle + 7] = bytes(b ^ 0x15 for b in content[middle : middle + 7])
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    if damage == "missing":
        path.unlink()
    for command in ("evaluate", "report"):
        said = call(command, run, code=2)
        assert name in said or damage == "flip", said
    with pytest.raises((DamagedFile, RunError, FileNotFoundError), match=re.escape(str(run))):
        load_fit(run)


def without(tensors, name):
    return {other: tensor for other, tensor in tensors.items() if other != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all_, name: {**all_, name: all_[name].to(torch.int64)}, "is int64 "),
        (lambda all_, name: {**all_, name: all_[name] * torch.nan}, "cannot be read"),
        (lambda all_, name: {**all_, "model.more": torch.zeros(1)}, "cannot be read"),
        (without, "cannot be read"),
    ],
)
def test_weights_of_another_network_are_refused(run, change, said):
    path = run / "model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors, next(name for name in tensors if name.endswith("weight"))), path)
    seal(run)
    with pytest.raises(RunError, match=said):
        load_fit(run)


# -- code -------------------------------------------------------------------------------------


@pytest.fixture
def own_network(tmp_path, monkeypatch):
    """Runs with networks of one's own, whose code says when it is imported."""
    monkeypatch.chdir(tmp_path)
    forget()  # what another test imported from its folder
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "opened_nets.py").write_text(NETWORK)
    for network in ("net", "loop"):
        arguments = ["--network", f"theirs.opened_nets:{network}", "--data", "spirals"]
        arguments += sets("epochs=2 layers=hidden noise=activations narrow=[]")
        with warnings.catch_warnings():  # of the one that cannot be cut
            warnings.simplefilter("ignore", UserWarning)
            call("fit", "bayes", *arguments, "--out", network)
    forget()
    (tmp_path / "imported").unlink()
    return tmp_path


def forget():
    for name in ("theirs.opened_nets", "theirs"):
        sys.modules.pop(name, None)


def test_a_described_network_is_opened_without_its_code(own_network):
    shutil.rmtree(own_network / "theirs")
    found, _ = evaluated(own_network / "net")
    assert found["ensemble"] == pytest.approx(
        metrics_of(own_network / "net")["test"]["ensemble"], rel=1e-6
    )
    assert not (own_network / "imported").exists()


@pytest.mark.filterwarnings("ignore:can be trained")
def test_code_that_a_run_names_is_not_run(own_network):
    found = metrics_of(own_network / "loop")
    before = found["test"]
    assert "not_compressed" in found
    for command in ("evaluate", "diagnose", "compress"):
        said = call(command, "loop", code=2)
        assert "theirs.opened_nets:loop" in said
        assert "--trust" in said
    call("report", "loop")
    assert not (own_network / "imported").exists()
    for way in (["--trust"], ["--network", "theirs.opened_nets:loop"]):
        with pytest.warns(UserWarning, match="not be compressed"):
            found, _ = evaluated(own_network / "loop", *way)
        assert found["ensemble"] == pytest.approx(before["ensemble"], rel=1e-6)
        assert (own_network / "imported").exists()
        (own_network / "imported").unlink()
        forget()
    with pytest.warns(UserWarning, match="not be compressed"):
        said = call("evaluate", "net", "--network", "theirs.opened_nets:loop", code=2)
    assert "model.safetensors cannot be read" in said


def test_test_rows_in_a_file_of_their_own_move_with_the_others(tmp_path, monkeypatch):
    """What was said of both when the run was made is not said again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moved").mkdir()
    for name, rows in (("train", 120), ("test", 30), ("new", 9)):
        table(rows).replace({"a": {table(rows)["a"][3]: 9999}}).to_csv(f"{name}.csv", index=False)
    options = sets("data.missing=9999 data.test=test.csv steps=4 max_depth=1")
    with pytest.warns(data.DataWarning, match="1 of (120|30) rows"):
        call("fit", "ldn", "--data", "train.csv", *options, "--no-compare", "--out", "run")
    for name in ("train.csv", "test.csv"):
        shutil.move(name, tmp_path / "moved")
    with pytest.warns(data.DataWarning, match="1 of 9 rows"):
        said = call("evaluate", "run", "--data", "new.csv", "--data-root", tmp_path / "moved")
    assert "8 test rows of new" in said
