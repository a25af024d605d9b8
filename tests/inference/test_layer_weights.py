"""A weight of the KL for each layer, learnt on held-out rows: against a prior of another variance,
a sum by hand, and the ridge regression whose best weights are known."""

import dataclasses

import pytest
import torch
from plain import network
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.selection import Greedy, Level, OneLevel, Random, SelfTuning
from pyroccam.inference.selection.hypergradient import implicit
from pyroccam.models import priors
from selecting import F64, QUIET, objectives, rows, scattered
from torch import nn
from torch.distributions import kl_divergence

BY_LAYER, HELD_OUT = Level(prior="layer"), Level(prior=0.0, split="val")


def table():
    """Weights of the first half are large, those of the second half small."""
    g = torch.Generator().manual_seed(5)
    w = torch.tensor([2.0, -1.5, 1.0, 0.5, -0.4, 0.3], dtype=F64)
    parts = []
    for count in (24, 40):
        x = torch.randn(count, 6, generator=g, dtype=F64)
        parts += [x, (x @ w + 2.0 * torch.randn(count, generator=g, dtype=F64))[:, None]]
    made = data.Dataset.from_tensors(*parts, val_fraction=0.0, standardise=False)
    return dataclasses.replace(
        made, **dict(zip(("x_train", "y_train", "x_val", "y_val"), parts, strict=True))
    )


HELD = table()


def point(prior=None):
    """A sum of two linear layers, of half of the inputs each."""
    torch.manual_seed(0)
    halves = {name: nn.Linear(3, 1, bias=False) for name in ("first", "second")}
    net = network(lambda net, x: net.first(x[:, :3]) + net.second(x[:, 3:]), **halves)
    likelihood = models.Regression(1, scale=2.0, floor=0.0)
    prior = prior or priors.Normal()
    model = models.BayesianNetwork(net, HELD, prior=prior, likelihood=likelihood).double()
    model.likelihood.requires_grad_(False)
    return model, guides.Delta(model).double()


def ridge(weights):
    """The best weights ``(6,)`` for weights of the KL ``(2,)``: (X'X / s² + Λ)⁻¹ X'y / s²."""
    x, y = HELD.x_train, HELD.y_train[:, 0]
    precision = weights.repeat_interleave(3).diag()
    return torch.linalg.solve(x.T @ x / 4.0 + precision, x.T @ y / 4.0)


def select(*levels, method, pair=None, **options):
    options = {"inner_steps": 50, "lr": 0.02, "draws": 1, **QUIET, **options}
    return inference.select(*pair or point(), HELD, *levels, method=method, **options)


def assert_of_ridge(found):
    weights = torch.tensor([*found.kl_weights.values()], dtype=F64)
    names = ("first.weight", "second.weight")
    learnt = torch.cat([found.fit.guide.posterior(name).mean[0] for name in names])
    torch.testing.assert_close(learnt, ridge(weights), atol=0.05, rtol=0.0)
    return weights


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
    pairs = point(), point(priors.Normal(learn="scale"))
    slopes = []
    for pair, L in zip(pairs, (BY_LAYER, Level()), strict=True):
        made = objectives(pair, L, HELD_OUT)
        theta = {n: torch.linspace(-1, 1, t.numel(), dtype=F64).reshape(t.shape)
                 for n, t in made.theta.items()}  # fmt: skip
        inner, outer = (made.key(*HELD.split(split)) for split in ("train", "val"))
        found, _ = implicit(
            made.inner, made.outer, theta, made.h, inner_key=inner, key=outer, damping=0.0,
            max_iter=100,
        )  # fmt: skip
        slopes.append(torch.stack([*found.values()]))
    assert slopes[0].abs().min() > 1e-6
    torch.testing.assert_close(slopes[0], -0.5 * slopes[1], rtol=1e-6, atol=1e-9)


def test_self_tuning_finds_the_weights_that_a_grid_finds():
    found = select(BY_LAYER, HELD_OUT, method=SelfTuning(), outer_steps=20, outer_lr=0.05)

    def loss(logs):
        return float((HELD.y_val[:, 0] - HELD.x_val @ ridge(logs.exp())).square().mean())

    grid = torch.linspace(-6.0, 6.0, 25, dtype=F64)
    losses = torch.tensor([[loss(torch.stack([a, b])) for b in grid] for a in grid])
    assert float(losses.diag().min()) > float(losses.min()) + 0.3  # of one weight for all
    assert loss(assert_of_ridge(found).log()) < float(losses.min()) + 2e-3
    assert list(found.kl_weights) == ["first", "second"]


def test_folds_end_with_all_rows_and_the_weights_that_were_found():
    options = {"method": Greedy(), "outer_steps": 2, "inner_steps": 300, "outer_lr": 0.002}
    found = select(BY_LAYER, Level(prior=0.0, folds=4), **options)
    assert (assert_of_ridge(found) - 1.0).abs().max() > 0.1


def test_random_draws_weights():
    found = select(BY_LAYER, HELD_OUT, method=Random(), outer_steps=3, inner_steps=3)
    assert all(value != 1.0 for value in found.kl_weights.values())
    pair = point(priors.Normal(learn="scale"))
    found = select(Level(), HELD_OUT, method=Random(), pair=pair, outer_steps=1, inner_steps=1)
    assert found.kl_weights == {}


@pytest.mark.parametrize(
    ("Q", "method"),
    [
        (Level(), Greedy()),
        (Level(prior=1.0, split="val"), Greedy()),
        (Level(prior=0.0), Greedy()),
        (Level(prior="layer", split="val"), Greedy()),
        (Level(), OneLevel()),
    ],
)
def test_rows_that_were_seen_say_nothing_of_the_weights(Q, method):
    with pytest.raises(PyroccamError):
        select(BY_LAYER, Q, method=method)


def test_a_guide_for_every_weight_has_none_by_layer():
    model, guide = point()
    pair = model, guides.Conditional(guide, low=0.1, high=2.0)
    with pytest.raises(PyroccamError):
        select(BY_LAYER, HELD_OUT, method=Greedy(), pair=pair)
