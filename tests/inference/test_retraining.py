"""The smallest of the networks that are cut, trained as numbers, and are as good."""

import copy
import dataclasses
import math
import types

import pytest
import torch
from fitting import fit_weights
from pyroccam import inference
from pyroccam.data import Dataset, PyroccamError
from pyroccam.inference.rounding import LayerBits, Significand, quantised
from pyroccam.inference.shrinking import SHARES, compression, decision
from pyroccam.inference.shrinking.decision import smallest, thresholds_of_share
from pyroccam.inference.shrinking.relevance import Irrelevance
from pyroccam.inference.training import (
    RATES,
    Trained,
    Trainer,
    retrain,
    row_changes,
    row_losses,
    score_untrained,
    teacher_of,
    trained,
)
from pyroccam.inference.training.ordinary import choose_rate, cross_fit
from pyroccam.models import priors
from torch import nn


def test_thresholds_of_a_share_keep_that_share_and_some_of_each_layer():
    torch.manual_seed(0)
    found = {
        "a": Irrelevance("a", torch.randn(100).double(), "", True, 500),
        "b": Irrelevance("b", 10 + torch.rand(20).double(), "", True, 400),
    }
    for share in (1.0, 0.5, 0.2, 0.01):
        at = thresholds_of_share(found, share, every_layer=True)
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
    return fit_weights(priors.GroupNormalJeffreys(), net, data, epochs=60, batch_size=100)


@pytest.fixture(scope="module")
def fitted_wide():
    return wide_fit()


@pytest.fixture
def fit(fitted_wide):
    return copy.deepcopy(fitted_wide)


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


@pytest.mark.nightly
def test_the_smallest_network_that_is_as_good(fit):
    """Hidden units and inputs that are not needed go; what is left predicts as the whole does."""
    small = inference.shrink(fit, cut=inference.Search(60))
    whole = retrain(fit.posterior.mean_network(), fit, 60)
    left = sum(int(p.count_nonzero()) for p in small.net.parameters())
    assert left < sum(p.numel() for p in whole.net.parameters()) / 3
    worse = row_losses(small.net, fit) - whole.losses
    assert worse.mean() <= max(0.01, float(worse.std()) / 20) + 0.01


@pytest.mark.parametrize("begun", [False, True])
def test_inputs_whose_weights_are_zero_already_go(monkeypatch, fit, begun):
    """As those of pixels that never change, whose posterior has shrunk to zero: the layers behind
    them have other names in the cut network than in the whole."""
    monkeypatch.setattr(decision, "teacher_of", lambda *_: None)  # losses are those of labels
    fit.guide.factor_of("0.weight").loc.data[:, 3:] = 0.0
    plain = score_untrained(fit.posterior.mean_network(), fit) if begun else None
    kept, found = smallest(fit, inference.Search(1, plain=plain))
    assert len(kept.report.layers["0"].inputs) <= 3
    torch.testing.assert_close(row_losses(found.net, fit), found.losses)


def test_a_size_that_leaves_no_path_ends_the_search(monkeypatch, fit):
    """Of each layer the least irrelevant weight stays, here that of another unit in each."""
    first, last = torch.ones(32, 8).double(), torch.ones(1, 32).double()
    first[0, 0] = last[0, 1] = 0.0
    found = {
        name: Irrelevance(name, values, "", False, values.numel())
        for name, values in (("0", first), ("2", last))
    }
    monkeypatch.setattr(decision, "weight_irrelevance", lambda *_: found)
    assert thresholds_of_share(found, 0.001, every_layer=True) == {"0": 0.0, "2": 0.0}
    kept, _ = smallest(fit, inference.Search(1, shares=(1.0, 0.001)))
    assert kept.report.architecture == "8-32"


def test_a_search_that_was_interrupted_goes_on(monkeypatch, tmp_path, fit):
    plain = score_untrained(fit.posterior.mean_network(), fit)
    how = inference.Search(2, plain=plain, shares=(0.5, 0.25), nats=1e3, out=tmp_path / "kept")
    runs, own = [], Trainer.run

    def run(self, *rest):
        runs.append(self.settings.epochs)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return own(self, *rest)

    monkeypatch.setattr(Trainer, "run", run)
    with pytest.raises(KeyboardInterrupt):
        smallest(fit, how)
    _, found = smallest(fit, how)
    assert runs == [2, 2, 2]
    _, same = smallest(fit, how)
    assert len(runs) == 3
    assert same.losses.equal(found.losses)
    assert same.held_out.equal(found.held_out)
    for name, one in found.net.state_dict().items():
        assert same.net.state_dict()[name].equal(one)
    smallest(fit, dataclasses.replace(how, epochs=1))
    assert runs[3:] == [1, 1]
    other = dataclasses.replace(fit, model=copy.deepcopy(fit.model))
    for noise in other.model.likelihood.parameters():
        noise.data += 0.1
    trained(fit.posterior.mean_network(), other, 2, 1e-3, out=how.out)
    trained(fit.posterior.mean_network(), fit, 2, 1e-3, out=how.out)
    trained(fit.posterior.mean_network(), fit, 2, 1e-3, out=how.out)
    assert runs[5:] == [2, 2]
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(b"other")
    with pytest.raises(PyroccamError):
        smallest(fit, how)


