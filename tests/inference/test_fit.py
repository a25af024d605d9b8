"""Fits of learnt depth, whole: what they find, leave as it was, write and refuse."""

import json
import random
import signal
import subprocess
import sys

import numpy as np
import pyro
import pytest
import torch
from fitting import QUICK, assert_same, blobs, pair, run
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import exact_depth_posterior, total_variation
from pyroccam.inference.posterior.depth import choose_depth
from pyroccam.inference.storage import load_checkpoint
from pyroccam.inference.storage.digests import DamagedFile
from pyroccam.inference.training import Trainer, pick_device
from safetensors.torch import load_file
from torch import nn


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_the_same_seed_gives_the_same_fit_bit_for_bit(update):
    one = run(update=update)
    torch.rand(7)  # the state of the global generator must not matter
    assert_same(one, run(update=update))
    other = run(update=update, seed=4)
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert any(not torch.equal(p, q) for p, q in pairs)


def test_after_no_epochs_a_fit_is_the_pair_as_it_was_given(tmp_path):
    torch.manual_seed(0)
    data = blobs()
    model = models.BayesianNetwork(nn.Linear(2, 3), data, prior=models.priors.Normal())
    guide = guides.MeanField(model)
    before = {name: p.clone() for name, p in guide.state_dict().items()}
    how = {**QUICK, "epochs": 0, "out": tmp_path / "fit"}
    fit = inference.fit(model, guide, data, **how)
    assert all(before[name].equal(p) for name, p in guide.state_dict().items())
    assert [row["epoch"] for row in fit.history] == [0.0]
    assert (
        fit.val_nll == fit.history[0]["val_nll"] == pytest.approx(fit.evaluate("val")["nll"], 0.2)
    )
    again = inference.fit(model, guide, data, **how, resume=True)
    assert again.val_nll == fit.val_nll


def test_global_state_is_left_as_it_was():
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002 the legacy state is what is tested
    random.seed(123)
    legacy = np.random.get_state()[1].tolist()  # noqa: NPY002
    states = torch.get_rng_state(), random.getstate()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run(epochs=2)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == legacy  # noqa: NPY002
    assert random.getstate() == states[1]
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    assert torch.is_grad_enabled()
    assert pyro.settings.get("module_local_params") is False
    assert len(pyro.get_param_store()) == 0
    assert pyro.settings.get("validate_poutine") is True
    assert pyro.settings.get("validate_infer") is True


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_q_arrives_at_the_exact_posterior_of_an_easy_problem(update):
    rows = blobs()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
    model = models.LearntDepth(nn.Linear(2, 6), blocks, nn.Linear(6, 3), data=rows)
    guide = guides.CategoricalDepth(model, update=update)
    found = inference.fit(model, guide, rows, **{**QUICK, "epochs": 60, "guide_lr": 0.5})
    s = found.structure
    if update == "closed":
        assert s.tv_to_exact < 1e-5  # it is the exact posterior, in float32
        assert s.tv_to_exact < s.tv_running < 0.1  # an estimate by minibatches, and not the same
        assert s.running_depth_probs.sum() == pytest.approx(1)
    else:
        assert s.tv_to_exact < 0.1
        assert s.running_depth_probs is s.tv_running is None
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    assert total_variation(s.exact_depth_probs, uniform) > 0.2  # else it says nothing
    exact = exact_depth_posterior(found.model, rows)
    torch.testing.assert_close(s.exact_depth_probs, exact)
    torch.testing.assert_close(s.depth_probs.float(), found.guide.probs)
    assert s.depth_chosen == choose_depth(found.guide.probs)


