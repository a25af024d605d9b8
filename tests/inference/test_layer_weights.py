"""A weight of the KL for each layer, learnt on held-out rows: against a prior of another variance,
a sum by hand, and the ridge regression whose best weights are known."""

import dataclasses

import pytest
import torch
from pyroccam import data, guides, inference, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.selection import Greedy, Level, OneLevel, Random, SelfTuning
from pyroccam.inference.selection.hypergradient import implicit
from pyroccam.models import priors
from selecting import F64, QUIET, objectives, rows, scattered
from torch import nn
from torch.distributions import kl_divergence

LEVELS = Level(prior="layer"), Level(prior=0.0, split="val")
COUNT = 24


class Halves(nn.Module):
    """A sum of two linear layers, of half of the inputs each."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Linear(3, 1, bias=False) for _ in range(2))

    def forward(self, x):
        return self.first(x[:, :3]) + self.second(x[:, 3:])


def table(seed=5):
    """Weights of the first half are large, those of the second half small."""
    g = torch.Generator().manual_seed(seed)
    w = torch.tensor([2.0, -1.5, 1.0, 0.5, -0.4, 0.3], dtype=F64)
    parts = []
    for count in (COUNT, 40):
        x = torch.randn(count, 6, generator=g, dtype=F64)
        parts += [x, (x @ w + 2.0 * torch.randn(count, generator=g, dtype=F64))[:, None]]
    made = data.Dataset.from_tensors(*parts, val_fraction=0.0, standardise=False)
    x, y, x_val, y_val = parts
    return dataclasses.replace(made, x_train=x, y_train=y, x_val=x_val, y_val=y_val)


def point(table, prior=None):
    torch.manual_seed(0)
    likelihood = models.Regression(1, scale=2.0, floor=0.0)
    model = models.BayesianNetwork(
        Halves(), table, prior=prior or priors.Normal(), likelihood=likelihood
    ).double()
    model.likelihood.requires_grad_(False)
    return model, guides.Delta(model).double()


def ridge(table, weights):
    """The best weights ``(6,)`` for weights of the KL ``(2,)``: (X'X / s² + Λ)⁻¹ X'y / s²."""
    x, y = table.x_train, table.y_train[:, 0]
    precision = weights.repeat_interleave(3).diag()
    return torch.linalg.solve(x.T @ x / 4.0 + precision, x.T @ y / 4.0)


def weights_of(fit):
    return torch.cat([fit.guide.posterior(f"{n}.weight").mean[0] for n in ("first", "second")])


def test_the_sum_by_hand():
    """With local reparameterisation, whose noise has no part in the KL."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    model = models.BayesianNetwork(
        net, data.Dataset.from_tensors(*rows(), *rows(), val_fraction=0.0, standardise=False),
        prior=priors.GroupNormalJeffreys(),
    ).double()  # fmt: skip
    pair = scattered(model)
    made, usual = objectives(pair, *LEVELS), objectives(pair)
    assert made.kl_weights() == {"0": 1.0, "2": 1.0}
    ours = [name for name in made.h_names if name.endswith("log_kl_weight")]
    assert len(ours) == 2
    h = {**made.h, ours[0]: torch.tensor(0.7, dtype=F64), ours[1]: torch.tensor(-1.2, dtype=F64)}
    key = made.key(*(part.double() for part in rows()))
    log_likelihood, kl = made.terms(made.theta, h, key)
    by_layer = {"0": 0.0, "2": 0.0}
    for site, (layer, name) in model.sites.items():
        q, p = pair[1].posterior(site), layer.latents()[name].prior
        by_layer[layer.name] += float(kl_divergence(q, p).detach())
    expected = torch.tensor([0.7, -1.2], dtype=F64).exp() @ torch.tensor(
        [*by_layer.values()], dtype=F64
    )
    torch.testing.assert_close(kl * model.size, expected)
    torch.testing.assert_close(
        made.inner(made.theta, h, key), log_likelihood - expected / model.size
    )
    assert len(usual.h) == len(made.h) - 2
    torch.testing.assert_close(usual.terms(usual.theta, usual.h, key)[0], log_likelihood)


