"""Trainings of networks as numbers: beside torch, at several rates, from a teacher."""

import contextlib
import copy
import dataclasses
import functools
import math

import pytest
import torch
from fitting import blobs, cut_net, fit_weights
from pyroccam import guides, models
from pyroccam.cli.runs.building import untrained
from pyroccam.data import Dataset, PyroccamError
from pyroccam.inference.posterior import validated
from pyroccam.inference.posterior.draws import draw_weights
from pyroccam.inference.storage import CheckpointError
from pyroccam.inference.training import (
    FEW,
    NUMBERS,
    RATES,
    FitProgress,
    Settings,
    StopSignal,
    Teacher,
    as_numbers,
    may_teach,
    ordinary,
    retrain,
    row_changes,
    row_losses,
    teacher_of,
    tempered,
    trained,
    trainer_of,
)
from pyroccam.inference.training.hidden_states import HiddenStates
from pyroccam.inference.training.ordinary import (
    choose_rate,
    race,
    temperature_of_rows,
)
from pyroccam.models import priors
from pyroccam.models.likelihoods import LEAST_ROWS
from scipy import optimize
from torch import nn
from torch.func import functional_call

cross_entropy, one_hot = nn.functional.cross_entropy, nn.functional.one_hot


@pytest.fixture(scope="module")
def fitted():
    return fit_weights(priors.GroupNormalJeffreys(), rows=blobs(n=400), epochs=20)


def with_data(fit, **parts):
    return dataclasses.replace(fit, data=dataclasses.replace(fit.data, **parts))


def with_few(fit, rows):
    return with_data(fit, x_val=fit.data.x_val[:rows], y_val=fit.data.y_val[:rows])


@pytest.fixture(scope="module")
def good(fitted):
    return retrain(cut_net(fitted.data), fitted, 12).net


# -- beside the same training written out in torch --------------------------------------------


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


class Blocks(nn.Module):
    """Blocks of tokens, and classes of their mean; a mask says which tokens there are."""

    def __init__(self, inputs, outputs, blocks=2):
        super().__init__()
        made = (nn.Sequential(nn.Linear(inputs, inputs), nn.Tanh()) for _ in range(blocks))
        self.layer = nn.ModuleList(made)
        self.head = nn.Linear(inputs, outputs)

    def states(self, x):
        return [x := block(x) for block in self.layer]

    def forward(self, x, attention_mask=None):
        last = self.states(x)[-1]
        if attention_mask is not None:
            last = (last * attention_mask[..., None]).sum(1) / attention_mask.sum(1)[:, None]
        return self.head(last)


def written_out(net, like, fit, teacher, lr):
    """An epoch, by the formulas of densities, clipping by torch, zeros by hand."""
    data = fit.data
    net, like = copy.deepcopy(net).train(), copy.deepcopy(like).requires_grad_(True)
    free, noise = [*net.parameters()], [*like.parameters()]
    zeros = [(p, p == 0) for p in free if p.dim() > 1]
    groups = [{"params": free, "weight_decay": 0.01}]
    groups += [{"params": noise, "weight_decay": 0.0}] * bool(noise)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    rows = data.order(fit.settings.seed, 0).split(fit.settings.batch_size)
    for done, own in enumerate(rows):
        out, y = net(data.x_train[own]), data.y_train[own]
        said = [] if teacher is None else [teacher.train[own]]
        if data.task == "classification":
            losses = [cross_entropy(out, y, reduction="none")]
            losses += [-(t * out.log_softmax(-1)).sum(-1) for t in said]
        else:
            sd = like.scale
            losses = [
                (((out - t) / sd).square() / 2 + sd.log() + math.log(2 * math.pi) / 2).sum(-1)
                for t in (y, *said)
            ]
        losses = torch.stack(losses).mean(0)
        if teacher is not None and teacher.net is not None:
            both = [one.states(data.x_train[own]) for one in (net, teacher.net)]
            for ours, given in zip(*both, strict=True):
                error, size = (ours - given.detach()).square(), given.detach().square()
                losses = losses + error.sum(1) / size.sum(1).mean() / 4
        if data.weights is not None:
            losses = losses * data.weights[own]
        optimizer.zero_grad()
        losses.mean().backward()
        nn.utils.clip_grad_norm_(free, math.inf if noise else 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * math.cos(math.pi * done / len(rows) / 2) ** 2
        optimizer.step()
        for p, zero in zeros:
            p.data.masked_fill_(zero, 0.0)
    return net


@pytest.mark.parametrize("taught", [False, True, "of blocks"])
@pytest.mark.parametrize("make", [blobs, table])
def test_a_training_is_an_ordinary_one_and_each_begins_anew(make, taught):
    rows = make()
    begin = network(rows.x_train.shape[1], rows.outputs)
    fit = fit_weights(priors.Normal(1.0), net=begin, rows=rows, epochs=1, batch_size=25)
    data = fit.data
    net, teacher = network(data.x_train.shape[1], data.outputs), None
    if taught == "of blocks":
        net, other = (Blocks(data.x_train.shape[1], data.outputs) for _ in range(2))
    if taught:
        said = [torch.randn(len(x), data.outputs) for x in (data.x_train, data.x_val)]
        classes = data.task == "classification"
        teacher = Teacher(*(t.softmax(-1) if classes else t for t in said))
    if taught == "of blocks":
        teacher = teacher._replace(net=other)
    for lr in (0.02, 0.01):
        one = trained(net, fit, 1, lr, teacher)
        found, losses = one.net, one.losses
        expected = written_out(net, fit.model.likelihood, fit, teacher, lr)
        for name, ours in found.state_dict().items():
            theirs = expected.state_dict()[name]
            torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5, msg=name)
        if taught != "of blocks":
            assert not found[0].weight[:2].any()
            assert found[3].bias[0]
        torch.testing.assert_close(row_losses(found, fit, teacher), losses)


