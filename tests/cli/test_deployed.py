"""A table of one's own, from names, texts and seconds since 1970 to a file that predicts."""

import json

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from command_line import call
from pyroccam import data
from pyroccam.cli.runs.loading import load_fit
from pyroccam.inference.files import packed

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


def table(rng, first, rows):
    """Rows five seconds apart, of which the first is number ``first``."""
    time = 1.7e9 + 5.0 * (first + np.arange(rows))
    city, kind = rng.choice(["Ulm", "Oslo", "Riga"], rows), rng.choice(["old", "new, fine"], rows)
    size = rng.normal(3, 1, rows).round(3)
    delay = (time - 1.7e9) / 1500 + (city == "Riga") - 2 * (kind == "old") + 0.5 * size
    return pd.DataFrame({
        "time": time.astype(int), "city": city, "size": size, "kind": kind,
        "arrival": (1.7e9 + 60 * delay + rng.normal(0, 3, rows)).round(1),
        "mood": np.where(delay > 1.5, "good", np.where(delay > 0, "fair", "bad")),
    })  # fmt: skip


def predicted(path, frame):
    """What a place without pyroccam computes of a table, by the file alone, and what the file says
    of itself."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["data.json"])
    texts = about.get("categories", {})
    numbers = about["columns"][: len(about["columns"]) - sum(map(len, texts.values()))]
    x = np.column_stack([
        frame[numbers], *(frame[name] == text for name in texts for text in texts[name])
    ])  # fmt: skip
    (given,) = session.get_inputs()
    (found,) = session.run(["y"], {given.name: x.astype(TYPES[given.type])})
    return found, about


@pytest.mark.parametrize(
    ("target", "more"),
    [("arrival", ()), ("arrival", ("--set", "likelihood=heteroscedastic")), ("mood", ())],
)
def test_a_file_predicts_new_rows_as_the_run_does(tmp_path, target, more):
    rng, out, spare = np.random.default_rng(0), tmp_path / "run", {"arrival", "mood"} - {target}
    for name, rows in {"train": (0, 200), "test": (200, 40), "new": (240, 40)}.items():
        frame = table(rng, *rows).drop(columns=[*spare])
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    call("fit", "gnj", "--data", tmp_path / "train.csv", "--set", f"data.target={target}",
         "--set", "data.categorical=auto", "--set", f"data.test={tmp_path / 'test.csv'}",
         "--set", "hidden=[8]", "--set", "narrow=[]", "--epochs", "30", "--no-compare", *more,
         "--out", out)  # fmt: skip
    call("evaluate", out, "--data", tmp_path / "new.csv", "--out", tmp_path / "scores.json")
    call("export", out, "--form", "onnx")
    scores = json.loads((tmp_path / "scores.json").read_text())["compressed"]
    frame = pd.read_csv(tmp_path / "new.csv")
    found, about = predicted(out / "exported.onnx", frame)
    assert about["target"] == target
    assert about["scaling"]
    likelihood = about["likelihood"]

    own = load_fit(out, "cpu").data
    new = data.new_rows(tmp_path / "new.csv", like=own)
    with torch.no_grad():
        expected = packed.read(out / "compressed.pocc")(new.x_test).double().numpy()
    if target == "mood":
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        label = frame[target].map(about["class_names"].index).to_numpy()
        log_probs = found - np.log(np.exp(found).sum(1, keepdims=True))
        nll = -log_probs[np.arange(len(label)), label].mean()
        assert scores["accuracy"] == pytest.approx((found.argmax(1) == label).mean())
    else:
        (mean,), (spread,) = about["y_mean"], about["y_std"]
        np.testing.assert_allclose((found[:, 0] - mean) / spread, expected[:, 0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(found[:, 1:], expected[:, 1:], rtol=0, atol=1e-6)
        off = found[:, 0] - frame[target]
        if more:
            sigma = spread * np.sqrt(likelihood["floor"] ** 2 + np.exp(found[:, 1]))
        else:
            sigma = spread * (likelihood["floor"] + np.exp(likelihood["log_scale"][0]))
        nll = (0.5 * (off / sigma) ** 2 + np.log(sigma * np.sqrt(2 * np.pi))).mean()
        assert scores["rmse"] == pytest.approx(np.sqrt((off**2).mean()), rel=1e-6)
    assert scores["nll"] == pytest.approx(nll, rel=1e-5)