def scripted(monkeypatch, fit, losses, taught=True, may=True, **how):
    """A search whose trainings lose so much of every row; shares and teachers that were tried."""
    made, sizes = [], []
    plain = Trained(fit.posterior.mean_network(), torch.zeros(100), torch.zeros(2, 100), 3e-3)

    def train(net, fit, epochs, lr, teacher, out):
        made.append(teacher is not None)
        loss = torch.full((2, 100), losses[len(made) - 1]).double()
        return Trained(net, loss[0], loss, lr)

    def share(found, of, **how):
        sizes.append(of)
        return thresholds_of_share(found, of, **how)

    teacher = object() if taught else None
    monkeypatch.setattr(decision, "teacher_of", lambda *_: teacher)
    monkeypatch.setattr(decision, "may_teach", lambda *_: may)
    monkeypatch.setattr(decision, "row_losses", lambda net, fit, teacher: torch.zeros(100))
    monkeypatch.setattr(decision, "trained", train)
    monkeypatch.setattr(decision, "thresholds_of_share", share)
    kept = smallest(fit, inference.Search(1, nats=0.05, plain=plain, **how))
    return sizes, made, kept


@pytest.mark.parametrize(("losses", "tried", "left"), [
    ([0.0, 0.04, 0.06, 0.06], [1, 2, 3, 3], 1),  # the second is the last good one
    ([0.0, 0.0, 0.06, 0.01, 0.06], [1, 2, 3, 3, 4], 3),  # then weights of its units
    ([0.06, 0.0, 0.04, 0.06], [1, 0, 1, 2], 2),  # the first fails, and the whole one is tried
    ([0.06, 0.01, 0.0, 0.06], [1, 0, 1, 2], 2),  # without a teacher who taught it worse
    ([0.06, 0.0, 0.06], [1, 0, 1], 1),
    ([0.0] * 6, [1, 2, 3, 4, 5, 6], 5),
])  # fmt: skip
def test_sizes_are_halved_until_two_lose_too_much(monkeypatch, fit, losses, tried, left):
    sizes, made, (decided, kept) = scripted(monkeypatch, fit, losses)
    assert sizes == [SHARES[k] for k in tried]
    assert made == [True, True] + [losses[1] != 0.01] * (len(tried) - 2)
    assert float(kept.held_out.mean()) == pytest.approx(losses[left])
    assert bool(decided.warnings) == (SHARES[tried[left]] == 1.0)


def test_where_few_rows_tell_nothing_what_the_posterior_taught_stays(monkeypatch, fit):
    few = dataclasses.replace(fit.data, x_val=fit.data.x_val[:49], y_val=fit.data.y_val[:49])
    few_fit = dataclasses.replace(fit, data=few)
    sizes, made, (_, kept) = scripted(monkeypatch, few_fit, [1.0, 0.5, 1.0])
    assert (sizes, made) == ([0.5, 1.0, 0.5], [True] * 3)
    assert float(kept.held_out.mean()) == 0.5


def test_rows_that_could_show_of_no_network_that_it_is_as_good_judge_none(monkeypatch, fit):
    """As of fewer than 119 rows of classes, where one more error counts."""
    monkeypatch.setattr(decision, "needed_tolerance", lambda *_: 0.06)
    sizes, made, (decided, _) = scripted(monkeypatch, fit, [0.0])
    assert (sizes, made, len(decided.warnings)) == ([1.0], [True], 1)


def test_a_plain_network_is_left_where_nothing_is_as_good(monkeypatch, fit):
    sizes, made, (decided, kept) = scripted(monkeypatch, fit, [1.0] * 2, taught=False)
    assert (sizes, made, len(decided.warnings)) == ([0.5, 0.5], [False] * 2, 1)
    assert float(kept.held_out.abs().max()) == 0.0


@pytest.mark.parametrize("loss", [0.0, 1.0])
def test_one_share_is_tried_where_one_is_asked_for(monkeypatch, fit, loss):
    sizes, made, (decided, kept) = scripted(monkeypatch, fit, [loss], shares=(0.33,), units="only")
    assert (sizes, made) == ([0.33], [True])
    assert float(kept.held_out.abs().max()) == 0.0
    assert len(decided.warnings) == bool(loss)