@pytest.mark.parametrize(("blocks", "of"), [(4, [0, 1, 2, 3]), (2, [1, 3]), (3, [0, 2, 3])])
def test_states_of_blocks_are_compared_token_by_token(blocks, of):
    torch.manual_seed(0)
    net, teacher = Blocks(5, 3, blocks), Blocks(5, 3, 4)
    x, mask = torch.randn(6, 7, 5), (torch.arange(7) < torch.tensor([[7, 2, 3, 1, 5, 4]]).T).float()
    states = HiddenStates(net, teacher)
    found = net.train()(x, attention_mask=mask)
    expected = torch.zeros(6)
    for own, given in zip(net.states(x), [teacher.states(x)[k] for k in of], strict=True):
        rows = [int(n) for n in mask.sum(1)]
        size = sum(given[k, :n].square().sum() / n for k, n in enumerate(rows)) / 6
        each = [(own - given)[k, :n].square().sum() / n / size for k, n in enumerate(rows)]
        expected += torch.stack(each) / (2 * blocks)
    torch.testing.assert_close(found[:, 3], expected)
    torch.testing.assert_close(found[:, :3], net.eval()(x, attention_mask=mask))
    states.remove()
    assert net.train()(x, attention_mask=mask).shape == (6, 3)


class SecondRows(nn.Module):
    """Tokens first, and rows second."""

    def __init__(self, inputs):
        super().__init__()
        layer = nn.TransformerEncoderLayer(inputs, 1, 8)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x.transpose(0, 1)).mean(0)


class Named(nn.Module):
    """Blocks that give a dict."""

    def __init__(self, inputs):
        super().__init__()
        block = nn.Linear(inputs, inputs)
        block.register_forward_hook(lambda module, args, out: {"states": out})
        self.layer = nn.ModuleList([block])

    def forward(self, x):
        return self.layer[0](x)["states"].mean(1)


@pytest.mark.parametrize("make", [SecondRows, Named])
def test_of_blocks_that_say_nothing_row_by_row_nothing_is_learnt(make):
    net = make(6)
    HiddenStates(net, make(6))
    found = net.train()(torch.randn(4, 3, 6))
    assert found.shape == (4, 7)
    assert not found[:, 6].any()


def test_blocks_of_other_shapes_are_not_compared():
    """Nor those of no block: a row is then no further away than another."""
    net, teacher = Blocks(5, 3), Blocks(4, 3)
    teacher.forward = lambda x: [block(x[:, :4]) for block in teacher.layer]
    HiddenStates(net, teacher)
    assert not net.train()(torch.randn(6, 5))[:, 3].any()


