"""Selections for linear models whose best weights and scales are known: by cross-validation, by
self-tuning, and with a weight of the KL for each layer."""

import dataclasses
import math

import pytest
import torch
from differences import gradient_ascent
from plain import network
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.selection import (
    Greedy,
    Implicit,
    Level,
    OneLevel,
    SelfTuning,
    Unrolled,
    folds,
    search,
    self_tuning,
)
from pyroccam.inference.selection.hypergradient import NonFiniteGradient, implicit
from pyroccam.inference.selection.levels import Objectives
from pyroccam.models import priors
from selecting import F64, QUIET, objectives, polynomial, rows, run, scattered, states_of
from torch import nn
from torch.distributions import kl_divergence

SCALE = "model.net.prior.log_scale"
FEATURES, K = 6, 4
HELD_OUT, FOLDS = Level(prior=0.0, split="val"), Level(prior=0.0, folds=K)


def table(w, counts=(30, 30), noise=1.0, seed=0):
    """Rows for the weights, and others for their scale; ``w`` are the weights, or their size."""
    g = torch.Generator().manual_seed(seed)
    w = w if isinstance(w, torch.Tensor) else w * torch.randn(FEATURES, generator=g, dtype=F64)
    parts = []
    for count in counts:
        x = torch.randn(count, len(w), generator=g, dtype=F64)
        parts += [x, (x @ w + noise * torch.randn(count, generator=g, dtype=F64))[:, None]]
    made = data.Dataset.from_tensors(*parts, val_fraction=0.0, standardise=False)
    names = ("x_train", "y_train", "x_val", "y_val")
    return dataclasses.replace(made, **dict(zip(names, parts, strict=True)))


def pair(found, guide=guides.Delta, net=None, prior=None, scale=1.0):
    """By default of points, under one scale of all weights that is learnt; the noise is known."""
    torch.manual_seed(0)
    net = nn.Linear(FEATURES, 1, bias=False) if net is None else net()
    likelihood = models.Regression(1, scale=scale, floor=0.0)
    prior = prior or priors.Normal(learn="scale")
    model = models.BayesianNetwork(net, found, prior=prior, likelihood=likelihood).double()
    model.likelihood.requires_grad_(False)
    return model, guide(model).double()


def ridge(x, y, precision, noise=1.0):
    """The best weights: (X'X / s² + diag(λ))⁻¹ X'y / s²."""
    precision = precision.expand(FEATURES).diag()
    return torch.linalg.solve(x.T @ x / noise**2 + precision, x.T @ y[:, 0] / noise**2)


def misfit(x, y, w):
    return float((y[:, 0] - x @ w).square().sum())


@pytest.fixture
def states(monkeypatch):
    return states_of(monkeypatch)


# -- cross-validation -------------------------------------------------------------------------

ROWS = table(0.3, counts=(32, 2), seed=16)
LEVELS = Level(), FOLDS


def test_the_scale_of_cross_validation(states, monkeypatch):
    """By a grid over the loss of all rows, each by the weights of the other folds; those weights;
    and in the end the weights of all rows."""
    made, parts = folds.stacked, []
    monkeypatch.setattr(folds, "stacked", lambda *a: parts.append(a[2]) or made(*a))
    steps = {"outer_steps": 50, "inner_steps": 20, "lr": 0.03, "outer_lr": 0.05}
    options = {"Q": FOLDS, "method": Implicit(), "draws": 1, **steps}
    found = inference.select(*pair(ROWS), ROWS, **options, **QUIET)
    x, y = ROWS.split("train")
    others, own = ([(x[one], y[one]) for one in part] for part in parts)
    for (x, _), (x_out, _) in zip(others, own, strict=True):
        assert (len(x), len(x_out)) == (24, 8)
        assert sorted(torch.cat([x, x_out])[:, 0].tolist()) == sorted(ROWS.x_train[:, 0].tolist())
    assert len({float(row) for x, _ in own for row in x[:, 0]}) == 32

    def best_of(x, y, s):
        return ridge(x, y, torch.tensor(math.exp(-2.0 * s), dtype=F64))

    def loss(s):
        each = zip(others, own, strict=True)
        return sum(misfit(*out, best_of(*rest, s)) for rest, out in each)

    best = min(torch.linspace(-4.0, 2.0, 601).tolist(), key=loss)
    assert -3.0 < best < -0.2
    assert loss(best) < 0.98 * loss(0.0)
    theta, h, _ = states[-1]
    assert float(h[SCALE]) == pytest.approx(best, abs=0.06)
    ((_, weights),) = theta.items()
    for k, rest in enumerate(others):
        known = best_of(*rest, float(h[SCALE]))
        torch.testing.assert_close(weights[k, 0], known, atol=0.02, rtol=0)
    value = -0.5 * loss(float(h[SCALE])) - 32 * 0.5 * math.log(2 * math.pi)
    assert found.history[-1]["Q"] == pytest.approx(value, abs=0.1)
    chosen = float(states[found.best][1][SCALE])
    assert float(found.fit.model.net.prior.log_scale.detach()) == chosen
    last = found.fit.guide.factors["/weight"].value.detach()[0]
    assert found.best > 2
    known = best_of(*ROWS.split("train"), chosen)
    torch.testing.assert_close(last, known, atol=0.03, rtol=0)


