"""The smallest of the networks that are cut, trained as numbers, and are as good."""

import copy
import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from fitting import blobs, cut_net, fit_weights
from pyroccam import inference
from pyroccam.data import Dataset
from pyroccam.inference.rounding.bits import LayerBits
from pyroccam.inference.rounding.quantise import Significand, quantised
from pyroccam.inference.shrinking import compression, decision
from pyroccam.inference.shrinking.decision import smallest, thresholds_of_share
from pyroccam.inference.shrinking.relevance import Irrelevance
from pyroccam.inference.training.numbers import Numbers
from pyroccam.inference.training.ordinary import (
    Retrained,
    retrain,
    row_changes,
    row_losses,
)
from pyroccam.models import priors
from torch import nn


@pytest.fixture(scope="module")
def fitted():
    return fit_weights(priors.GroupNormalJeffreys(), rows=blobs(n=400), epochs=20)


def test_thresholds_of_a_share_keep_that_share_and_some_of_each_layer():
    torch.manual_seed(0)
    found = {
        "a": Irrelevance("a", torch.randn(100).double(), "", True, 500),
        "b": Irrelevance("b", 10 + torch.rand(20).double(), "", True, 400),
    }
    for share in (1.0, 0.5, 0.2, 0.01):
        at = thresholds_of_share(found, share)
        kept = {name: int((one.values <= at[name]).sum()) for name, one in found.items()}
        assert min(kept.values()) >= 1
        assert abs(5 * kept["a"] + 20 * kept["b"] - 900 * share) <= 25
    assert kept == {"a": 2, "b": 1}  # two of five weights are one percent of 900


def wide_fit(noise=0.3):
    """A fit of 32 hidden units and 8 inputs, of which one counts."""
    torch.manual_seed(0)
    x = torch.randn(600, 8)
    y = torch.sin(2 * x[:, :1]) + noise * torch.randn(600, 1)
    data = Dataset.from_tensors(x[:500], y[:500], x[500:], y[500:], val_fraction=0.2)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    return fit_weights(priors.GroupNormalJeffreys(), net, data, epochs=150)


@pytest.fixture(scope="module")
def fitted_wide():
    return wide_fit()


@pytest.fixture
def fit(fitted_wide):
    return copy.deepcopy(fitted_wide)


@pytest.mark.nightly
def test_the_smallest_network_that_is_as_good(fit):
    """Hidden units and inputs that are not needed go; what is left predicts as the whole does."""
    small = inference.shrink(fit, cut=inference.Search(60))
    whole = retrain(fit.posterior.mean_network(), fit, 60)
    left = sum(int(p.count_nonzero()) for p in small.net.parameters())
    assert left < sum(p.numel() for p in whole.net.parameters()) / 3
    worse = row_losses(small.net, fit) - whole.losses
    assert worse.mean() <= max(0.02, float(worse.std()) / 20) + 0.01
    assert small.report.to_json()["retrained"]["val_nll_after"] < whole.before


@pytest.mark.parametrize("begun", [False, True])
def test_inputs_whose_weights_are_zero_already_go(monkeypatch, fit, begun):
    """As those of pixels that never change, whose posterior has shrunk to zero: the layers behind
    them have other names in the cut network than in the whole."""
    monkeypatch.setattr(decision, "teacher_of", lambda _: None)  # losses are those of labels
    fit.guide.factor_of("0.weight").loc.data[:, 3:] = 0.0
    numbers = None
    if begun:
        net = fit.posterior.mean_network()
        numbers = Numbers(net, fit.model.likelihood, {}, 3e-3, 0.0, 1)
    kept, found = smallest(fit, inference.Search(1, trained=numbers))
    assert len(kept.report.layers["0"].inputs) <= 3
    torch.testing.assert_close(row_losses(found.net, fit), found.losses)


def test_a_size_that_leaves_no_path_is_passed_over(monkeypatch, fit):
    """Of each layer the least irrelevant weight stays, here that of another unit in each."""
    first, last = torch.ones(32, 8).double(), torch.ones(1, 32).double()
    first[0, 0] = last[0, 1] = 0.0
    found = {
        name: Irrelevance(name, values, "", False, values.numel())
        for name, values in (("0", first), ("2", last))
    }
    monkeypatch.setattr(decision, "weight_irrelevance", lambda *_: found)
    monkeypatch.setattr(decision, "SHARES", (0.001,))
    assert thresholds_of_share(found, 0.001) == {"0": 0.0, "2": 0.0}
    kept, _ = smallest(fit, inference.Search(1))
    assert kept.report.architecture == "8-32"


