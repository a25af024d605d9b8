"""Fits of Bayesian networks, whole: what they keep, how they go on, how they predict."""

import math
import os
import signal

import pytest
import torch
from bayesian import QUICK, bayesian, noisy_net
from fitting import assert_same, fit_weights, spy
from pyroccam import guides, inference
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.posterior.draws import draw_outputs
from pyroccam.inference.storage.checkpoint import (
    CheckpointError,
)
from pyroccam.inference.training.optimizer import parameter_groups
from pyroccam.models import priors
from pyroccam.models.bayesian import BayesianNetwork
from random_weights import assert_same_means, table
from torch import nn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# -- predictions ------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_fit_predicts(task):
    rows = table(task)
    fit = inference.fit(*bayesian(rows), rows, **{**QUICK, "epochs": 25})
    found = fit.evaluate()
    x, y = rows.split("test")
    out = draw_outputs(fit.model, fit.guide, x, 20, seed=3)
    torch.testing.assert_close(fit.outputs(x), out)
    torch.testing.assert_close(fit.weights, torch.full((20,), 0.05))
    if task == "classification":
        log_p = out.log_softmax(-1).exp().mean(0).log()
        torch.testing.assert_close(fit.predict(x), log_p)
        nll = -log_p[torch.arange(len(y)), y].mean()
        assert found["accuracy"] > 0.8
    else:
        scale = fit.model.likelihood.scale.detach()
        torch.testing.assert_close(fit.predict(x), out.mean(0))
        log_p = torch.distributions.Normal(out, scale).log_prob(y)[..., 0]
        nll = -(log_p.logsumexp(0) - math.log(20)).mean() + rows.y_std.log()
        assert found["rmse"] < 0.8 * float(rows.y_std)
    assert found["nll"] == pytest.approx(float(nll), rel=1e-4)
    assert fit.structure is None


def test_ways_to_predict():
    rows = table()
    fit = inference.fit(*bayesian(rows, priors.LogUniform()), rows, **QUICK)
    x, y = rows.split("test")
    one = fit.evaluate("test", "stochastic", draws=30)
    out = fit.outputs(x, draws=30)
    log_p = out.log_softmax(-1)[:, torch.arange(len(y)), y]
    assert one["nll"] == pytest.approx(-float(log_p.mean()), rel=1e-5)
    assert one["accuracy"] == pytest.approx(float((out.argmax(-1) == y).double().mean()))
    assert fit.predict(x, "stochastic").shape == (len(x), 2)
    mean = fit.posterior.mean_network()(x).log_softmax(-1)
    torch.testing.assert_close(fit.predict(x, "deterministic"), mean, check_layout=False)
    ways = fit.evaluate_ways(draws=30)
    assert list(ways) == ["stochastic", "deterministic", "ensemble"]
    for how, found in ways.items():
        assert found == pytest.approx(fit.evaluate("test", how, draws=30))
    with pytest.raises(PyroccamError):
        fit.outputs(x, "mean")


def test_dropout_is_noise_of_draws_and_not_of_means():
    """Networks with dropout and a point estimate: Monte Carlo dropout."""
    rows = table()
    model, guide = bayesian(rows, priors.Normal(), guides.Delta, noisy_net())
    fit = inference.fit(model, guide, rows, **QUICK)
    x, _ = rows.split("test")
    for noise in ("weights", "activations") if guide.handler else ("weights",):
        drawn = fit.outputs(x, draws=300, noise=noise)
        assert float(drawn.std(0).min()) > 0
    net = inference.posterior.layers.mean_network(model, guide)
    with torch.no_grad():
        torch.testing.assert_close(fit.outputs(x, "deterministic")[0], net(x))
        dropout = net[3].train()
        by_hand = torch.stack([net[4](dropout(net[:3](x))) for _ in range(300)])
    assert_same_means(drawn, by_hand)
    assert not any(part.training for part in model.modules())


# -- what is kept, and what is trained --------------------------------------------------------


def test_validation_is_by_the_mean_network():
    rows = table()
    fit = inference.fit(*bayesian(rows, net=noisy_net()), rows, **QUICK)
    x, y = rows.split("val")
    log_p = fit.posterior.mean_network()(x).log_softmax(-1).detach()
    expected = -float(log_p[torch.arange(len(y)), y].mean())
    assert fit.val_nll == pytest.approx(expected, rel=1e-5)
    drawn_nll = fit.evaluate("val")["nll"]
    assert fit.val_nll != pytest.approx(drawn_nll, rel=1e-5)


