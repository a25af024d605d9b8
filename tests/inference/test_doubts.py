"""Fits that say themselves that they are not to be believed."""

import dataclasses
import unittest.mock

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.inference.posterior import DepthStructure
from pyroccam.inference.training.doubts import doubts
from torch import nn

QUICK = {"progress": False, "device": "cpu", "seed": 0, "weight_decay": 0.0, "evaluations": 20}


def rows(task="regression", signal=3.0, targets=2):
    """Of two targets the second is noise alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=generator)
    y = torch.randn(80, 2, generator=generator)
    y[:, 0] += signal * x[:, 0]
    y = (y[:, 0] > 0).long() if task == "classification" else y[:, :targets]
    return Dataset.from_tensors(x, y, x, y, val_fraction=0.3)


def depth_fit(data, epochs=150, guide=None, **settings):
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(data, width=30, max_depth=2)
    guide = guides.CategoricalDepth(model, **guide or {})
    return inference.fit(model, guide, data, epochs=epochs, **{**QUICK, **settings})


def said_of(fit, words):
    return [text for text in fit.warnings if words in text]


@pytest.fixture(scope="module")
def slow():
    return depth_fit(rows(signal=1.0), lr=0.03)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_nothing_is_said_of_a_network_that_has_learnt(task):
    data = rows(task, targets=1)
    torch.manual_seed(0)
    net = nn.Linear(3, data.outputs)
    model = models.BayesianNetwork(net, data, prior=models.priors.Normal())
    assert inference.fit(model, guides.Delta(model), data, epochs=60, **QUICK).warnings == []


def test_what_is_not_learnt_is_named():
    fit = depth_fit(rows())
    (said,) = said_of(fit, "no better than the mean")
    x, y = fit.data.split("val")
    rmse = (((fit.predict(x) - y)[:, 1] * fit.data.y_std[1]) ** 2).mean().sqrt()
    assert f"of target 1: RMSE {float(rmse):.4g} on the validation rows" in said
    (said,) = said_of(depth_fit(rows("classification", signal=0.0)), "no better than")
    assert "the shares of the classes" in said
    fit = depth_fit(rows(signal=0.0).all_rows(), epochs=1, lr=1e-9)  # where there are no others
    assert said_of(fit, "on the training rows")


def test_a_network_that_is_often_right_and_too_sure_has_learnt():
    """One row of 24 costs 30 nats, all others nothing: worse than the shares by its loss alone."""
    fit = depth_fit(rows("classification"), epochs=40)
    _, y = fit.data.split("val")
    sure = torch.full((len(y), 2), -30.0).scatter(1, y[:, None], 0.0)
    sure[0] = sure[0].flip(0)
    guess = torch.full((len(y), 2), -30.0)
    guess[:, int(y.bincount().argmax())] = 0.0  # right as often as the commonest class
    costs = "worse than the shares of the classes"
    for predicted, words in ((sure, costs), (guess, "no better than the shares of the classes")):
        with unittest.mock.patch.object(type(fit), "predicted", return_value=predicted):
            assert words in doubts(fit)[0]


def test_a_regression_that_is_near_and_too_sure():
    fit = depth_fit(rows(targets=1))
    data = fit.data
    assert not said_of(fit, "too sure")
    with torch.no_grad():
        for parameter in fit.model.likelihood.parameters():
            parameter.fill_(-6.0)  # a deviation far below the errors
    (said,) = said_of(fit, "too sure")
    known, held = (y.double() * data.y_std + data.y_mean for y in (data.y_train, data.y_val))
    alone = -torch.distributions.Normal(known.mean(), known.std()).log_prob(held).mean()
    found = fit.evaluate("val")["nll"]
    assert f"{found:.3f} nats on the validation rows, {float(alone):.3f} for a normal" in said


def test_the_first_checkpoint_that_could_be_chosen(slow):
    late = [row for row in slow.history if row["epoch"] >= 0.75 * 150]
    last = dataclasses.replace(slow.settings, checkpoint="last")
    for settings, best, said in ((slow.settings, 0, 1), (slow.settings, 3, 0), (last, 0, 0)):
        epoch = int(late[best]["epoch"])
        fit = dataclasses.replace(slow, history=late, settings=settings, best_epoch=epoch)
        assert len(said_of(fit, f"epoch {epoch} of 150: earlier ones")) == said


def test_validation_rows_that_were_predicted_better_before(slow):
    history = [{**row, "val_nll": 2.0} for row in slow.history]
    fit = dataclasses.replace(slow, history=history, val_nll=2.0, best_epoch=120)
    before = next(k for k, row in enumerate(history) if row["epoch"] >= 30)
    history[before]["val_nll"] = 1.96
    assert not said_of(fit, "validation NLL was")
    history[before]["val_nll"] = 1.7
    (said,) = said_of(fit, "validation NLL was")
    epoch = round(history[before]["epoch"])
    assert f"was 1.700 at epoch {epoch} and is 2.000 at epoch 120" in said
    assert "from epoch 112 on" in said  # three quarters of 150
    history[before]["val_nll"], history[-1]["val_nll"] = 2.0, 1.0  # later, it could be chosen
    assert not said_of(fit, "validation NLL was")


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_a_depth_that_has_not_arrived(update):
    fit = depth_fit(rows(signal=1.0), epochs=40, guide={"update": update})
    exact, closed = fit.structure.exact_depth_probs, update == "closed"
    for q in (exact, exact.roll(1)):
        moved = DepthStructure.from_probs(
            exact if closed else q, exact, running=q if closed else None
        )
        said = said_of(dataclasses.replace(fit, structure=moved), "not arrived")
        tv = 0.5 * float((q - exact).abs().sum())
        assert bool(said) is (tv > 0.2)
    assert f"{tv:.2f} in total variation from the exact" in said[0]
    assert ("running estimate" in said[0]) is closed


@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_noise_that_collapses_without_validation_rows(noise):
    """Of validation rows the noise is theirs, and nothing is said."""
    said = []
    for data in (rows(), rows().all_rows()):
        model = models.BayesianNetwork(nn.Linear(3, 2), data, prior=models.priors.Normal())
        fit = inference.fit(model, guides.Delta(model), data, epochs=1, **QUICK)
        fit.model.likelihood.log_scale.data.fill_(noise).log_()
        said.append(bool(said_of(fit, "collapsed")))
    assert said == [False, noise < 0.05]


def test_of_a_target_that_is_constant_nothing_is_asked():
    data = rows(signal=1.0, targets=2)
    ys = {f"y_{split}": data.split(split)[1].clone() for split in ("train", "val", "test")}
    for y in ys.values():
        y[:, 1] = 0.0
    assert not said_of(depth_fit(data.but(**ys), lr=0.03, epochs=40), "no better than the mean")