def test_terms_are_means_over_folds_with_the_kl_of_their_rows():
    """Of folds that differ, one by one, as of a model of their rows; the history has the KL of a
    posterior, which L has K / (K - 1) times."""
    made = folds.Folds(*pair(ROWS, guides.MeanField), LEVELS, 2)
    alone = Objectives(*pair(ROWS, guides.MeanField), (Level(), Level()), 2)
    torch.manual_seed(3)
    others, own = folds.fold_rows(ROWS, K, 100)
    key = made.key(*next(others))
    theta = {n: t + 0.1 * torch.randn(t.shape, dtype=F64) for n, t in made.theta.items()}
    each = []
    for k in range(K):
        noise = [t[k] for t in key.noise]
        one = key._replace(x=key.x[k], y=key.y[k], noise=noise)
        each.append(alone.terms({n: t[k] for n, t in theta.items()}, made.h, one))
    log_likelihood, kl = torch.stack(each).mean(0)  # the KL by 32 rows, of which each has 24
    expected = torch.stack([log_likelihood, kl * 32 / 24])
    torch.testing.assert_close(made.terms(theta, made.h, key), expected)
    assert [len(t) for t in key.noise] == [K] * len(key.noise)
    look = search.Search(made, [others, own], 1, 0.01, 0.01).look
    found = look([[made.key(*next(part))] for part in (others, own)])
    _, kl = alone.terms(alone.theta, alone.h, alone.key(*ROWS.split("train")))
    assert found["kl"] == pytest.approx(32 * float(kl.detach()))
    assert found["L"] == pytest.approx(found["log_likelihood"] - found["kl"] * K / (K - 1))
    # Folds differ by one row, and batches have as many rows as the smallest.
    others, own = folds.fold_rows(ROWS, 5, 100)
    assert next(own)[0].shape == (5, 6, FEATURES)
    assert next(others)[1].shape == (5, 25, 1)


