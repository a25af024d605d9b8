import json
import random
import signal
import threading

import numpy as np
import pyro
import pytest
import torch
from fitting import QUICK, assert_same, blobs, pair, run
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.posterior import exact_depth_posterior, total_variation
from pyroccam.inference.posterior.depth import choose_depth
from pyroccam.inference.storage.checkpoint import load_checkpoint
from pyroccam.inference.storage.digests import DamagedFile
from pyroccam.inference.training import trainer as trainer_module
from pyroccam.inference.training.trainer import Trainer
from safetensors.torch import load_file
from torch import nn

# -- seeds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_the_same_seed_gives_the_same_fit_bit_for_bit(update):
    one = run(update=update)
    torch.rand(7)  # the state of the global generator must not matter
    assert_same(one, run(update=update))
    other = run(update=update, seed=4)
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert any(not torch.equal(p, q) for p, q in pairs)


def test_global_state_is_left_as_it_was():
    rows = blobs()
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002 the legacy state is what is tested
    random.seed(123)
    legacy = np.random.get_state()[1].tolist()  # noqa: NPY002
    states = torch.get_rng_state(), legacy, random.getstate()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run(rows, epochs=2)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert random.getstate() == states[2]
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    assert torch.is_grad_enabled()
    assert pyro.settings.get("module_local_params") is False
    assert len(pyro.get_param_store()) == 0
    assert pyro.settings.get("validate_poutine") is True
    assert pyro.settings.get("validate_infer") is True


# -- what q becomes ---------------------------------------------------------------------------


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
        assert s.tv_running < 0.1  # so is the running estimate, nearly
        assert s.tv_running > s.tv_to_exact  # minibatches: an estimate, and not the same
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


def test_marginal_likelihood_runs_on_the_full_batch():
    rows = blobs()
    model, _ = pair(rows)
    found = inference.fit(model, guides.Marginal(model), rows, **{**QUICK, "batch_size": 54})
    expected = exact_depth_posterior(model, rows)
    torch.testing.assert_close(found.weights.double(), expected, atol=1e-6, rtol=0)
    assert found.structure.tv_to_exact < 1e-6


def test_regression():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(90, 1, generator=generator) * 4 - 2
    y = 5 + 3 * x.abs() + 0.1 * torch.randn(90, 1, generator=generator)  # no line fits it
    rows = data.Dataset.from_tensors(x[:60], y[:60], x[60:], y[60:])
    torch.manual_seed(0)
    # Smooth: a unit that is dead on the training rows alone, behind a normalisation, can throw a
    # test row far off.
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    model = models.LearntDepth(nn.Linear(1, 8), blocks, nn.Linear(8, 1), data=rows)
    noise = model.likelihood.log_scale.clone()
    found = inference.fit(model, guides.CategoricalDepth(model), rows, **{**QUICK, "epochs": 40})
    scores = found.evaluate("test")
    assert scores["rmse"] < 0.4 * float(rows.y_std)  # the mean alone gives 1.0
    assert not torch.equal(noise, model.likelihood.log_scale)
    mean = found.predict(rows.x_test)
    rmse = float((mean - rows.y_test).square().mean().sqrt() * rows.y_std)
    assert scores["rmse"] == pytest.approx(rmse, rel=1e-5)
    assert found.structure.depth_probs[0] < 0.05  # depth 0 is a line


def test_fixed_depth():
    rows = blobs()
    fixed = pair(rows)[0].at_depth(2)
    found = inference.fit(fixed, guides.Deterministic(fixed), rows, **{**QUICK, "epochs": 20})
    assert found.structure is None
    assert found.weights.tolist() == [1.0]
    assert found.evaluate("test")["accuracy"] > 0.9


def test_predictions_are_log_probabilities_of_the_mixture():
    found = run()
    log_p = found.predict(found.data.x_test)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(30))
    with torch.no_grad():
        exits = found.model.stack.outputs(found.data.x_test).softmax(-1)
    torch.testing.assert_close(log_p.exp(), (found.weights[:, None, None] * exits).sum(0))
    scores = found.evaluate("test")
    y = found.data.y_test
    assert scores["accuracy"] == pytest.approx(float((log_p.argmax(-1) == y).double().mean()))
    assert scores["nll"] == pytest.approx(-float(log_p[torch.arange(30), y].mean()), abs=1e-5)


# -- what cannot be run -----------------------------------------------------------------------


def of_marginal(model, rows):
    return guides.Marginal(model)


def at_depth_one(update):
    def make(model, rows):
        return guides.CategoricalDepth(
            models.LearntDepth.mlp(rows, width=4, max_depth=1), update=update
        )

    return make


