"""Cross-validation in a selection, against ridge regression of every fold in closed form."""

import copy
import dataclasses
import math

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.selection import (
    Greedy,
    Implicit,
    Level,
    OneLevel,
    Random,
    SelfTuning,
    Unrolled,
    bilevel,
    folds,
    search,
)
from pyroccam.inference.selection.hypergradient import NonFiniteGradient
from pyroccam.inference.selection.levels import Objectives
from pyroccam.models import priors
from selecting import F64, POLYNOMIAL, QUIET, polynomial, run
from torch import nn

SCALE = "model.net.prior.log_scale"
COUNT, FEATURES, K = 32, 6, 4
LEVELS = Level(), Level(prior=0.0, folds=K)


def table():
    g = torch.Generator().manual_seed(16)
    w = 0.3 * torch.randn(FEATURES, generator=g, dtype=F64)
    x = torch.randn(COUNT, FEATURES, generator=g, dtype=F64)
    y = (x @ w + torch.randn(COUNT, generator=g, dtype=F64))[:, None]
    made = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)
    return dataclasses.replace(made, x_train=x, y_train=y)


ROWS = table()


def pair(guide=guides.Delta):
    torch.manual_seed(0)
    net, likelihood = nn.Linear(FEATURES, 1, bias=False), models.Regression(1, scale=1.0, floor=0.0)
    prior = priors.Normal(learn="scale")
    model = models.BayesianNetwork(net, ROWS, prior=prior, likelihood=likelihood).double()
    model.likelihood.requires_grad_(False)
    return model, guide(model).double()


def ridge(x, y, log_scale):
    precision = math.exp(-2.0 * log_scale) * torch.eye(FEATURES, dtype=F64)
    return torch.linalg.solve(x.T @ x + precision, x.T @ y[:, 0])


@pytest.fixture
def watched(monkeypatch):
    """The rows of L and of Q by fold, and θ and h after each outer step."""
    look, made, kept, states = search.Search.look, folds.fold_rows, [], []

    def watch(self, keys):
        states.append((self.theta, self.h))
        return look(self, keys)

    def keep(*args):
        kept.extend(made(*args))
        return kept

    monkeypatch.setattr(search.Search, "look", watch)
    monkeypatch.setattr(bilevel, "fold_rows", keep)
    return kept, states


def test_the_scale_of_cross_validation(watched):
    """By a grid over the loss of all rows, each by the weights of the other folds; those weights;
    and in the end the weights of all rows."""
    parts, states = watched
    steps = {"outer_steps": 50, "inner_steps": 20, "lr": 0.03, "outer_lr": 0.05}
    options = {"Q": LEVELS[1], "method": Implicit(), "draws": 1, **steps}
    found = inference.select(*pair(), ROWS, **options, **QUIET)
    x, y = ROWS.split("train")
    others, own = ([(x[one], y[one]) for one in part.parts] for part in parts)
    for (x, _), (x_out, _) in zip(others, own, strict=True):
        assert (len(x), len(x_out)) == (24, 8)
        assert sorted(torch.cat([x, x_out])[:, 0].tolist()) == sorted(ROWS.x_train[:, 0].tolist())
    assert len({float(row) for x, _ in own for row in x[:, 0]}) == COUNT

    def loss(s):
        each = zip(others, own, strict=True)
        return sum(float((v[:, 0] - u @ ridge(x, y, s)).square().sum()) for (x, y), (u, v) in each)

    best = min(torch.linspace(-4.0, 2.0, 601).tolist(), key=loss)
    assert -3.0 < best < -0.2
    assert loss(best) < 0.98 * loss(0.0)
    theta, h = states[-1]
    assert float(h[SCALE]) == pytest.approx(best, abs=0.06)
    ((_, weights),) = theta.items()
    for k, (x, y) in enumerate(others):
        torch.testing.assert_close(weights[k, 0], ridge(x, y, float(h[SCALE])), atol=0.02, rtol=0)
    value = -0.5 * loss(float(h[SCALE])) - COUNT * 0.5 * math.log(2 * math.pi)
    assert found.history[-1]["Q"] == pytest.approx(value, abs=0.1)
    chosen = float(states[found.best][1][SCALE])
    model, guide = found.fit.model, found.fit.guide
    assert float(model.net.prior.log_scale.detach()) == chosen
    last = guide.factors["/weight"].value.detach()[0]
    assert found.best > 2
    torch.testing.assert_close(last, ridge(*ROWS.split("train"), chosen), atol=0.03, rtol=0)