@pytest.mark.parametrize("guide", [guides.MeanField, guides.Delta])
def test_the_last_checkpoint_of_random_weights_and_the_best_on_request(guide):
    """Where the best is an early one: at this learning rate the loss goes up and down."""
    rows = table()
    prior = priors.Normal()

    def fit(**more):
        settings = {**QUICK, "epochs": 12, "lr": 0.3, "schedule": "constant", **more}
        return inference.fit(*bayesian(rows, prior, guide), rows, **settings)

    last, best = fit(), fit(checkpoint="best")
    values = [row["val_nll"] for row in last.history]
    assert last.best_epoch == len(values) == 12
    assert last.val_nll == pytest.approx(values[-1])
    assert best.best_epoch == 1 + values.index(min(values)) < 12
    assert best.val_nll == pytest.approx(min(values))
    impatient = fit(patience=2)  # counted from the lowest value, though the last is kept
    lows = [min(values[: i + 1]) for i in range(len(values))]
    stop = next(i + 1 for i in range(2, 12) if lows[i] == lows[i - 2])
    assert len(impatient.history) == impatient.best_epoch == stop


def test_what_is_decayed():
    """Weights that are numbers; not the posterior, nor what a prior learns."""
    rows = table("regression")
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model = BayesianNetwork(net, rows, prior=priors.Normal(learn="layer"), layers=["1"])
    guide = guides.MeanField(model)
    groups = {g["name"]: g for g in parameter_groups(inference.Settings(), model, guide)}
    assert {n: len(g["params"]) for n, g in groups.items()} == {
        "weights": 2,
        "noise": 1,
        "prior": 2,
        "posterior": 4,
    }
    decayed = [name for name, g in groups.items() if g["weight_decay"]]
    assert decayed == ["weights"]
    assert all(g["scheduled"] for g in groups.values())


def test_what_is_tracked_stands_in_the_history(tmp_path):
    rows = table()
    seen = []

    def track(model, guide, data):
        assert not model.training
        seen.append(float(torch.rand(())))
        return {"noise": seen[-1]}

    options = {**QUICK, "epochs": 3, "evaluations": 3}
    plain = inference.fit(*bayesian(rows), rows, **options)
    fit = inference.fit(*bayesian(rows), rows, track=track, out=tmp_path, **options)
    assert [row["noise"] for row in fit.history] == seen
    assert [row["loss"] for row in fit.history] == [row["loss"] for row in plain.history]
    assert (tmp_path / "history.csv").read_text().startswith("epoch,loss,val_nll,noise")


# -- going on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [priors.GroupNormalJeffreys(), priors.SharedNormal()], ids=str)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(prior, tmp_path, monkeypatch):
    rows = table()

    def attempt(**more):
        return inference.fit(*bayesian(rows, prior, net=noisy_net()), rows, **{**QUICK, **more})

    def kill(trainer):
        if trainer.step_number == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = attempt()
    with monkeypatch.context() as patch:
        spy(patch, "_step", before=kill)
        with pytest.raises(inference.Interrupted, match="after step 8 of 18"):
            attempt(out=tmp_path)
    torch.rand(5)
    assert_same(whole, attempt(out=tmp_path, resume=True))


def test_another_prior_or_guide_does_not_go_on(tmp_path, monkeypatch):
    rows = table()

    def stop(trainer):
        if trainer.step_number == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        spy(patch, "_step", before=stop)
        with pytest.raises(inference.Interrupted):
            inference.fit(*bayesian(rows, priors.Normal(1.0)), rows, out=tmp_path, **QUICK)
    again = {"out": tmp_path, "resume": True, **QUICK}
    with pytest.raises(CheckpointError, match="another prior"):
        inference.fit(*bayesian(rows, priors.Normal(0.5)), rows, **again)
    with pytest.raises(CheckpointError, match="another guide"):
        inference.fit(*bayesian(rows, priors.Normal(1.0), local=False), rows, **again)
    inference.fit(*bayesian(rows, priors.Normal(1.0)), rows, **again)


def test_a_prior_of_another_kind_is_not_gone_on_with(tmp_path):
    """Where neither holds a number of its own."""
    settings = {"out": tmp_path, "epochs": 1}
    fit_weights(priors.ARD(), **settings)
    with pytest.raises(CheckpointError, match="another prior"):
        fit_weights(priors.SharedNormal(), **settings, resume=True)