def test_parts_of_a_sequential_network_are_its_blocks():
    """But for those of other widths, and the outputs."""

    def convolutions(wide):
        return nn.Sequential(
            nn.Conv2d(2, wide, 3), nn.ReLU(), nn.Conv2d(wide, 4, 3), nn.Tanh(), nn.Flatten(1),
            nn.Linear(4, 3),
        )  # fmt: skip

    x = torch.randn(6, 2, 5, 5)
    net, teacher = convolutions(3), convolutions(5)
    expected = torch.zeros(6)
    for end in (3, 4, 5):
        ours, given = net[:end](x).flatten(1), teacher[:end](x).flatten(1)
        expected += (ours - given).square().sum(1) / given.square().sum(1).mean() / 6
    outputs = net(x)
    HiddenStates(net, teacher)
    found = net.train()(x)
    torch.testing.assert_close(found[:, 3], expected)
    assert torch.equal(found[:, :3], outputs)


def test_of_a_frozen_network_nothing_but_the_noise_is_learnt():
    fit = fit_weights(priors.Normal(1.0), net=network(5, 3), rows=table(), epochs=1)
    net = network(5, 3).requires_grad_(False)
    trainer = trainer_of(net, fit, 3, 0.1)
    trainer.run(FitProgress("", 1, False), StopSignal())
    model = trainer.replicates[0].model
    assert all(map(torch.equal, model.net.parameters(), net.parameters()))
    assert not torch.equal(model.likelihood.own.log_scale, fit.model.likelihood.log_scale)


class Exploding(nn.Module):
    def forward(self, x):
        return x.sinh().sinh()


def test_what_gets_no_better_stays(fitted, good, monkeypatch):
    monkeypatch.setattr(ordinary, "RATES", (30.0,))
    again = retrain(good, fitted, 1)
    assert again.lr is None
    assert again.net is good
    fit = fit_weights(priors.Normal(1.0), net=network(5, 3), rows=table(), epochs=1)
    net = network(5, 3)
    net[3] = nn.Sequential(net[3], Exploding())
    monkeypatch.setattr(ordinary, "RATES", (1e6,))
    found = retrain(net, fit, 3)  # the loss is infinite, or what is left is far off
    assert found.net is net
    with pytest.raises(PyroccamError):
        retrain(good, dataclasses.replace(fitted, data=fitted.data.all_rows()), 1)


# -- temperatures and changes -----------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.1, 40.0])
def test_losses_are_those_at_the_temperature_of_the_rows(fitted, good, factor):
    """It is 1 for a network that is not sure enough, and undoes what makes it too sure."""
    net, data = copy.deepcopy(good), fitted.data
    net[2].register_forward_hook(lambda module, args, out: factor * out)
    logits = net(data.x_val).detach()
    t = max(1.0, temperature_of_rows(logits, data.y_val))
    assert (t == 1.0) == (factor < 1)
    expected = cross_entropy(logits / t, data.y_val, reduction="none").double()
    torch.testing.assert_close(row_losses(net, fitted), expected, rtol=1e-5, atol=1e-6)
    found = row_losses(net, with_few(fitted, LEAST_ROWS - 1))
    plain = cross_entropy(logits, data.y_val, reduction="none")
    torch.testing.assert_close(found, plain[: LEAST_ROWS - 1].double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0])
