"""The network with which a posterior begins: trained as numbers at several rates."""

import dataclasses

import pytest
import torch
from fitting import blobs
from pyroccam import guides, models
from pyroccam.cli.runs.building import untrained
from pyroccam.data import Dataset
from pyroccam.inference.storage.checkpoint import CheckpointError
from pyroccam.inference.training import numbers
from pyroccam.inference.training.numbers import NUMBERS, as_numbers
from pyroccam.inference.training.ordinary import RATES, retrain, row_losses
from pyroccam.inference.training.settings import Settings
from torch import nn


def line(rows=400, noise=0.1):
    """Targets of a known line, with noise."""
    torch.manual_seed(0)
    x = torch.randn(rows, 3)
    y = x @ torch.tensor([[0.5], [-1.0], [0.25]]) + noise * torch.randn(rows, 1)
    return Dataset.from_tensors(x[:-50], y[:-50], x[-50:], y[-50:], val_fraction=0.25)


def fresh(data, net=None):
    """The fit of a pair that was not trained."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(data.x_train.shape[1], data.outputs)) if net is None else net
    model = models.BayesianNetwork(net, data, prior=models.priors.Normal(1.0))
    settings = Settings.of({"epochs": 1, "batch_size": 32, "seed": 3})
    return untrained((model, guides.MeanField(model)), data, settings)


def hidden(data):
    return nn.Sequential(
        nn.Linear(data.x_train.shape[1], 16), nn.ReLU(), nn.Linear(16, data.outputs)
    )


def test_a_line_is_found_and_its_noise():
    """Least squares of the training rows, and the errors of the validation rows around that."""
    data = line()
    found = as_numbers(fresh(data), 60)
    one = torch.cat([data.x_train, torch.ones(len(data.x_train), 1)], 1)
    weights = torch.linalg.lstsq(one, data.y_train).solution
    torch.testing.assert_close(found.net[0].weight.detach(), weights[:3].T, atol=0.02, rtol=0)
    errors = found.net(data.x_val).detach() - data.y_val
    spread = float((errors.square().sum() / (len(errors) - 2)).sqrt())
    assert float(found.likelihood.scale.detach()) == pytest.approx(spread, rel=1e-3)


def test_the_best_rate_of_those_tried():
    data = blobs(n=400)
    fit = fresh(data, hidden(data))
    found = as_numbers(fit, 3)
    for rate in RATES:
        again = retrain(fit.model.start_network(), fit, 3, (rate,))
        assert found.tried[rate] == pytest.approx(float(again.losses.mean()))
    assert found.tried[found.lr] == min(found.tried.values())
    assert float(row_losses(found.net, fit).mean()) == pytest.approx(found.tried[found.lr])


def test_a_network_given_trained_stays_where_training_makes_it_worse():
    data = blobs(n=400)
    given = as_numbers(fresh(data, hidden(data)), 40)
    again = as_numbers(fresh(data, given.net), 1)
    at_best = min(given.tried.values())
    if again.lr is None:
        assert float(row_losses(again.net, fresh(data)).mean()) == pytest.approx(at_best)
    assert float(row_losses(again.net, fresh(data)).mean()) <= at_best + 1e-6


def test_what_was_tried_is_not_tried_again(tmp_path, monkeypatch):
    data = blobs(n=400)
    net = hidden(data)
    whole = as_numbers(fresh(data, net), 3, out=tmp_path / "whole")
    train, tried = numbers.trained, []

    def broken(net, fit, epochs, rate):
        if len(tried) == 2:
            raise KeyboardInterrupt
        tried.append(rate)
        return train(net, fit, epochs, rate)

    monkeypatch.setattr(numbers, "trained", broken)
    with pytest.raises(KeyboardInterrupt):
        as_numbers(fresh(data, net), 3, out=tmp_path)
    tried.clear()
    found = as_numbers(fresh(data, net), 3, out=tmp_path)
    assert tried == [RATES[2]]
    assert found.tried == whole.tried
    assert found.lr == whole.lr
    for a, b in zip(found.net.parameters(), whole.net.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("content", [b"", b"nothing of this kind", None])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    data = blobs(n=400)
    if content is None:  # a network of another width
        other = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, data.outputs))
        as_numbers(fresh(data, other), 1, out=tmp_path)
    else:
        (tmp_path / NUMBERS).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"numbers\.safetensors holds no network of this run"):
        as_numbers(fresh(data, hidden(data)), 1, out=tmp_path)


def test_without_validation_rows_there_is_one_training():
    """To its end, and the noise is that of the training rows."""
    rows = line()
    data = dataclasses.replace(rows.all_rows(), x_val=rows.x_val[:0], y_val=rows.y_val[:0])
    found = as_numbers(fresh(data), 60)
    assert found.tried == {RATES[1]: None}
    assert found.lr == RATES[1]
    errors = found.net(data.x_train).detach() - data.y_train
    spread = float((errors.square().sum() / (len(errors) - 2)).sqrt())
    assert float(found.likelihood.scale.detach()) == pytest.approx(spread, rel=1e-2)
    assert spread < 0.3
