"""Fits that say themselves that they are not to be believed."""

import dataclasses
import unittest.mock

import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import Dataset
from pyroccam.inference.posterior.depth import DepthStructure
from pyroccam.inference.training.doubts import doubts
from torch import nn

QUICK = {"progress": False, "device": "cpu", "seed": 0, "weight_decay": 0.0, "evaluations": 20}


def rows(task="regression", signal=3.0, n=80, **options):
    """Of two targets the second is noise alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    y = torch.randn(n, 2, generator=generator)
    y[:, 0] += signal * x[:, 0]
    y = (y[:, 0] > 0).long() if task == "classification" else y
    return Dataset.from_tensors(x, y, x, y, val_fraction=0.3, **options)


def depth_fit(data, epochs=40, **settings):
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(data, width=30, max_depth=2)
    guide = guides.CategoricalDepth(model)
    return inference.fit(model, guide, data, epochs=epochs, **{**QUICK, **settings})


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_nothing_is_said_of_a_network_that_has_learnt(task):
    data = rows(task)
    if task == "regression":
        y = {f"y_{split}": data.split(split)[1][:, :1] for split in ("train", "val", "test")}
        scale = {name: getattr(data, name)[:1] for name in ("y_mean", "y_std")}
        data = dataclasses.replace(data, **y, **scale)
    torch.manual_seed(0)
    net = nn.Linear(3, data.outputs)
    model = models.BayesianNetwork(net, data, prior=models.priors.Normal())
    assert inference.fit(model, guides.Delta(model), data, epochs=60, **QUICK).warnings == []


def test_a_target_that_is_not_learnt_is_named():
    fit = depth_fit(rows(), epochs=150)
    said = [text for text in fit.warnings if "no better than the mean" in text]
    assert len(said) == 1
    assert "no better than the mean of target 1: RMSE" in said[0]
    x, y = fit.data.split("val")
    rmse = (((fit.predict(x) - y)[:, 1] * fit.data.y_std[1]) ** 2).mean().sqrt()
    assert f"RMSE {float(rmse):.4g} on the validation rows" in said[0]


def test_classes_that_are_not_learnt():
    fit = depth_fit(rows("classification", signal=0.0), epochs=150)
    (said,) = [text for text in fit.warnings if "no better than" in text]
    assert "the shares of the classes" in said


def test_a_network_that_is_often_right_and_too_sure_has_learnt():
    """One row of 24 costs 30 nats, all others nothing: worse than the shares by its loss alone."""
    fit = depth_fit(rows("classification"), epochs=40)
    _, y = fit.data.split("val")
    sure = torch.full((len(y), 2), -30.0).scatter(1, y[:, None], 0.0)
    sure[0] = sure[0].flip(0)
    assert -float(sure.gather(1, y[:, None]).mean()) > 1
    (said,) = _found(fit, sure)
    assert "too sure of itself: its probabilities are worse than the shares" in said
    assert f"{30 / len(y):.3f} nats on the validation rows" in said
    guess = torch.full((len(y), 2), -30.0)
    guess[:, int(y.bincount().argmax())] = 0.0  # right as often as the commonest class
    (said,) = _found(fit, guess)
    assert "no better than the shares of the classes" in said


def test_a_regression_that_is_near_and_too_sure():
    data = rows()
    y = {f"y_{split}": data.split(split)[1][:, :1] for split in ("train", "val", "test")}
    data = dataclasses.replace(data, **y, y_mean=data.y_mean[:1], y_std=data.y_std[:1])
    fit = depth_fit(data, epochs=150)
    assert not any("too sure" in text for text in fit.warnings)
    with torch.no_grad():
        for parameter in fit.model.likelihood.parameters():
            parameter.fill_(-6.0)  # a deviation far below the errors
    (said,) = [text for text in fit.warnings if "too sure" in text]
    found = fit.evaluate("val")["nll"]
    known = data.y_train.double() * data.y_std + data.y_mean
    held = data.y_val.double() * data.y_std + data.y_mean
    alone = -torch.distributions.Normal(known.mean(), known.std()).log_prob(held).mean()
    assert f"{found:.3f} nats on the validation rows, {float(alone):.3f} for a normal" in said


def _found(fit, log_probabilities):
    with unittest.mock.patch.object(type(fit), "predict", return_value=log_probabilities):
        return [t for t in doubts(fit) if "no better than" in t or "too sure" in t]


def test_the_first_checkpoint_that_could_be_chosen():
    fit = depth_fit(rows(signal=1.0), epochs=150, lr=0.03)
    half = [row for row in fit.history if row["epoch"] >= 0.75 * 150]
    fit = dataclasses.replace(fit, history=half)  # what came before is spoken of by itself
    first = dataclasses.replace(fit, best_epoch=int(half[0]["epoch"]))
    assert any(f"epoch {first.best_epoch} of 150: earlier ones" in t for t in first.warnings)
    later = dataclasses.replace(fit, best_epoch=int(half[3]["epoch"]))
    assert not any("first that could be chosen" in text for text in later.warnings)
    last = dataclasses.replace(first, settings=dataclasses.replace(fit.settings, checkpoint="last"))
    assert not any("first that could be chosen" in text for text in last.warnings)


def test_validation_rows_that_were_predicted_better_before():
    fit = depth_fit(rows(signal=1.0), epochs=150, lr=0.03)
    history = [{**row, "val_nll": 2.0} for row in fit.history]
    fit = dataclasses.replace(fit, history=history, val_nll=2.0, best_epoch=120)
    before = next(k for k, row in enumerate(history) if row["epoch"] >= 30)
    for better, said in ((0.04, False), (0.3, True)):
        history[before]["val_nll"] = 2.0 - better
        found = [text for text in fit.warnings if "validation NLL was" in text]
        assert bool(found) is said
    epoch = round(history[before]["epoch"])
    assert f"was 1.700 at epoch {epoch} and is 2.000 at epoch 120" in found[0]
    assert "from epoch 112 on" in found[0]  # three quarters of 150
    history[before]["val_nll"], history[-1]["val_nll"] = 2.0, 1.0  # later, it could be chosen
    assert not any("validation NLL was" in text for text in fit.warnings)


@pytest.mark.parametrize("update", ["closed", "gradient"])
def test_a_depth_that_has_not_arrived(update):
    data = rows(signal=1.0)
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(data, width=30, max_depth=2)
    guide = guides.CategoricalDepth(model, update=update)
    fit = inference.fit(model, guide, data, epochs=40, **QUICK)
    exact = fit.structure.exact_depth_probs
    for q in (exact, exact.roll(1)):
        closed = update == "closed"
        moved = DepthStructure.from_probs(
            exact if closed else q, exact, running=q if closed else None
        )
        said = [t for t in dataclasses.replace(fit, structure=moved).warnings if "not arrived" in t]
        tv = 0.5 * float((q - exact).abs().sum())
        assert bool(said) is (tv > 0.2)
    assert tv > 0.2
    assert f"{tv:.2f} in total variation from the exact" in said[0]
    assert ("running estimate" in said[0]) is closed


def test_of_the_training_rows_where_there_are_no_others():
    data = rows(signal=0.0).all_rows()
    torch.manual_seed(0)
    model = models.LearntDepth.mlp(data, width=4, max_depth=1)
    fit = inference.fit(
        model, guides.CategoricalDepth(model), data, epochs=1, **{**QUICK, "lr": 1e-9}
    )
    assert any("on the training rows" in text for text in fit.warnings)


@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_noise_that_collapses_without_validation_rows(noise):
    """Of validation rows the noise is theirs, and nothing is said."""
    said = []
    for data in (rows(), rows().all_rows()):
        model = models.BayesianNetwork(nn.Linear(3, 2), data, prior=models.priors.Normal())
        fit = inference.fit(model, guides.Delta(model), data, epochs=1, **QUICK)
        fit.model.likelihood.log_scale.data.fill_(noise).log_()
        said.append(any("collapsed" in text for text in fit.warnings))
    assert said == [False, noise < 0.05]
