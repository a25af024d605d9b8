"""Guides of Bayesian networks: every prior with every guide, and what is known exactly."""

import contextlib
import copy
import math

import pyro
import pytest
import torch
from pyroccam import guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.guides.factors import NormalFactor
from pyroccam.inference.elbo import bound
from pyroccam.models import BayesianNetwork, local_reparameterisation, priors
from pyroccam.models.priors import Latent, LayerPrior, WeightPrior
from random_weights import (
    OPTIONS,
    PRIORS,
    Rows,
    normal_kl,
    normal_log_density,
    pair,
    small_net,
    table,
)
from torch import nn

LOWER = torch.ones(2, 3).tril().bool()
BOOKS = {"0": (torch.tensor([-0.2, 0.3]), torch.tensor([[0, 1, -1], [1, 1, 0]]))}

GUIDES = {
    "mean-field": guides.MeanField,
    "mean-field-drawn": lambda model: guides.MeanField(model, local=False),
    "dropout-weight": guides.VariationalDropout,
    "dropout-neuron": lambda model: guides.VariationalDropout(model, rate="neuron"),
    "dropout-layer": lambda model: guides.VariationalDropout(model, rate="layer"),
    "zero-mean": lambda model: guides.ZeroMean(model, scale=1.5),
    "zero-mean-uniform": lambda model: guides.ZeroMean(model, scale=2.0, noise="uniform"),
    "zero-mean-rademacher": lambda model: guides.ZeroMean(model, scale=1.5, noise="rademacher"),
    "delta": guides.Delta,
    "pruned": lambda model: guides.Points(model, by=guides.Mask({"0": LOWER})),
    "spliced": lambda model: guides.Points(model, by=guides.Switch(c=-0.5)),
    "codebook": lambda model: guides.Points(model, by=guides.Book(BOOKS)),
}
POINTS = ("delta", "pruned", "spliced", "codebook")

# Priors with a density that is infinite somewhere.
NO_MODE = {
    "LogUniform", "MultiSpike", "GroupNormalJeffreys", "GroupHorseshoe", "ARD", "SharedNormal",
    "SpikeSlab",
}  # fmt: skip

# Priors of weights to which a normal has no KL in closed form.
NO_KL = {"GaussianMixture", "Integers", "UnsquaredNorm"}
NO_KL_OF_BIASES = {"Integers"}

pytestmark = pytest.mark.usefixtures("clean")


def bounds(pair, rows):
    """The sum of bounds at noise that is the same in every call."""
    evaluate = bound(*pair)
    with torch.no_grad(), pyro.validation_enabled(False), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return sum(float(evaluate(*rows.split("train"))) for _ in range(25))


DRAWN = (priors.GroupNormalJeffreys(), priors.GaussianMixture(), priors.Integers())
MATRIX = [
    *((prior, kind) for prior in PRIORS for kind in ("mean-field", "dropout-weight", "delta")),
    *((prior, kind) for prior in (*DRAWN, priors.Normal()) for kind in GUIDES),
    *((prior, "mean-field") for prior in OPTIONS),
]


@pytest.mark.parametrize(("prior", "kind"), MATRIX, ids=lambda it: it if it in GUIDES else repr(it))
def test_a_pair_trains_or_says_why_not(prior, kind):
    rows = table()
    model = BayesianNetwork(nn.Sequential(nn.Linear(3, 2)), rows, prior=prior)
    if kind in POINTS and type(prior).__name__ in NO_MODE:
        with pytest.raises(PyroccamError):
            GUIDES[kind](model)
        return
    guide = GUIDES[kind](model)
    settings = {"epochs": 12, "evaluations": 1, "batch_size": 60, "lr": 0.03, "progress": False}
    drawn = kind in ("zero-mean-uniform", "zero-mean-rademacher")  # but for their biases
    refused = NO_KL_OF_BIASES if drawn else NO_KL
    if guide.handler is not None and type(prior).__name__ in refused:
        with pytest.raises(PyroccamError):
            inference.fit(model, guide, rows, device="cpu", **settings)
        return
    before = bounds((model, guide), rows)
    with pyro.validation_enabled(False):
        inference.fit(
            model, guide, rows, device="cpu", compile=False, checkpoint="last", **settings
        )
    assert bounds((model, guide), rows) < before