def of_fixed(model, rows):
    return guides.Deterministic(model.at_depth(1))


def usual(model, rows):
    return guides.CategoricalDepth(model)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (usual, {"kl_warmup": 0.2}),
        (usual, {"kl_weight": 0.5}),
        (usual, {"epoch": 3}),
        (of_marginal, {}),
        (of_marginal, {"batch_size": 54, "kl_warmup": 0.5}),
        (at_depth_one("closed"), {}),
        (at_depth_one("gradient"), {}),
        (of_fixed, {}),
    ],
)
def test_what_cannot_be_fitted(make, settings):
    rows = blobs()
    model, _ = pair(rows)
    with pytest.raises(PyroccamError):
        inference.fit(model, make(model, rows), rows, **{**QUICK, **settings})


def test_fixed_depths_and_other_data_that_cannot_be_fitted():
    rows = blobs()
    model, guide = pair(rows)
    fixed = model.at_depth(1)
    with pytest.raises(PyroccamError):
        inference.fit(model, guide, blobs(n=50), **QUICK)
    with pytest.raises(PyroccamError):
        inference.fit(fixed, guide, rows, **QUICK)
    with pytest.raises(PyroccamError):
        inference.fit(fixed, guides.Deterministic(fixed), rows, **{**QUICK, "kl_warmup": 0.5})


# -- what is written --------------------------------------------------------------------------


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


def test_the_bar_is_silent_where_nobody_watches(capfd, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    run(epochs=2, progress=None)
    assert capfd.readouterr() == ("", "")
    run(epochs=2, progress=True, label="my run")
    out, err = capfd.readouterr()
    assert out == ""
    assert "my run" in err


def test_repeats_differ_in_their_seed_and_show_their_spread(tmp_path):
    def build(seed):
        rows = blobs()
        model = models.LearntDepth.mlp(rows, width=4, max_depth=1)
        return model, guides.CategoricalDepth(model), rows

    few = {k: v for k, v in QUICK.items() if k != "seed"}
    repeats = inference.fit_repeats(build, [0, 1], out=tmp_path, **few)
    assert [f.settings.seed for f in repeats.fits] == [0, 1]
    assert (tmp_path / "checkpoint.pt").exists()  # of both
    assert (tmp_path / "seed-1" / "fit.json").exists()
    one, two = (f.model.stack.stem[1].weight for f in repeats.fits)
    assert not torch.equal(one, two)
    nll = [f.evaluate()["nll"] for f in repeats.fits]
    spread = repeats.spread()["nll"]
    assert spread["mean"] == pytest.approx(sum(nll) / 2)
    assert spread["n"] == 2


def test_runs_outside_the_main_thread(monkeypatch):
    """Signals can be handled in the main thread alone; elsewhere a fit works without."""
    found = []
    thread = threading.Thread(target=lambda: found.append(run(epochs=2)))
    thread.start()
    thread.join()
    assert len(found[0].history) == 2
    assert trainer_module.StopSignal is not None


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_looking_does_not_change_what_is_trained(update, tmp_path, monkeypatch):
    """The exact step is for the checkpoint alone: the weights do not know how often one looks."""
    monkeypatch.setattr(Trainer, "settle", lambda _: None)  # it forgets the last weights
    states = []
    for evaluations in (1, 8):
        out = tmp_path / str(evaluations)
        run(out=out, update=update, evaluations=evaluations)
        saved = load_checkpoint(out, torch.device("cpu"))
        states.append(saved["replicates"][0])
    for part in ("model", "guide"):
        for name, value in states[0][part].items():
            assert torch.equal(value, states[1][part][name]), name
    assert len(states[1]["history"]) == 8


def test_a_finished_fit_keeps_its_weights_once(tmp_path):
    found = run(out=tmp_path)
    kept = load_checkpoint(tmp_path, torch.device("cpu"))
    (one,) = kept["replicates"]
    assert not {"model", "guide", "good"} & {*kept, *one, *one["best"]}
    assert "optimizer" not in kept
    before = (tmp_path / "model.safetensors").read_bytes()
    again = run(out=tmp_path, resume=True)
    assert_same(found, again)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    (tmp_path / "model.safetensors").write_bytes(before[:-4] + bytes(4))
    with pytest.raises(DamagedFile, match=r"model.safetensors is not what was written"):
        run(out=tmp_path, resume=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(inference.CheckpointError, match=r"finished fit, but its model.safetensors"):
        run(out=tmp_path, resume=True)


def test_a_fit_does_not_write_over_another(tmp_path):
    run(out=tmp_path, epochs=1)
    with pytest.raises(FileExistsError, match="resume=True"):
        run(out=tmp_path, epochs=1)