def test_the_temperature_against_a_search(factor):
    """Logits of known probabilities times a factor, which the temperature takes back but for the
    prior; the optimum by a grid."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(4000, 3)
    y = torch.distributions.Categorical(logits=logits).sample()

    def loss(t):
        nll = cross_entropy(factor * logits.double() / t, y, reduction="sum")
        return float(nll) + 2 * math.log(t) ** 2

    found = temperature_of_rows(factor * logits, y)
    best = optimize.brute(lambda t: loss(float(t[0])), [(0.05, 6.0)], Ns=600, finish=optimize.fmin)
    assert found == pytest.approx(float(best[0]), rel=1e-3)
    assert found == pytest.approx(factor, rel=0.1)
    # rows that are all right would have none, without the prior
    sure = temperature_of_rows(torch.tensor([[4.0, 0.0]] * 12), torch.zeros(12, dtype=torch.long))
    assert 0.5 < sure < 1.0


def test_a_temperature_is_part_of_the_last_layer(fitted, good):
    net = copy.deepcopy(good)
    with torch.no_grad():
        net[2].weight *= 20  # far too sure
        net[2].bias *= 20
    x = fitted.data.x_val
    cooled, temperature = tempered(net, fitted)
    assert temperature > 1.5
    torch.testing.assert_close(cooled(x), net(x) / temperature, rtol=1e-4, atol=1e-5)
    assert row_losses(cooled, fitted).mean() < row_losses(net, fitted).mean()
    net = copy.deepcopy(good)
    with torch.no_grad():
        net[2].weight /= 5  # too unsure, which rows are not trusted to mend
    cooled, temperature = tempered(net, fitted)
    assert temperature == 1.0
    assert torch.equal(cooled[2].weight, net[2].weight)


def test_a_change_of_predictions_is_a_divergence(fitted):
    """Of classes by their sum; of targets by the squared change over twice the variance; where
    there is no closed form, no less than what the losses differ by."""
    one, other = cut_net(fitted.data), cut_net(fitted.data, 0.1)
    p, q = (net(fitted.data.x_val).double().softmax(-1).detach() for net in (one, other))
    expected = (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(row_changes(one, other, fitted), expected, rtol=1e-4, atol=1e-7)
    fit = a_regression()
    x, y = fit.data.split("val")
    one, other = (cut_net(fit.data, zeros) for zeros in (0.0, 0.3))
    variance = float(validated(fit.model.likelihood, one, fit.data).scale.detach()) ** 2
    moved = (one(x) - other(x)).detach().double()
    expected = moved.square().sum(-1) / (2 * variance)
    torch.testing.assert_close(row_changes(one, other, fit), expected, rtol=1e-4, atol=1e-7)
    model = copy.deepcopy(fit.model)
    model.likelihood = models.likelihoods.StudentT(1)
    heavy = dataclasses.replace(fit, model=model)
    own = validated(model.likelihood, one, fit.data)
    before, after = (-own(net(x)).log_prob(y) for net in (one, other))
    expected = (before - after).abs().detach().double()
    torch.testing.assert_close(row_changes(one, other, heavy), expected, rtol=1e-4, atol=1e-5)


def test_the_noise_of_a_plain_network_is_that_of_its_errors():
    fit = a_regression()
    net = fit.posterior.mean_network()
    own = validated(fit.model.likelihood, net, fit.data)
    errors = (net(fit.data.x_val) - fit.data.y_val).detach().square().sum()
    expected = float((errors / (len(fit.data.x_val) - 2)).sqrt())
    assert float(own.scale.detach()) == pytest.approx(expected, rel=1e-3)
    few = with_few(fit, LEAST_ROWS - 1).data
    assert validated(fit.model.likelihood, net, few) is fit.model.likelihood
    known = models.likelihoods.Regression(1).requires_grad_(False)
    assert validated(known, net, fit.data) is known


# -- with which a posterior begins ------------------------------------------------------------


def fresh(data, net=None):
    """The fit of a pair that was not trained."""
    torch.manual_seed(1)
    net = cut_net(data) if net is None else net
    model = models.BayesianNetwork(net, data, prior=models.priors.Normal(1.0))
    settings = Settings.of({"epochs": 1, "batch_size": 32, "seed": 3})
    return untrained((model, guides.MeanField(model)), data, settings)


def test_a_line_is_found_and_its_noise_without_validation_rows():
    """Least squares of the training rows, and the errors around that; one rate is tried."""
    torch.manual_seed(0)
    x = torch.randn(400, 3)
    y = x @ torch.tensor([[0.5], [-1.0], [0.25]]) + 0.1 * torch.randn(400, 1)
    data = Dataset.from_tensors(x[:-50], y[:-50], x[-50:], y[-50:], val_fraction=0.0)
    found = as_numbers(fresh(data, nn.Sequential(nn.Linear(3, 1))), 120)
    one = torch.cat([data.x_train, torch.ones(len(data.x_train), 1)], 1)
    weights = torch.linalg.lstsq(one, data.y_train).solution
    torch.testing.assert_close(found.net[0].weight.detach(), weights[:3].T, atol=0.3, rtol=0)
    x, y = data.split("train")
    errors = found.net(x).detach() - y
    spread = float((errors.square().sum() / (len(errors) - 2)).sqrt())
    assert float(found.likelihood.scale.detach()) == pytest.approx(spread, rel=1e-2)
    assert spread < 0.3
    assert (found.tried, found.trained.lr) == ({}, RATES[1])


def test_a_good_rate_of_those_tried_and_none_is_tried_again(tmp_path, monkeypatch):
    """Each for a sixth of the epochs; a run that was broken off goes on with the rest."""
    data = blobs(n=400)
    net = cut_net(data)
    whole = as_numbers(fresh(data, net), 12, out=tmp_path / "whole")
    start = fresh(data, net).model.start_network()
    assert [*whole.tried] == [*RATES[1:]]  # the lowest is not tried, as the middle one is worse
    for rate, losses in whole.tried.items():
        torch.testing.assert_close(losses, trained(start, fresh(data, net), 2, rate).losses)
    assert whole.trained.lr == choose_rate(whole.tried)
    again = trained(start, fresh(data, net), 12, whole.trained.lr)
    torch.testing.assert_close(whole.trained.held_out, again.held_out)
    alone = as_numbers(fresh(data, net), 12, rates=[0.1 * RATES[0]])  # a single rate is not tried
    assert (alone.tried, alone.trained.lr) == ({}, 0.1 * RATES[0])
    rates = []

    def broken(net, fit, epochs, rate):
        if rates:
            raise KeyboardInterrupt
        rates.append(rate)
        return trained(net, fit, epochs, rate)

    monkeypatch.setattr(ordinary, "trained", broken)
    with pytest.raises(KeyboardInterrupt):
        as_numbers(fresh(data, net), 12, out=tmp_path)
    assert rates == [RATES[2]]
    for expected in ([RATES[1]], [whole.trained.lr], []):
        rates.clear()
        with contextlib.suppress(KeyboardInterrupt):
            found = as_numbers(fresh(data, net), 12, out=tmp_path)
        assert rates == expected
    assert [*found.tried] == [*whole.tried]
    assert all(torch.equal(found.tried[rate], whole.tried[rate]) for rate in whole.tried)
    assert torch.equal(found.trained.held_out, whole.trained.held_out)
    assert all(map(torch.equal, found.net.parameters(), whole.net.parameters()))


@pytest.mark.parametrize(
    ("means", "tried"), [((3, 2, 1), 2), ((1, 2, 3), 3), ((3, 1, 2), 3), ((1, 3.02, 3), 3)]
)
def test_lower_rates_are_tried_until_one_is_clearly_worse(means, tried, monkeypatch):
    """Losses of the lowest rate first; those of 100 rows differ by a deviation of .6 a row."""
    noise = torch.linspace(-1, 1, 100)
    losses = {lr: mean + k * noise for k, (lr, mean) in enumerate(zip(RATES, means, strict=True))}
    made = dataclasses.make_dataclass("Made", ["losses"])
    monkeypatch.setattr(ordinary, "trained", lambda net, fit, epochs, lr: made(losses[lr]))
    expected = sorted(RATES, reverse=True)[:tried]
    for before in range(tried + 1):  # as many were tried before it was broken off
        known = {rate: losses[rate] for rate in expected[:before]}
        assert [*race(None, None, 6, RATES, known)] == expected[before:]
        assert known == {rate: losses[rate] for rate in expected}


@pytest.mark.parametrize("content", [b"", b"nothing of this kind", None])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    data = blobs(n=400)
    if content is None:  # a network of another width
        other = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, data.outputs))
        as_numbers(fresh(data, other), 1, out=tmp_path)
    else:
        (tmp_path / NUMBERS).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"numbers\.safetensors holds no network of this run"):
        as_numbers(fresh(data), 1, out=tmp_path)


# -- what a posterior predicts, as a teacher --------------------------------------------------


class Says(nn.Module):
    """The same logits for the same rows, whatever they are."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        assert len(x) == len(self.logits)
        return self.logits