def test_terms_are_means_over_folds_with_the_kl_of_their_rows():
    """Of folds that differ: one by one, as of a model of their rows."""
    made = folds.Folds(*pair(guides.MeanField), LEVELS, 2)
    alone = Objectives(*pair(guides.MeanField), (Level(), Level()), 2)
    torch.manual_seed(3)
    others, _ = folds.fold_rows(ROWS, K, 100)
    key = made.key(*others.batch())
    theta = {n: t + 0.1 * torch.randn(t.shape, dtype=F64) for n, t in made.theta.items()}
    each = []
    for k in range(K):
        own = {n: t[k] for n, t in theta.items()}
        noise = [t[k] for t in key.noise]
        each.append(alone.terms(own, made.h, key._replace(x=key.x[k], y=key.y[k], noise=noise)))
    log_likelihood, kl = torch.stack(each).mean(0)  # the KL by 32 rows, of which each has 24
    expected = torch.stack([log_likelihood, kl * 32 / 24])
    torch.testing.assert_close(made.terms(theta, made.h, key), expected)
    assert [len(t) for t in key.noise] == [K] * len(key.noise)


METHODS = [Greedy(), Random(), SelfTuning(warmup=0), Unrolled(restart=True)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_takes_folds(method):
    before = pair(guides.MeanField)[1].state_dict()
    options = {"draws": 3, "outer_steps": 3, "inner_steps": 3, "batch_size": 7, **QUIET}
    found = inference.select(*pair(guides.MeanField), ROWS, Q=LEVELS[1], method=method, **options)
    assert len(found.history) == 3
    assert found.best > 0  # so that steps from the first θ are fewer than those of all outer steps
    assert all(math.isfinite(row["Q"]) for row in found.history)
    moved = found.fit.guide.state_dict()
    largest = max(float((moved[name] - t).abs().max()) for name, t in before.items())
    # By Adam with a rate of 0.01, in three steps for each outer one up to the best; in three alone
    # where each begins at the first θ.
    outer = 1 if method.restart else found.best + 1
    assert 0.5 * 0.03 * outer < largest < 1.1 * 0.03 * outer


def test_a_last_training_that_diverges_is_an_error():
    """The pair stays as it was."""
    model, guide = pair()
    made = folds.Folds(model, guide, LEVELS)
    before = guide.state_dict()["factors./weight.value"].clone()
    with pytest.raises(NonFiniteGradient):
        made.finish(ROWS, COUNT, 30, 2000.0, -2.0)
    assert torch.equal(guide.state_dict()["factors./weight.value"], before)


def test_the_kl_of_the_history_is_that_of_a_posterior():
    """Which L has K / (K - 1) times."""
    model, guide = pair(guides.MeanField)
    made = folds.Folds(model, guide, LEVELS)
    others, own = folds.fold_rows(ROWS, K, COUNT)
    one = search.Search(made, [others, own], 1, 0.01, 0.01)
    found = one.look([[made.key(*part.batch())] for part in (others, own)])
    whole = Objectives(model, guide, (Level(), Level()))
    _, kl = whole.terms(whole.theta, whole.h, whole.key(*ROWS.split("train")))
    assert found["kl"] == pytest.approx(COUNT * float(kl.detach()))
    assert found["kl"] > 1.0
    assert found["L"] == pytest.approx(found["log_likelihood"] - found["kl"] * K / (K - 1))


def test_one_fold_more_than_rows_divide_into():
    """Folds differ by one row, and batches have as many rows as the smallest."""
    others, own = folds.fold_rows(ROWS, 5, 100)
    assert sorted(map(len, own.parts)) == [6, 6, 6, 7, 7]
    assert own.batch()[0].shape == (5, 6, FEATURES)
    assert others.batch()[1].shape == (5, 25, 1)


def test_folds_that_cannot_be():
    streamed = copy.copy(POLYNOMIAL)
    object.__setattr__(streamed, "streamed", True)
    for method, options in (
        (Greedy(), {"L": Level(folds=4)}),
        (Greedy(), {"L": Level(split="val"), "Q": Level(folds=4)}),
        (Greedy(), {"rows": streamed, "Q": Level(folds=4)}),
        (OneLevel(), {"Q": Level(folds=4)}),
        (Greedy(), {"Q": Level(folds=1000)}),
    ):
        with pytest.raises(PyroccamError):
            run(method, polynomial(), **options)