def test_the_whole_is_trained_until_that_gains_little(fitted, monkeypatch):
    """Rounds gain 0.5, 0.03 and 0.004 nats: the last is the one that does not pay."""
    made, after = [], [0.47, 0.466, 0.0]
    net = cut_net(fitted.data)

    def trained(net, fit, epochs, rates=(), teacher=None):
        made.append((epochs, tuple(rates)))
        return Retrained(net, math.nan, torch.full((40,), after[len(made) - 1]), 3e-3)

    monkeypatch.setattr(decision, "retrain", trained)
    monkeypatch.setattr(decision, "ROUNDS", 9)
    first = Retrained(net, 1.0, torch.full((40,), 0.5), 3e-3)
    found = decision._trained_out(first, fitted, 7, 0.02)
    assert made == [(7, (3e-3,)), (7, (3e-3,))]
    assert found.before == 1.0
    assert float(found.losses.mean()) == pytest.approx(0.466)
    made.clear()  # of a larger tolerance a quarter is not gained by the first of them
    assert decision._trained_out(first, fitted, 7, 0.16).losses.mean() == pytest.approx(0.47)
    assert len(made) == 1
    made[:] = [0, 0]
    no_better = Retrained(net, 1.0, torch.full((40,), 1.0), None)
    assert decision._trained_out(no_better, fitted, 7, 0.02).net is net
    assert len(made) == 2


def test_luck_has_a_margin_of_one_standard_error():
    """So much that what is just at the limit passes in one of six samples, for normal rows."""
    torch.manual_seed(0)
    samples = 0.1 + torch.randn(4000, 60)
    passed = torch.tensor([decision.is_as_good(one, 0.1) for one in samples]).double().mean()
    assert float(passed) == pytest.approx(0.159, abs=4 * (0.841 * 0.159 / 4000) ** 0.5)
    two = torch.tensor([2.0, 4.0])  # 3 with an error of 1
    assert decision.is_as_good(two, 6.1)
    assert not decision.is_as_good(two, 5.9)  # the mean alone may be half of that
    assert not decision.is_as_good(two - 2.5, 1.4)
    assert decision.is_as_good(two - 2.5, 1.6)
    assert decision.is_as_good(two[:1], 4.0)


def test_a_rounding_that_the_rows_happen_to_like_is_not_taken(monkeypatch, fit):
    """Labels that are what a coarsely rounded network predicts do not make it good enough."""
    net = fit.posterior.mean_network()
    bits = {"0": LayerBits(1, 3), "2": LayerBits(1, 3)}

    def rounding(more):
        return {name: Significand(1 + more) for name in bits}

    rounded = quantised(net, rounding(0))
    data = dataclasses.replace(fit.data, y_val=rounded(fit.data.x_val).detach())
    lucky = dataclasses.replace(fit, data=data)
    assert row_losses(rounded, lucky).mean() < row_losses(net, lucky).mean()
    more = compression._more_digits(net, rounding, bits, lucky)
    assert more > 0
    assert float(row_changes(net, quantised(net, rounding(more)), lucky).mean()) <= 0.001
    assert float(row_changes(net, quantised(net, rounding(more - 1)), lucky).mean()) > 0.001


def test_a_few_validation_rows_do_not_tell_what_may_go(monkeypatch, fit):
    few = dataclasses.replace(fit.data, x_val=fit.data.x_val[:49], y_val=fit.data.y_val[:49])
    few_fit = dataclasses.replace(fit, data=few)
    monkeypatch.setattr(decision, "teacher_of", lambda *_: None)  # which would tell more
    small = inference.shrink(few_fit, cut=inference.Search(10))
    assert small.report.nonzero == fit.model.weights_before
    assert small.report.retrained.lr is None  # nor is it trained to please them
    assert "49 validation rows do not tell" in small.warnings[0]


def test_the_trained_network_is_one_of_those_compared(fit):
    net = retrain(fit.posterior.mean_network(), fit, 60).net
    good = Numbers(net, fit.model.likelihood, {}, 3e-3, 0.0, 60)
    with torch.no_grad():  # a posterior that has lost its way
        for one in fit.guide.factors.values():
            one.loc += 0.5 * torch.randn_like(one.loc)
    _, alone = smallest(fit, inference.Search(1))
    _, found = smallest(fit, inference.Search(1, trained=good))
    assert found.losses.mean() < alone.losses.mean() - 0.05