def fixed(model):
    alone = model.at_depth(1)
    return alone, guides.Deterministic(alone)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda m: (m, guides.CategoricalDepth(m)), {"kl_warmup": 0.2}),
        (lambda m: (m, guides.CategoricalDepth(m)), {"kl_weight": 0.5}),
        (lambda m: (m, guides.CategoricalDepth(m)), {"device": "meta"}),
        (lambda m: (m, guides.Marginal(m)), {}),
        (fixed, {"kl_warmup": 0.5}),
    ],
)
def test_what_cannot_be_fitted(make, settings):
    rows = blobs()
    with pytest.raises(PyroccamError):
        inference.fit(*make(pair(rows)[0]), rows, **{**QUICK, **settings})
    with pytest.raises(PyroccamError):
        inference.fit(*pair(rows), blobs(n=50), **QUICK)


@pytest.mark.parametrize(
    ("count", "name"),
    [
        *((2, name) for name in ("abacus", "", "meta", "cuda:-1", "cuda:01", "cuda:2", None)),
        (0, "cuda"), (0, torch.device("cuda", 1)), (1, "cuda:1"),
    ],
)  # fmt: skip
def test_devices(count, name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(PyroccamError):
        pick_device(name)
    assert pick_device("auto") == torch.device("cuda" if count else "cpu")
    assert pick_device("cpu") == pick_device(torch.device("cpu")) == torch.device("cpu")


def test_files_of_a_run(tmp_path):
    found = run(out=tmp_path)
    files = "checkpoint.pt", "digests.json", "fit.json", "history.csv", "model.safetensors"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", *files]
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 1 + len(found.history)
    described = json.loads((tmp_path / "fit.json").read_text())
    assert described["settings"] == vars(found.settings)
    assert described["structure"]["depth_chosen"] == found.structure.depth_chosen
    assert described["versions"]["torch"] == torch.__version__.split("+")[0]
    tensors = load_file(tmp_path / "model.safetensors")
    for name, module in (("model", found.model), ("guide", found.guide)):
        for key, value in module.state_dict().items():
            assert torch.equal(tensors[f"{name}.{key}"], value)
    with pytest.raises(FileExistsError, match="resume=True"):
        run(out=tmp_path)


def test_a_finished_fit_keeps_its_weights_once(tmp_path, monkeypatch):
    found = run(out=tmp_path)
    kept = load_checkpoint(tmp_path, torch.device("cpu"))
    (one,) = kept["replicates"]
    assert not {"model", "guide", "good"} & {*kept, *one, *one["best"]}
    assert "optimizer" not in kept
    before = (tmp_path / "model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", None)  # no step is made again
        assert_same(found, run(out=tmp_path, resume=True))
    assert (tmp_path / "model.safetensors").read_bytes() == before
    (tmp_path / "model.safetensors").write_bytes(before[:-4] + bytes(4))
    with pytest.raises(DamagedFile, match=r"model.safetensors is not what was written"):
        run(out=tmp_path, resume=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(inference.CheckpointError, match=r"finished fit, but its model.safetensors"):
        run(out=tmp_path, resume=True)


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_looking_does_not_change_what_is_trained(update, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "settle", lambda _: None)  # it forgets the last weights
    states = []
    for evaluations in (1, 8):
        out = tmp_path / str(evaluations)
        run(out=out, update=update, evaluations=evaluations)
        states.append(load_checkpoint(out, torch.device("cpu"))["replicates"][0])
    for part in ("model", "guide"):
        for name, value in states[0][part].items():
            assert torch.equal(value, states[1][part][name]), name
    assert len(states[1]["history"]) == 8


def test_what_only_some_need_is_not_imported_and_nothing_warns():
    slow = {"torchvision", "torch._dynamo", "scipy.optimize", "scipy.stats", "pandas", "arviz"}
    code = (
        "import sys\nfrom pyroccam import data, guides, inference, models\nfrom pyroccam.inference "
        "import fit, load, narrow, path, select, shrink\nprint(*sys.modules)"
    )
    call = [sys.executable, "-W", "error::DeprecationWarning:pyroccam", "-c", code]
    said = subprocess.run(call, capture_output=True, text=True, check=True)
    assert not {*slow, "matplotlib"} & {*said.stdout.split()}
    assert all(hasattr(inference, name) for name in inference.__all__)