METHODS = [Greedy(), SelfTuning(warmup=0), Unrolled(restart=True)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_takes_folds(method):
    model, guide = pair(ROWS, guides.MeanField)
    before = {name: t.clone() for name, t in guide.state_dict().items()}
    options = {"draws": 3, "outer_steps": 3, "inner_steps": 3, "batch_size": 7, **QUIET}
    found = inference.select(model, guide, ROWS, Q=FOLDS, method=method, **options)
    assert found.best > 0  # so that steps from the first θ are fewer than those of all outer steps
    assert all(math.isfinite(row["Q"]) for row in found.history)
    largest = max(float((guide.state_dict()[name] - t).abs().max()) for name, t in before.items())
    # By Adam with a rate of 0.01, in three steps for each outer one up to the best; in three alone
    # where each begins at the first θ.
    outer = 1 if method.restart else found.best + 1
    assert 0.5 * 0.03 * outer < largest < 1.1 * 0.03 * outer


def test_a_last_training_that_diverges_is_an_error():
    """The pair stays as it was."""
    model, guide = pair(ROWS)
    made = folds.Folds(model, guide, LEVELS)
    before = guide.state_dict()["factors./weight.value"].clone()
    with pytest.raises(NonFiniteGradient):
        made.finish(ROWS, 32, 30, 2000.0, -2.0)
    assert torch.equal(guide.state_dict()["factors./weight.value"], before)


# -- self-tuning ------------------------------------------------------------------------------


def test_a_step_of_both_by_hand(states, monkeypatch):
    """One step of θ, of its slopes, of h and of the spread, by plain gradients: the formulas of the
    docstring. At ±δ a square has the gradient of its middle."""
    monkeypatch.setattr(search, "adam", gradient_ascent)
    noise = torch.tensor(0.7, dtype=F64)
    monkeypatch.setattr(self_tuning.torch, "randn_like", lambda t: noise.expand_as(t).clone())
    found = table(0.5)
    method = SelfTuning(steps=1, spread=0.4, entropy=1e-9, warmup=0)
    model, guide = pair(found)
    start = guide.factors["/weight"].value.detach().clone()[0]
    inference.select(
        model, guide, found, Level(), HELD_OUT, method=method, outer_steps=1, inner_steps=1,
        lr=0.1, outer_lr=3.0, draws=1, **QUIET,
    )  # fmt: skip
    delta, n = 0.4 * 0.7, 30

    def slope_of_l(w, log_scale):
        x, y = found.x_train, found.y_train[:, 0]
        return (x.T @ (y - x @ w) - math.exp(-2 * log_scale) * w) / n

    both = slope_of_l(start, delta), slope_of_l(start, -delta)
    w, slope = start + 0.1 * (both[0] + both[1]) / 2, 0.1 * delta * (both[0] - both[1]) / 2
    of_q = found.x_val.T @ (found.y_val[:, 0] - found.x_val @ w) / n
    h = 3.0 * of_q @ slope
    theta, moved, kept = states[0]
    assert float(moved[SCALE]) == pytest.approx(float(h), rel=1e-6)
    assert h.abs() > 1e-5
    bend = (found.x_val @ slope).square().sum() / n
    assert delta**2 * bend > 1e-9
    log_spread = math.log(0.4) + 3.0 * (1e-9 - delta**2 * bend)
    assert float(kept.log_spread[SCALE]) == pytest.approx(float(log_spread), abs=1e-13)
    assert torch.allclose(next(iter(kept.slopes.values()))[0], slope)
    assert torch.allclose(next(iter(theta.values()))[0], w + slope * h)


def test_h_moves_in_the_first_step_that_is_allowed():
    model, guide = polynomial()
    before = model.net.prior.log_scale.detach().clone()
    run(SelfTuning(steps=7, warmup=3), (model, guide), outer_steps=1, inner_steps=7)
    assert not torch.equal(before, model.net.prior.log_scale.detach())


# -- a weight of the KL for each layer --------------------------------------------------------

BY_LAYER = Level(prior="layer")
HELD = table(  # weights of the first half are large, those of the second half small
    torch.tensor([2.0, -1.5, 1.0, 0.5, -0.4, 0.3], dtype=F64), (24, 40), noise=2.0, seed=5
)


def halves(prior=None, guide=guides.Delta):
    """A sum of two linear layers, of half of the inputs each."""

    def net():
        parts = {name: nn.Linear(3, 1, bias=False) for name in ("first", "second")}
        return network(lambda net, x: net.first(x[:, :3]) + net.second(x[:, 3:]), **parts)

    return pair(HELD, guide, net, prior or priors.Normal(), scale=2.0)


def select(*levels, method, pair=None, **options):
    options = {"inner_steps": 50, "lr": 0.02, "draws": 1, **QUIET, **options}
    return inference.select(*pair or halves(), HELD, *levels, method=method, **options)


def test_the_sum_by_hand():
    """With local reparameterisation, whose noise has no part in the KL."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    made = data.Dataset.from_tensors(*rows(), *rows(), val_fraction=0.0, standardise=False)
    model = models.BayesianNetwork(net, made, prior=priors.GroupNormalJeffreys()).double()
    pair = scattered(model)
    made, usual = objectives(pair, BY_LAYER, HELD_OUT), objectives(pair)
    assert made.kl_weights() == {"0": 1.0, "2": 1.0}
    ours = [name for name in made.h_names if name.endswith("log_kl_weight")]
    logs = torch.tensor([0.7, -1.2], dtype=F64)
    h = {**made.h, **dict(zip(ours, logs, strict=True))}
    key = made.key(*(part.double() for part in rows()))
    log_likelihood, kl = made.terms(made.theta, h, key)
    by_layer = {"0": 0.0, "2": 0.0}
    for site, (layer, name) in model.sites.items():
        q, p = pair[1].posterior(site), layer.latents()[name].prior
        by_layer[layer.name] += float(kl_divergence(q, p).detach())
    expected = logs.exp() @ torch.tensor([*by_layer.values()], dtype=F64)
    torch.testing.assert_close(kl * model.size, expected)
    inner = made.inner(made.theta, h, key)
    torch.testing.assert_close(inner, log_likelihood - expected / model.size)
    assert len(usual.h) == len(made.h) - 2
    torch.testing.assert_close(usual.terms(usual.theta, usual.h, key)[0], log_likelihood)


def test_the_gradient_is_that_of_a_precision_of_the_prior():
    """Of points under N(0, 1) the weight λ is a precision: the slope by log λ is -½ of that by the
    logarithm of the prior's deviation, whose normaliser is in no held-out likelihood."""
    slopes = []
    for prior, L in ((None, BY_LAYER), (priors.Normal(learn="scale"), Level())):
        made = objectives(halves(prior), L, HELD_OUT)
        theta = {n: torch.linspace(-1, 1, t.numel(), dtype=F64).reshape(t.shape)
                 for n, t in made.theta.items()}  # fmt: skip
        inner, outer = (made.key(*HELD.split(split)) for split in ("train", "val"))
        keys = {"inner_key": inner, "key": outer}
        found, _ = implicit(made.inner, made.outer, theta, made.h, **keys, max_iter=100)
        slopes.append(torch.stack([*found.values()]))
    assert slopes[0].abs().min() > 1e-6
    torch.testing.assert_close(slopes[0], -0.5 * slopes[1], rtol=1e-6, atol=1e-9)


def test_rows_that_were_seen_say_nothing_of_the_weights():
    """And a guide for every weight has none by layer."""
    conditional = halves(guide=lambda m: guides.Conditional(guides.Delta(m), low=0.1, high=2.0))
    for Q, more in (
        (Level(), {}),
        (Level(prior=1.0, split="val"), {}),
        (Level(prior=0.0), {}),
        (Level(prior="layer", split="val"), {}),
        (Level(), {"method": OneLevel()}),
        (HELD_OUT, {"pair": conditional}),
    ):
        with pytest.raises(PyroccamError):
            select(BY_LAYER, Q, **{"method": Greedy(), **more})