@functools.cache
def a_regression():
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = x[:, :1] + 0.3 * torch.randn(200, 1)
    rows = Dataset.from_tensors(x[:150], y[:150], x[150:], y[150:], val_fraction=0.4)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    return fit_weights(priors.Normal(1.0), net, rows, epochs=40)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_teacher_says_what_draws_say_on_average(fitted, task):
    """Over networks that are drawn one by one; all rows share their 20 and 400 draws."""
    fit = fitted if task == "classification" else a_regression()
    teacher = teacher_of(fit)
    torch.manual_seed(5)
    net, weights = fit.posterior.mean_network(), draw_weights(fit.model, fit.guide, 400)
    for found, x in ((teacher.train, fit.data.x_train), (teacher.val, fit.data.x_val)):
        each = torch.stack(
            [functional_call(net, {n: w[i] for n, w in weights.items()}, (x,)) for i in range(400)]
        ).detach()
        each = each.softmax(-1) if task == "classification" else each
        error = 4.5 * each.std(0) * (1 / 20 + 1 / 400) ** 0.5
        assert ((found - each.mean(0)).abs() <= error + 1e-3).all()


def test_a_rival_that_is_too_sure_of_few_rows_yields_to_a_posterior(fitted):
    """One that is right on all rows: to either side of where it is as good with half a row more,
    whose label is each of the classes in turn."""
    k, rows = fitted.data.outputs, 20
    fit = with_few(fitted, rows)
    teacher, y = teacher_of(fit), fit.data.y_val

    def loss(logs):
        labels = sum(float(logs[n, y[n]]) for n in range(rows))
        others = [float(logs[n, c]) for n in range(rows) for c in range(k)]
        return -labels - 0.5 * sum(others) / len(others)

    def ahead(sure):
        logs = (sure * one_hot(y, k)).double().log_softmax(-1)
        return loss(teacher.val.double().log()) - loss(logs)

    best = optimize.minimize_scalar(lambda sure: -ahead(sure), bounds=(0, 20), method="bounded").x
    for least, most in ((0.0, best), (best, 200.0)):
        limit = optimize.brentq(ahead, least, most)
        for sure in (limit - 0.01, limit + 0.01):
            rival = Says(sure * one_hot(y, k))
            assert may_teach(teacher, fit, rival) == (ahead(sure) <= 0), sure
            dropped = nn.Sequential(rival, nn.Dropout(0.999)).train()
            assert may_teach(teacher, fit, dropped) == (ahead(sure) <= 0)  # as it predicts
            assert all(module.training for module in dropped)