@pytest.mark.nightly
def test_digits_are_added_where_rounding_costs_too_much():
    """A posterior that is sure of no digit leaves few bits; a network that was trained once more
    keeps those that its predictions need."""
    fit = wide_fit(noise=0.02)
    rough = inference.shrink(fit)
    for one in fit.guide.factors.values():
        one.log_scale.data += 3.0
    small = inference.shrink(fit, cut=inference.Search(60))
    assert row_changes(small.report.retrained.net, small.net, fit).mean() <= 0.001
    assert small.report.bits["0"].significand > rough.report.bits["0"].significand


@pytest.mark.parametrize(("rows", "mean", "taught"), [
    (64, 0.9, True), (64, 1.1, False), (49, 9.0, True),
])  # fmt: skip
def test_a_posterior_teaches_if_labels_are_no_worse_for_it(monkeypatch, rows, mean, taught, fit):
    """The loss of labels rises by a little less or more than its standard error; few rows are asked
    otherwise."""
    data = dataclasses.replace(fit.data, x_val=fit.data.x_val[:rows], y_val=fit.data.y_val[:rows])
    fit, net = dataclasses.replace(fit, data=data), cut_net(data)
    worse = torch.linspace(-1, 1, rows).double()
    worse = worse / worse.std() + mean / rows**0.5

    def trained(net, fit, epochs, rates, teacher=None):
        losses = torch.zeros(rows) if teacher is None else torch.full((rows,), 7.0)
        return Retrained(net, 1.0, losses, 1e-2)

    monkeypatch.setattr(decision, "retrain", trained)
    monkeypatch.setattr(decision, "row_losses", lambda net, fit: worse)
    monkeypatch.setattr(decision, "may_teach", lambda *asked: True)
    teacher, found = decision._taught(fit, net, 1, (1e-2,))
    assert (teacher is not None) == taught == bool(found.losses.any())


def a_search(fit):
    found = inference.shrinking.relevance.weight_irrelevance(fit.model, fit.posterior.layers)
    means = fit.posterior.mean_network()
    whole = Retrained(means, 0.1, torch.full((len(fit.data.x_val),), 0.1), 1e-2)
    known = SimpleNamespace(irrelevance=found, layers=fit.posterior.layers)
    return decision._Search(fit, known, [means], [whole], 1, 0.02, None, (3e-3, 1e-2))


@pytest.mark.parametrize(("good", "last"), [
    ((0.33, 0.17), 0.17 * 0.085),  # two in a row are not good
    ((0.17,), 0.17 * 0.085),  # one is not, by luck
    ((), 0.33),
    ((0.33, 0.17, 0.085, 0.042, 0.021), 0.021 * 0.01),
    ((0.33, 0.17, 0.085, 0.042, 0.021, 0.01), None),
])  # fmt: skip
def test_sizes_are_halved_until_two_in_a_row_are_not_good(monkeypatch, fitted, good, last):
    tried = []

    def at(search, share):
        tried.append(share)
        return share if share in good else None

    monkeypatch.setattr(decision._Search, "_at", at)
    assert a_search(fitted).run() == [*good]
    if last is None:
        assert tried == [*decision.SHARES]
        return
    *halved, between = tried
    assert between == pytest.approx(last**0.5)
    assert halved == [*decision.SHARES[: len(halved)]]
    end = halved.index(min(good)) + 2 if good else 1  # the second that is not good in a row
    assert len(halved) == min(end + 1, len(decision.SHARES))


def scripted(monkeypatch, more):
    """Trainings that end so much above what the whole network loses; the rates that were tried."""
    made = []

    def trained(net, fit, epochs, rates, teacher):
        made.append(*rates)
        losses = torch.full((len(fit.data.x_val),), 0.1 + more[len(made) - 1])
        return Retrained(net, 1.0, losses, *rates)

    monkeypatch.setattr(decision, "retrain", trained)
    return made


def test_a_hundredth_of_a_nat_may_be_lost(fitted, monkeypatch):
    """One rate may not suit a size, and what suited one is tried first on the next; a size that no
    rate would save has one training."""
    made = scripted(monkeypatch, [0.0105, 0.0095, 0.0095, 0.061, 0.059, 0.0105, 0.0])
    search = a_search(fitted)
    assert search._at(0.5)[1].lr == 1e-2
    assert made == [3e-3, 1e-2]
    assert search._at(0.4)[1].lr == 1e-2
    assert search._at(0.3) is None
    assert made[2:] == [1e-2, 1e-2]
    assert search._at(0.2) is None
    assert made[4:] == [1e-2, 3e-3]
    assert search.left == decision.SMALLER - 6
    search.left = 0
    assert search._at(0.2) is None
    assert len(made) == 6
