"""Likelihoods on the command line: a word in --set, in every method, and in the files of a run."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import call, metrics_of
from pyroccam import models
from pyroccam.cli.methods.table import METHODS
from pyroccam.cli.runs.building import build_network
from pyroccam.cli.runs.config import RunConfig
from pyroccam.cli.runs.loading import load_fit
from targets import WORDS, made

SCORES = {
    "heteroscedastic": {"rmse", "nll", "coverage"},
    "student-t": {"rmse", "mae", "nll", "coverage"},
    "poisson": {"rmse", "mae", "deviance", "nll"},
    "negative-binomial": {"rmse", "mae", "deviance", "nll"},
    "multi-label": {"accuracy", "f1", "auroc", "brier", "ece", "nll"},
    "ordinal": {"accuracy", "nll", "brier", "ece", "rank_mae"},
}
NET = ["--set", "max_depth=1", "--set", "width=6", "--set", "steps=8"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The data of every likelihood as a file, by its word."""
    folder = tmp_path_factory.mktemp("data")
    found = {}
    for word in WORDS:
        data = made(word, n=60, test=40)
        parts = {f"x_{k}": data.split(k)[0].numpy() for k in ("train", "test")}
        for k in ("train", "test"):
            y = data.split(k)[1]
            y = y * data.y_std + data.y_mean if data.classes is None else y
            parts[f"y_{k}"] = y.numpy()
        found[word] = folder / f"{word}.npz"
        np.savez(found[word], **parts)
    return found


@pytest.mark.parametrize("word", SCORES)
def test_a_word_says_the_task_the_outputs_and_the_scores(word, files, tmp_path):
    out = tmp_path / "run"
    call("fit", "ldn", "--data", files[word], *NET, "--set", f"likelihood={word}", "--out", out)
    config = json.loads((out / "config.json").read_text())["run"]
    assert config["options"]["likelihood"] == word
    assert config["data"]["task"] == models.likelihoods.words()[word].task
    found = metrics_of(out)
    for test in (found["test"], found["pruned"]["test"], found["ddn"]["test"]):
        assert {*test} - {"poster_ece"} == SCORES[word]
    figure = "reliability" if "accuracy" in SCORES[word] else "predictive"
    assert (out / "figures" / f"{figure}.png").is_file()
    fit = load_fit(out, "cpu")
    assert fit.evaluate() == pytest.approx(
        {k: v for k, v in found["test"].items() if k != "poster_ece"}, rel=1e-5
    )
    assert fit.outputs(fit.data.x_test).shape[-1] == fit.model.likelihood.outputs
    said = call("evaluate", out, "--data", files[word])
    assert "nll" in said
    said = call("prune", out, "--form", "single")
    assert "Cut at depth" in said
    shutil.rmtree(out / "figures")  # empty files here
    page = tmp_path / "page.html"
    call("report", out, "--out", page)
    shown = {"rmse": "RMSE", "accuracy": "accuracy", "coverage": "coverage of 90 %"}
    text = page.read_text()
    assert all(f">{title}" in text for name, title in shown.items() if name in SCORES[word])


def test_every_method_makes_the_likelihood_that_is_asked_for(files):
    for name, method in METHODS.items():
        graph = ["perceptron-graph"] if method.over == "graph" else [None]
        config, data = RunConfig.resolve(
            name, str(files["heteroscedastic"]), sets={"likelihood": "heteroscedastic"},
            network=graph[0],
        )  # fmt: skip
        torch.manual_seed(0)
        model, _ = config.chosen.build(build_network(config, data), data)
        assert type(model.likelihood) is models.Heteroscedastic, name


def test_by_default_the_task_says_which():
    for data, word in (("digits", "categorical"), ("wiggle", "normal")):
        config, _ = RunConfig.resolve("gnj", data)
        assert config.options["likelihood"] == word


@pytest.mark.parametrize("method", ["gnj", "deep-compression"])
def test_random_weights_and_points_of_counts(method, files, tmp_path):
    out = tmp_path / "run"
    more = ["--set", "epochs=2"]
    more += ["--set", "narrow=[]"] if method == "gnj" else ["--set", "retrain=1"]
    word = "negative-binomial"
    call("fit", method, "--data", files[word], *more, "--set", f"likelihood={word}", "--out", out)
    found = metrics_of(out)
    assert {*found["test"]["ensemble"]} == SCORES[word]
    assert {*found["compressed"]["test"]} == SCORES[word]


def test_a_table_of_counts(tmp_path):
    path, data = tmp_path / "visits.csv", made("poisson", n=60, test=20)
    table = pd.DataFrame(data.x_train.numpy(), columns=["a", "b"])
    table["visits"] = data.y_train[:, 0].int().numpy()
    table.to_csv(path, index=False)
    _, loaded = RunConfig.resolve("ldn", str(path), sets={"likelihood": "poisson"})
    assert loaded.task == "counts"
    _, loaded = RunConfig.resolve("ldn", str(path), sets={"data.task": "counts"})
    assert loaded.task == "counts"
    assert float(loaded.y_std) == 1.0
    out = tmp_path / "run"
    call("fit", "ldn", "--data", path, *NET, "--set", "likelihood=poisson", "--out", out)
    assert "deviance" in call("evaluate", out)
    new = tmp_path / "new.csv"
    table.assign(visits=table["visits"] + 0.5).to_csv(new, index=False)
    said = call("evaluate", out, "--data", new, code=2)
    assert "whole numbers from 0 on, for task='counts'" in said