def test_many_rows_are_not_asked_of_classes(fitted):
    data, k = fitted.data, fitted.data.outputs
    for rows, may in ((FEW - 1, False), (FEW, True)):
        y = (data.y_train[:rows] + 1) % k  # wrong
        fit = with_data(fitted, x_val=data.x_train[:rows], y_val=y)
        assert may_teach(teacher_of(fit), fit, Says(torch.zeros(rows, k))) == may


@pytest.mark.parametrize(("rows", "factor", "may"), [
    (49, 0.99, False), (49, 1.01, True), (60, 1.09**-0.5, True), (60, 1.11**-0.5, False),
])  # fmt: skip
def test_a_posterior_that_is_near_enough_to_targets_teaches_their_mean(rows, factor, may):
    """A rival with so much of the error of the mean of draws."""
    fit = with_few(a_regression(), rows)
    teacher, y = teacher_of(fit), fit.data.y_val
    assert may_teach(teacher, fit, Says(y + factor * (teacher.val - y))) == may


def test_other_likelihoods_have_no_teacher():
    torch.manual_seed(0)
    x = torch.randn(100, 2)
    y = x[:, :1].exp().round()
    rows = Dataset.from_tensors(x[:80], y[:80], x[80:], y[80:], val_fraction=0.2, task="counts")
    assert teacher_of(fresh(rows)) is None


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_half_of_the_loss_of_validation_rows_is_the_teachers(fitted, task):
    """By hand; that it is of the training rows, beside torch above."""
    classes = task == "classification"
    fit = fitted if classes else a_regression()
    data, k = fit.data, fit.data.outputs
    says = torch.linspace(1, 3, k).softmax(0) if classes else torch.full((1,), 2.0)
    teacher = Teacher(says.expand(len(data.x_train), k), says.expand(len(data.x_val), k))
    net = cut_net(data)
    logits = net(data.x_val).detach()
    if classes:
        log_p = (logits / max(1.0, temperature_of_rows(logits, data.y_val))).log_softmax(-1)
        labels = nn.functional.nll_loss(log_p, data.y_val, reduction="none")
        expected = 0.5 * labels - 0.5 * (says * log_p).sum(-1)
    else:
        own = validated(fit.model.likelihood, net, data)(logits)
        expected = -0.5 * (own.log_prob(data.y_val) + own.log_prob(teacher.val)).detach()
    torch.testing.assert_close(row_losses(net, fit, teacher), expected.double())