class Interval(WeightPrior):
    """A scale that nothing covers."""

    def for_layer(self, layer):
        return _Interval(layer)


class _Interval(LayerPrior):
    def latents(self):
        scale = pyro.distributions.Beta(self.one, self.one)
        return {
            "weight": self.standard(self.layer.weight),
            "scale": Latent(scale, start=(0.0, 0.1)),
            **self.standard_bias(),
        }


def test_a_support_that_nothing_covers():
    model = BayesianNetwork(small_net(), Rows(3), prior=Interval())
    with pytest.raises(PyroccamError):
        guides.MeanField(model)
    assert guides.Delta(model).posterior("0.scale").v == 0.5  # the logistic of 0


NOISE, PRIOR_SCALE = 0.4, 1.5


def linear_problem():
    """A Bayesian linear regression of 12 rows with known noise, in double precision."""
    x = torch.randn(12, 3, dtype=torch.float64) + 0.3
    y = x @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64) + 0.7
    y = y + NOISE * torch.randn_like(y)
    likelihood = models.Regression(1, scale=NOISE, floor=0.0)
    likelihood.log_scale.requires_grad_(False)
    model = BayesianNetwork(
        nn.Sequential(nn.Linear(3, 1)),
        Rows(3, outputs=1, N=12),
        prior=priors.Normal(PRIOR_SCALE),
        likelihood=likelihood,
    ).double()
    likelihood.log_scale.fill_(math.log(NOISE))
    return model, x, y


def expected_bound(monkeypatch, b, x, y):
    """Minus the bound without noise: its integrand is quadratic in the noise of each output, whose
    mean over ±1 is that over a standard normal."""
    total = 0.0
    for sign in (1.0, -1.0):
        with monkeypatch.context() as patch:
            patch.setattr(
                local_reparameterisation,
                "_standard_normal",
                lambda t, s=sign: torch.full_like(t, s),
            )
            total = total + 0.5 * b(x, y)
    return total


def apart(shape):
    """Numbers from 1 to 2, no two of them equal: of equal ones the density may be infinite."""
    return torch.linspace(1.0, 2.0, shape.numel(), dtype=torch.float64).reshape(shape)


def test_no_point_where_a_density_is_infinite():
    """A mode at which there is no estimate must not be looked for: the density of a site, taken
    nearer and nearer to the ends of its support, grows without end or it does not."""
    for prior in (*PRIORS, *OPTIONS):
        model = BayesianNetwork(nn.Linear(3, 2), Rows(3), prior=prior).double()
        infinite = []
        for site, (layer, name) in model.sites.items():
            fn = layer.latents()[name].prior
            near, nearer = (
                float(fn.log_prob(value * apart(fn.event_shape)).detach())
                for value in (1e-10, 1e-14)
            )
            infinite += [site] if nearer > near + 1.0 else []
        with contextlib.nullcontext() if not infinite else pytest.raises(PyroccamError) as error:
            guides.Delta(model)
        assert not infinite or repr(infinite[0]) in str(error.value)


