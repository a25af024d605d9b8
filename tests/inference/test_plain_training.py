"""The training of numbers beside the same training written out in torch."""

import copy
import dataclasses
import math

import pytest
import torch
from fitting import blobs, fit_weights
from pyroccam.data import Dataset
from pyroccam.inference.training.ordinary import retrain, row_losses, trained, trainer_of
from pyroccam.inference.training.teacher import Teacher
from pyroccam.inference.training.terminal import FitProgress, StopSignal
from pyroccam.models import priors
from torch import nn


def table():
    """Rows of a regression, with a weight for each."""
    made = torch.Generator().manual_seed(1)
    x = torch.randn(90, 5, generator=made)
    y = x[:, :3] ** 2 + 0.1 * torch.randn(90, 3, generator=made)
    weights = torch.rand(60, generator=made) + 0.5
    return Dataset.from_tensors(x[:60], y[:60], x[60:], y[60:], weights=weights, val_fraction=0.3)


def network(inputs, outputs):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(inputs, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs)
    )
    with torch.no_grad():
        net[0].weight[:2] = 0.0
        net[3].bias[0] = 0.0
    return net


def written_out(net, like, fit, teacher, epochs, lr):
    """Losses by the formulas of densities, clipping by torch, zeros by hand."""
    data, size, rows = fit.data, fit.settings.batch_size, []
    net, like = copy.deepcopy(net).train(), copy.deepcopy(like).requires_grad_(True)
    free, noise = [*net.parameters()], [*like.parameters()]
    zeros = [(p, p == 0) for p in free if p.dim() > 1]
    groups = [{"params": free, "weight_decay": 0.01}]
    groups += [{"params": noise, "weight_decay": 0.0}] * bool(noise)
    optimizer = torch.optim.AdamW(groups)
    for epoch in range(epochs):
        rows += data.order(fit.settings.seed, epoch).split(size)
    for done, own in enumerate(rows):
        out, y = net(data.x_train[own]), data.y_train[own]
        said = None if teacher is None else teacher.train[own]
        if data.task == "classification":
            losses = nn.functional.cross_entropy(out, y, reduction="none")
            theirs = None if said is None else -(said * out.log_softmax(-1)).sum(-1)
        else:
            sd, each = like.scale, [y] if said is None else [y, said]
            losses, theirs = [
                (((out - t) / sd).square() / 2 + sd.log() + math.log(2 * math.pi) / 2).sum(-1)
                for t in each
            ] + [None] * (2 - len(each))
        losses = losses if theirs is None else (losses + theirs) / 2
        if data.weights is not None:
            losses = losses * data.weights[own]
        optimizer.zero_grad()
        losses.mean().backward()
        nn.utils.clip_grad_norm_([*free, *noise], 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * math.cos(math.pi * done / len(rows) / 2) ** 2
        optimizer.step()
        for p, zero in zeros:
            p.data.masked_fill_(zero, 0.0)
    return net


@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("make", [blobs, table])
def test_a_training_is_an_ordinary_one_and_each_begins_anew(make, taught):
    rows = make()
    begin = network(rows.x_train.shape[1], rows.outputs)
    fit = fit_weights(priors.Normal(1.0), net=begin, rows=rows, epochs=1)
    fit = dataclasses.replace(fit, settings=dataclasses.replace(fit.settings, batch_size=25))
    data = fit.data
    net, teacher = network(data.x_train.shape[1], data.outputs), None
    if taught:
        said = [torch.randn(len(x), data.outputs) for x in (data.x_train, data.x_val)]
        classes = data.task == "classification"
        teacher = Teacher(*(t.softmax(-1) if classes else t for t in said))
    for lr in (0.02, 0.01):
        found, losses = trained(net, fit, 1, lr, teacher)
        expected = written_out(net, fit.model.likelihood, fit, teacher, 1, lr)
        for name, ours in found.state_dict().items():
            theirs = expected.state_dict()[name]
            torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5, msg=name)
        assert not found[0].weight[:2].any()
        assert found[3].bias[0]
        torch.testing.assert_close(row_losses(found, fit, teacher), losses)


def test_of_a_frozen_network_nothing_but_the_noise_is_learnt():
    fit = fit_weights(priors.Normal(1.0), net=network(5, 3), rows=table(), epochs=1)
    net = network(5, 3).requires_grad_(False)
    trainer = trainer_of(net, fit, 3, 0.1)
    trainer.run(FitProgress("", 1, False), StopSignal())
    model = trainer.replicates[0].model
    for p, q in zip(model.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(model.likelihood.own.log_scale, fit.model.likelihood.log_scale)


def test_where_nothing_can_be_learnt_the_network_stays():
    fit = fit_weights(priors.Normal(1.0), net=network(2, 3), epochs=1)
    net = network(2, 3).requires_grad_(False)
    found, losses = trained(net, fit, 3, 0.1)
    for p, q in zip(found.parameters(), net.parameters(), strict=True):
        assert torch.equal(p, q)
    torch.testing.assert_close(losses, row_losses(net, fit))


def test_a_training_that_leaves_the_numbers_is_no_better():
    """At a rate of a million the loss is infinite, or what is left is far off."""
    fit = fit_weights(priors.Normal(1.0), net=network(5, 3), rows=table(), epochs=1)
    net = network(5, 3)
    net[3] = nn.Sequential(net[3], Exploding())
    found = retrain(net, fit, 3, (1e6,))
    assert found.net is net
    assert found.lr is None


class Exploding(nn.Module):
    def forward(self, x):
        return x.sinh().sinh()
