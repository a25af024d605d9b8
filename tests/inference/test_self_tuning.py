"""Self-tuning against ridge regression, where the best response and the best scale are known."""

import dataclasses
import math

import pytest
import torch
from differences import gradient_ascent
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.selection import Level, SelfTuning, search, self_tuning
from pyroccam.models import priors
from selecting import F64, POLYNOMIAL, QUIET, polynomial, run
from torch import nn

HOLDOUT = {"L": Level(), "Q": Level(prior=0.0, split="val")}
SCALE = "model.net.prior.log_scale"
FEATURES = 6


def table(rows=30, seed=0):
    """Rows of a regression with noise 1 for the weights, and others for their scale."""
    g = torch.Generator().manual_seed(seed)
    w = 0.5 * torch.randn(FEATURES, generator=g, dtype=F64)
    parts = []
    for _ in range(2):
        x = torch.randn(rows, FEATURES, generator=g, dtype=F64)
        parts += [x, (x @ w + torch.randn(rows, generator=g, dtype=F64))[:, None]]
    made = data.Dataset.from_tensors(*parts, val_fraction=0.0, standardise=False)
    x, y, x_val, y_val = parts
    return dataclasses.replace(made, x_train=x, y_train=y, x_val=x_val, y_val=y_val)


def point(rows):
    """Weights of the highest density, beside scales of the prior that are learnt; known noise."""
    torch.manual_seed(0)
    likelihood = models.Regression(1, scale=1.0, floor=0.0)
    model = models.BayesianNetwork(
        nn.Linear(FEATURES, 1, bias=False), rows, prior=priors.Normal(learn="scale"),
        likelihood=likelihood,
    ).double()  # fmt: skip
    model.likelihood.requires_grad_(False)
    return model, guides.Delta(model)


def response(rows, log_scale):
    """The best weights: (X'X + diag(s⁻²))⁻¹ X'y."""
    x, y = rows.x_train, rows.y_train[:, 0]
    precision = torch.exp(-2.0 * log_scale).expand(FEATURES).diag()
    return torch.linalg.solve(x.T @ x + precision, x.T @ y)


def watched(monkeypatch):
    look, states = search.Search.look, []

    def watch(self, keys):
        states.append((self.theta, self.h, self.kept))
        return look(self, keys)

    monkeypatch.setattr(search.Search, "look", watch)
    return states


def test_the_scale_of_ridge_regression_and_the_slopes_of_its_weights(monkeypatch):
    """One scale of all weights: the best is found by a grid over the loss of the other rows, and
    slopes are the derivative of the best weights by its logarithm."""
    rows = table(seed=1)
    states = watched(monkeypatch)
    inference.select(
        *point(rows), rows, *HOLDOUT.values(), method=SelfTuning(), outer_steps=16,
        inner_steps=100, lr=0.02, outer_lr=0.02, draws=1, **QUIET,
    )  # fmt: skip

    def loss(s):
        return float((rows.y_val[:, 0] - rows.x_val @ response(rows, s)).square().sum())

    grid = torch.linspace(-4.0, 2.0, 6001, dtype=F64)
    losses = torch.tensor([loss(s) for s in grid])
    best = float(grid[losses.argmin()])
    assert losses.min() < 0.95 * min(losses[0], losses[-1], loss(torch.zeros((), dtype=F64)))
    found = torch.stack([h[SCALE] for _, h, _ in states[-5:]])
    assert found.tolist() == pytest.approx([best] * 5, abs=0.03)
    theta, h, kept = states[-1]
    ((name, weights),) = theta.items()
    assert torch.allclose(weights[0], response(rows, h[SCALE]), atol=0.01)
    slope = torch.func.jacrev(lambda s: response(rows, s))(h[SCALE])
    assert torch.allclose(kept.slopes[f"{name} by {SCALE}"][0], slope, atol=0.02)
    assert float(slope.abs().max()) > 0.2
    assert float(kept.log_spread[SCALE]) < math.log(0.3)  # which is learnt, from 0.5 on


def test_a_step_of_both_by_hand(monkeypatch):
    """One step of θ, of its slopes and of h, by plain gradients: the formulas of the docstring."""
    monkeypatch.setattr(search, "adam", gradient_ascent)
    noise = torch.tensor(0.7, dtype=F64)
    monkeypatch.setattr(self_tuning.torch, "randn_like", lambda t: noise.expand_as(t).clone())
    rows = table()
    states = watched(monkeypatch)
    method = SelfTuning(steps=1, spread=0.4, entropy=None, warmup=0)
    model, guide = point(rows)
    start = guide.factors["/weight"].value.detach().clone()[0]
    inference.select(
        model, guide, rows, *HOLDOUT.values(), method=method, outer_steps=1, inner_steps=1, lr=0.1,
        outer_lr=3.0, draws=1, **QUIET,
    )  # fmt: skip
    delta, n = 0.4 * 0.7, 30

    def slope_of_l(w, log_scale):
        x, y = rows.x_train, rows.y_train[:, 0]
        return (x.T @ (y - x @ w) - math.exp(-2 * log_scale) * w) / n

    both = slope_of_l(start, delta), slope_of_l(start, -delta)
    w, slope = start + 0.1 * (both[0] + both[1]) / 2, 0.1 * delta * (both[0] - both[1]) / 2
    of_q = rows.x_val.T @ (rows.y_val[:, 0] - rows.x_val @ w) / n
    h = 3.0 * of_q @ slope
    theta, found, kept = states[0]
    assert float(found[SCALE]) == pytest.approx(float(h), rel=1e-6)
    assert h.abs() > 1e-5
    assert torch.allclose(next(iter(kept.slopes.values()))[0], slope)
    assert torch.allclose(next(iter(theta.values()))[0], w + slope * h)


def test_scales_of_many_weights_are_tuned_in_folds():
    rows = table(rows=40)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 33, generator=g, dtype=F64)
    rows = data.Dataset.from_tensors(
        x, rows.y_train, x, rows.y_train, val_fraction=0.0, standardise=False
    )
    rows = dataclasses.replace(rows, x_train=x, y_train=rows.y_train.to(F64))
    model = models.BayesianNetwork(
        nn.Linear(33, 1, bias=False), rows, prior=priors.Normal(learn="weight")
    ).double()
    found = inference.select(
        model, guides.Delta(model).double(), rows, Q=Level(prior=0.0, folds=4), draws=2,
        method=SelfTuning(warmup=4), outer_steps=3, inner_steps=6, **QUIET,
    )  # fmt: skip
    assert math.isfinite(found.Q)
    assert model.net.prior.log_scale.detach().unique().numel() > 20


def test_steps_that_end_before_h_moves_are_refused():
    for method, least in ((SelfTuning(), 102), (SelfTuning(steps=7, warmup=3), 7)):
        with pytest.raises(PyroccamError):
            run(method, outer_steps=1, inner_steps=least - 1)
    model, guide = polynomial()
    before = model.net.prior.log_scale.detach().clone()
    run(method, (model, guide), outer_steps=1, inner_steps=7)
    assert not torch.equal(before, model.net.prior.log_scale.detach())


def test_what_cannot_be_tuned():
    class Bent(priors.Normal):
        def for_layer(self, layer):
            made = super().for_layer(layer)
            made.bend = nn.Parameter(torch.zeros(50))
            return made

    with pytest.raises(PyroccamError):
        run(SelfTuning(warmup=0), polynomial(prior=Bent(learn="weight")), rows=POLYNOMIAL)