@pytest.mark.parametrize("kind", ["mean-field", "dropout-weight", "dropout-layer"])
def test_the_bound_by_hand(kind, monkeypatch):
    model, x, y = linear_problem()
    guide = GUIDES[kind](model).double()
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(0.3 * torch.randn_like(p))
    q = {name: guide.posterior(name).base_dist for name in model.sites}
    mean = x @ q["0.weight"].loc.T + q["0.bias"].loc
    variance = x**2 @ q["0.weight"].scale.T ** 2 + q["0.bias"].scale ** 2
    likelihood = normal_log_density(y, mean, NOISE) - variance / (2 * NOISE**2)
    kl = sum(normal_kl(one.loc, one.scale, PRIOR_SCALE) for one in q.values())
    b = bound(model, guide)
    found = expected_bound(monkeypatch, b, x, y)
    torch.testing.assert_close(found, kl - likelihood.sum(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(b.terms(x, y).kl, kl, rtol=1e-6, atol=0.0)
    half = expected_bound(monkeypatch, b, x[:6], y[:6])  # six rows count twice
    torch.testing.assert_close(half, kl - 2 * likelihood[:6].sum(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("rate", "shape"), [("weight", (4, 2, 3)), ("neuron", (4, 1, 1)), ("layer", ())]
)
def test_dropout_rates(rate, shape):
    """α for each weight, output or layer; of a transposed convolution outputs are in dim 1."""
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ConvTranspose1d(4, 2, 3))
    model, guide = pair(
        net, (2, 5), priors.Normal(), guide=guides.VariationalDropout, rate=rate, spread=False
    )
    factor = guide.part("factors")["0/weight"]
    assert factor.log_alpha.shape == shape
    if rate == "neuron":
        assert guide.part("factors")["1/weight"].log_alpha.shape == (1, 2, 1)
    with torch.no_grad():
        factor.log_alpha.normal_()
        factor.loc[0] = 0.0
    q = guide.posterior("0.weight").base_dist
    expected = factor.log_alpha.exp() * q.loc**2
    torch.testing.assert_close(q.variance, expected, rtol=1e-4, atol=1e-12)
    kl = torch.distributions.kl_divergence(
        guide.posterior("0.weight"), model.layers["0"].latents()["weight"].prior
    )
    assert all(g.isfinite().all() for g in torch.autograd.grad(kl, list(factor.parameters())))


def test_the_rate_is_kept_within_its_limit():
    _, guide = pair(
        small_net(), (3,), priors.Normal(), guide=guides.VariationalDropout, spread=False
    )
    factor = guide.part("factors")["0/weight"]
    for value, limit in ((50.0, 20.0), (-50.0, -20.0)):
        factor.log_alpha.data.fill_(value)
        q = guide.posterior("0.weight").base_dist
        torch.testing.assert_close(q.variance / q.loc**2, torch.full_like(q.loc, math.exp(limit)))


def test_a_scale_stays_below_its_limit_and_comes_back():
    """The gradient at the limit is not cut off, or what went beyond would stay there."""
    factor = NormalFactor(torch.zeros(3), 0.1, max_scale=0.2)
    torch.testing.assert_close(factor().base_dist.scale, torch.full((3,), 0.1))  # as it is below
    optimizer = torch.optim.SGD(factor.parameters(), lr=0.1)
    for sign, expected in ((-1.0, 0.2), (1.0, None)):
        for _ in range(20):
            optimizer.zero_grad()
            scale = factor().base_dist.scale
            assert float(scale.detach().max()) <= 0.2 * (1 + 1e-6)
            (sign * scale.log().sum()).backward()
            optimizer.step()
        if expected:
            assert torch.allclose(factor().base_dist.scale, torch.tensor(expected))
    assert float(factor().base_dist.scale.detach().max()) < 0.199


def test_limits_by_layer():
    model = BayesianNetwork(small_net(), Rows(3), prior=priors.GroupNormalJeffreys())
    guide = guides.MeanField(model, max_scale={"0": 0.2})
    with torch.no_grad():
        for p in guide.parameters():
            p.fill_(1.0)
    limited = {n for n in guide.sites if guide.posterior(n).base_dist.scale.max() < 0.201}
    assert limited == {"0.weight", "0.bias"}
    guide = guides.MeanField(model, max_scale={"2": 0.2})
    again = guide.rebuild(copy.deepcopy(model))
    assert math.isfinite(again.factors["2/weight"].max_log_scale)
    net = nn.Sequential(nn.Identity(), *small_net())
    moved = BayesianNetwork(net, Rows(3), prior=priors.GroupNormalJeffreys())
    guide = guide.rebuild(moved, {"0": "1", "2": "3"})  # where layers have other names
    limited = {n for n in moved.sites if getattr(guide.factor_of(n), "max_log_scale", 9e9) < 0}
    assert limited == {"3.weight", "3.bias"}


def test_what_is_refused():
    model = BayesianNetwork(small_net(), Rows(3), prior=priors.Normal())
    for ask in (
        lambda: guides.MeanField(model, scale=0.5, max_scale=0.2),
        lambda: guides.MeanField(model, max_scale={"1": 0.2}),
        lambda: guides.parse("delta", model, scales="batch"),
        lambda: guides.parse("delta", model, max_scale=0.3),
    ):
        with pytest.raises(PyroccamError):
            ask()
