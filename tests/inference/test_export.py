"""Files for other programs: read by them, on raw rows, and what is said where there is no way."""

import importlib.util
import json

import numpy as np
import onnxruntime
import pytest
import torch
from cut_stacks import cut, trained
from fitting import blobs
from pyroccam import data, models
from pyroccam.inference import Small
from pyroccam.inference.files import ExportError, export, exporting
from pyroccam.inference.files.exporting import FORMS
from pyroccam.models.plain import select
from torch import nn


def run(path, form, x):
    """What another program would compute, without anything of pyroccam."""
    if form == ".pt2":
        return torch.export.load(path).module()(x)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return torch.from_numpy(session.run(None, {given.name: x.numpy()})[0])


def table():
    """Regression with targets around 1000, and inputs of other scales."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, generator=generator) * torch.tensor([1.0, 10, 0.1, 5, 2]) + 50.0
    y = torch.stack([x.sum(1), x[:, 0] - x[:, 1], x[:, 3]], 1) * 3 + 1000
    return data.Dataset.from_tensors(x[:60], y[:60], x[60:], y[60:], task="regression"), x, y


def about(path, form):
    """What a file says of its data, as another program would find it."""
    found = {"data.json": ""}
    if form == ".pt2":
        torch.export.load(path, extra_files=found)
    else:
        found = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    return json.loads(found["data.json"])


@pytest.mark.parametrize("form", FORMS)
def test_a_file_takes_raw_rows_and_gives_targets_in_their_units(tmp_path, form):
    """And says of its data what another program has to know."""
    rows, x, _ = table()
    names = {"columns": [*"abcd", "wärme"], "target": "rain"}
    rows = rows.but(**names, categories={"b": ["x"]})
    model, _ = trained("mlp", "regression")
    net = cut(model, "marginal")
    made = export(net, tmp_path / f"net{form}", rows)
    assert made.bytes == made.path.stat().st_size
    assert made.difference <= 1e-4 * made.largest
    with torch.no_grad():
        expected = net(rows.x_test) * rows.y_std + rows.y_mean
        for count in (1, 20):
            found = run(made.path, form, x[60 : 60 + count])
            torch.testing.assert_close(found, expected[:count], rtol=1e-5, atol=1e-3)
    found = about(made.path, form)
    assert {name: found[name] for name in names} == names
    assert found["categories"] == {"b": ["x"]}
    assert found["x_std"] == rows.scaling.x_std.tolist()
    assert found["scaling"] is True
    assert not {"digest", "split", "likelihood"} & {*found}


@pytest.mark.parametrize("likelihood", [None, models.Regression(3)])
def test_a_small_network_says_the_noise_of_the_validation_rows(likelihood, tmp_path):
    _, x, y = table()
    rows = data.Dataset.from_tensors(x[:60], y[:60], x[60:], y[60:], val_fraction=0.3, seed=0)
    net = nn.Linear(5, 3)
    path = Small(net, data=rows, likelihood=likelihood).save(tmp_path / "net.pt2")
    with torch.no_grad():
        off = (net(rows.x_val) - rows.y_val).square().mean(0).sqrt()
    found = about(path, ".pt2").get("likelihood")
    assert (found is None) == (likelihood is None)
    if found is not None:
        scale = models.Regression(3)
        scale.load_state_dict({n: torch.tensor(found[n]) for n in scale.state_dict()})
        torch.testing.assert_close(scale.scale.detach(), off, rtol=0.08, atol=0.0)


def test_a_compressed_network_that_chooses_its_inputs(tmp_path):
    torch.manual_seed(0)
    rows = data.load("digits", val_fraction=0.1)
    conv = nn.Sequential(select([0], 1), nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    dense = nn.Sequential(select(range(0, 108, 3), -1), nn.Linear(36, 10))
    net = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), dense).eval()
    made = export(net, tmp_path / "net.onnx", rows)
    raw = rows.x_test * rows.x_std + rows.x_mean
    with torch.no_grad():
        found = run(made.path, ".onnx", raw[:9])
        torch.testing.assert_close(found, net(rows.x_test[:9]), rtol=1e-4, atol=1e-5)


def test_a_file_has_no_batch_normalisation_behind_a_convolution(tmp_path):
    rows = data.load("digits")
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 10))
    net[1].running_mean.fill_(0.5)
    made = export(net.eval(), tmp_path / "net.pt2", rows)
    used = {str(node.target) for node in torch.export.load(made.path).graph.nodes}
    assert any("conv2d" in one for one in used)
    assert not any("norm" in one for one in used)
    assert isinstance(net[1], nn.BatchNorm2d)


def seconds(of):
    """Rows five seconds apart, counted from 1970, as the first input or as the target."""
    rng = np.random.default_rng(0)
    t, a = rng.permutation(1.7e9 + 5.0 * np.arange(120)), rng.normal(size=120)
    x, y = (np.c_[t, a], t % 7) if of == "input" else (np.c_[t % 600, a], t)
    return data.Dataset.from_tensors(x[:90], y[:90], x[90:], y[90:], task="regression"), x[90:]


@pytest.mark.parametrize(("of", "form"), [("input", ".onnx"), ("target", ".pt2")])
def test_large_offsets_are_in_double_precision(tmp_path, of, form):
    torch.manual_seed(0)
    rows, raw = seconds(of)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).eval()
    made = export(net, tmp_path / f"net{form}", rows)
    assert made.takes == (torch.float64 if of == "input" else torch.float32)
    with torch.no_grad():
        expected = net(rows.x_test).double() * rows.scaling.y_std + rows.scaling.y_mean
        found = run(made.path, form, torch.from_numpy(raw).to(made.takes))
    assert found.dtype == (torch.float32 if of == "input" else torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4 * float(rows.y_std))
    assert 0 < made.difference < 1e-4 * float(rows.y_std)


class ByValue(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def test_what_cannot_be_taken_or_is_not_what_was_given_is_refused(tmp_path, monkeypatch):
    wrong = exporting.FORMS[".pt2"][0], lambda content: lambda x: x
    for name, net in (
        ("a.pt2", ByValue()),
        ("net.keras", nn.Linear(2, 3)),
        ("b.pt2", nn.Linear(2, 3)),
    ):
        if name == "b.pt2":
            monkeypatch.setitem(exporting.FORMS, ".pt2", wrong)
        (tmp_path / name).write_bytes(b"before")
        with pytest.raises(ExportError):
            export(net, tmp_path / name, blobs())
        assert (tmp_path / name).read_bytes() == b"before"


def test_packages_that_are_missing(tmp_path, monkeypatch):
    rows, found = blobs(), importlib.util.find_spec
    monkeypatch.setattr(exporting, "find_spec", lambda n: None if n == "onnxruntime" else found(n))
    made = export(nn.Linear(2, 3), tmp_path / "net.onnx", rows)
    assert made.difference is None
    monkeypatch.setattr(exporting, "find_spec", lambda n: None if n == "onnxscript" else found(n))
    with pytest.raises(ExportError):
        export(nn.Linear(2, 3), tmp_path / "net.onnx", rows)