def test_the_gradient_is_that_of_a_precision_of_the_prior():
    """Of points under N(0, 1) the weight λ is a precision: the slope by log λ is -½ of that by the
    logarithm of the prior's deviation, whose normaliser is in no held-out likelihood."""
    held = table()
    pairs = point(held), point(held, priors.Normal(learn="scale"))
    slopes = []
    for pair, L in zip(pairs, (LEVELS[0], Level()), strict=True):
        made = objectives(pair, L, LEVELS[1])
        theta = {n: torch.linspace(-1, 1, t.numel(), dtype=F64).reshape(t.shape)
                 for n, t in made.theta.items()}  # fmt: skip
        keys = made.key(held.x_train, held.y_train), made.key(held.x_val, held.y_val)
        found, _ = implicit(
            made.inner, made.outer, theta, made.h, inner_key=keys[0], key=keys[1], damping=0.0,
            max_iter=100,
        )  # fmt: skip
        slopes.append(torch.stack([*found.values()]))
    assert slopes[0].abs().min() > 1e-6
    torch.testing.assert_close(slopes[0], -0.5 * slopes[1], rtol=1e-6, atol=1e-9)


def test_self_tuning_finds_the_weights_that_a_grid_finds():
    held = table()
    found = inference.select(
        *point(held), held, *LEVELS, method=SelfTuning(), outer_steps=20, inner_steps=50, lr=0.02,
        outer_lr=0.05, draws=1, **QUIET,
    )  # fmt: skip

    def loss(logs):
        best = ridge(held, logs.exp())
        return float((held.y_val[:, 0] - held.x_val @ best).square().mean())

    grid = torch.linspace(-6.0, 6.0, 49, dtype=F64)
    losses = torch.tensor([[loss(torch.stack([a, b])) for b in grid] for a in grid])
    weights = torch.tensor([*found.kl_weights.values()], dtype=F64)
    one_for_all = float(losses.diag().min())
    assert one_for_all > float(losses.min()) + 0.3
    assert loss(weights.log()) < float(losses.min()) + 2e-3
    assert list(found.kl_weights) == ["first", "second"]
    torch.testing.assert_close(weights_of(found.fit), ridge(held, weights), atol=0.05, rtol=0.0)


def test_folds_end_with_all_rows_and_the_weights_that_were_found():
    held = table()
    found = inference.select(
        *point(held), held, LEVELS[0], Level(prior=0.0, folds=4), method=Greedy(), outer_steps=2,
        inner_steps=300, lr=0.02, outer_lr=0.002, draws=1, **QUIET,
    )  # fmt: skip
    weights = torch.tensor([*found.kl_weights.values()], dtype=F64)
    assert (weights - 1.0).abs().max() > 0.1
    torch.testing.assert_close(weights_of(found.fit), ridge(held, weights), atol=0.05, rtol=0.0)


def test_random_draws_weights():
    held = table()
    found = inference.select(
        *point(held), held, *LEVELS, method=Random(), outer_steps=3, inner_steps=3, draws=1, **QUIET
    )
    assert all(value != 1.0 for value in found.kl_weights.values())


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
    held = table()
    with pytest.raises(PyroccamError):
        inference.select(*point(held), held, LEVELS[0], Q, method=method, **QUIET)


def test_what_cannot_be_weighed():
    with pytest.raises(PyroccamError):
        Level(prior="layers")
    held = table()
    model, guide = point(held)
    every = guides.Conditional(guide, low=0.1, high=2.0)
    with pytest.raises(PyroccamError):
        inference.select(model, every, held, *LEVELS, **QUIET)
    assert inference.select(
        *point(held, priors.Normal(learn="scale")), held, Q=LEVELS[1], outer_steps=1,
        inner_steps=1, draws=1, **QUIET,
    ).kl_weights == {}  # fmt: skip