def test_a_plain_network_teaches_where_it_is_asked_to(fit):
    net = fit.posterior.mean_network()
    teacher = teacher_of(fit, net)
    expected = fit.model.likelihood.mean_prediction(net(fit.data.x_val)[None])
    torch.testing.assert_close(teacher.val, expected)


@pytest.mark.parametrize("teacher", ["plain", "posterior"])
def test_a_teacher_is_asked_for_its_losses_if_it_is_not_the_plain_network(
    monkeypatch, fit, teacher
):
    how = {"shares": (0.33,), "units": "only", "teacher": teacher}
    _, made, _ = scripted(monkeypatch, fit, [0.0], may=False, **how)
    assert made == [teacher == "plain"]


def test_of_two_networks_that_are_too_small_none_passes_in_nineteen_of_twenty_searches():
    torch.manual_seed(0)
    passed, none = 0, torch.zeros(2, 60)
    for _ in range(1500):
        d = 0.025 + 0.2 * torch.randn(2, 60).double()
        passed += any(
            decision.needed_tolerance(torch.stack([one, one]), none, rows_of(), 2) <= 0.01
            for one in d
        )
    risk = 1 - (1 - 0.05 / 2) ** 2  # of two that are independent
    assert passed / 1500 == pytest.approx(risk, abs=4 * (risk * (1 - risk) / 1500) ** 0.5)


def test_few_rows_that_are_all_right_do_not_show_that_the_next_one_is():
    """By Laplace's rule, with one more error."""
    for rows in (10, 100, 1000):
        none, mean = torch.zeros(2, rows), 1 / (rows + 1)
        assert decision.needed_tolerance(none, none, rows_of(10)) == pytest.approx(
            max(mean, 0.4 * mean * (1 + _t95(rows))), rel=1e-4
        )
    assert decision.needed_tolerance(torch.zeros(2, 500), torch.zeros(2, 500), rows_of()) == 0.0
    assert decision.needed_tolerance(torch.zeros(2, 1), torch.zeros(2, 1), rows_of()) == math.inf


def test_rows_of_weight_k_count_as_k_rows_in_the_mean():
    torch.manual_seed(0)
    d, weights = 0.1 * torch.randn(2, 60).double(), torch.randint(0, 3, (60,)).double()
    each = torch.repeat_interleave(d, weights.long(), 1)
    found = decision.needed_tolerance(d, torch.zeros_like(d), rows_of(None, weights))
    mean, left = each.mean(1), float(weights.sum() ** 2 / weights.square().sum())
    error = each.std(1, correction=0) / (left - 1) ** 0.5
    limit = 0.4 * (mean + _t95(left - 1) * error)
    assert found == pytest.approx(float(torch.maximum(mean, limit).max()), rel=1e-4)


def rows_of(classes=None, weights=None):
    """What is asked of the data of validation rows."""
    return types.SimpleNamespace(classes=classes, val_weights=weights)


def _t95(dof):
    """By bisection on the distribution of Student, integrated numerically."""
    t = torch.linspace(-60, 60, 2_000_001, dtype=torch.float64)
    density = (1 + t**2 / dof) ** (-(dof + 1) / 2)
    below = density.cumsum(0) / density.sum()
    return float(t[torch.searchsorted(below, 0.95)])


def test_rows_that_chose_a_checkpoint_do_not_judge_it():
    """Of pure noise the best of many looks seems good on rows that chose it, and is not."""
    torch.manual_seed(0)
    noise = torch.randn(50, 1, 400).double()
    looks = torch.cat([noise, noise, noise], 1)
    chosen = looks[looks[:, 0].mean(1).argmin(), 1].mean()
    judged = cross_fit(looks)
    assert judged.shape == (2, 400)
    assert chosen < -0.07  # about 2.2 standard errors of 0.05
    assert judged[0].mean().abs() < 3.5 * 0.05
    sure = looks.clone()
    sure[7, 0] -= 1.0  # which both halves choose
    assert torch.equal(cross_fit(sure), looks[7, 1:])
    sure[3, 0] = math.nan  # of a look at which the training had failed
    assert torch.equal(cross_fit(sure), looks[7, 1:])


def test_the_lowest_rate_within_an_error_of_the_best():
    losses = torch.randn(200, generator=torch.Generator().manual_seed(0)).double()
    noise = torch.linspace(-1, 1, 200).double()
    error = float(noise.std(correction=0)) / 200**0.5
    for gap, best in ((0.9 * error, 1e-3), (1.1 * error, 3e-3)):
        tried = {1e-2: losses + 1, 3e-3: losses, 1e-3: losses + noise + gap}
        assert choose_rate(tried) == best
    assert choose_rate(dict.fromkeys(RATES, losses)) == RATES[0]
