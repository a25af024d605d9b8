"""Priors over weights: what all keep to, and what each is."""

import math

import pyro.distributions as dist
import pytest
import torch
from pyroccam import models
from pyroccam.guides.factors import NormalFactor
from pyroccam.models import priors
from pyroccam.models.distributions import ImproperLogUniform, MultiSpikeLogUniform, base
from pyroccam.models.priors import LayerShape
from pyroccam.models.priors.ard import EmpiricalNormal
from pyroccam.testing import PriorCase
from pyroccam.testing.priors import LINEAR, ONE
from random_weights import PRIORS, Rows
from scipy import stats
from torch import nn
from torch.distributions import kl_divergence


class TestNormal(PriorCase):
    variants = (
        priors.Normal(0.3, loc=0.1),
        priors.Normal("fan_in"),
        priors.Normal(0.5, loc=0.2, learn="layer"),
        priors.Normal(0.5, loc=0.2, learn="scale"),
        priors.Normal(0.5, learn="weight"),
    )
    words = (
        ("normal:0.1", priors.Normal(0.1)),
        ("normal:fan-in", priors.Normal("fan_in")),
        ("normal:learn", priors.Normal(learn="layer")),
        ("normal:learn-scale", priors.Normal(learn="scale")),
        ("normal:learn-each", priors.Normal(learn="weight")),
    )
    refused = ({"learn": "weight", "loc": 1.0},)

    def learns(self, prior):
        names = {"layer": ["loc", "log_scale"], "weight": ["log_scale", "log_scale_bias"]}
        names["scale"] = ["log_scale"]
        return names.get(prior.learn, [])


class TestLogUniform(PriorCase):
    variants = (priors.LogUniform(), priors.LogUniform(kl="molchanov"))
    words = ((" Log_Uniform:molchanov ", priors.LogUniform("molchanov")),)
    improper = ("weight",)


class TestMultiSpike(PriorCase):
    variants = (
        priors.MultiSpike(),
        priors.MultiSpike(5, rate=0.1, least=1.0),
        priors.MultiSpike(kl="achterhold"),
    )
    words = (
        ("multi-spike:3:achterhold", priors.MultiSpike(3, "achterhold")),
        ("multi-spike:7:first-free", priors.MultiSpike(7, first="free")),
    )
    refused = ({"levels": 5, "kl": "achterhold"},)
    improper = ("weight",)

    def learns(self, prior):
        return ["level"]


class TestGroupNormalJeffreys(PriorCase):
    variants = (priors.GroupNormalJeffreys(),)
    improper = ("scale",)
    grouped = True


class TestGroupHorseshoe(PriorCase):
    variants = (priors.GroupHorseshoe(1e-5),)
    at_their_best = ("global.a", "scale.a")
    grouped = True

    def centre(self, prior, latent):
        return 2 * math.log(prior.tau0) if latent == "global.a" else 0.0


class TestGroupHalfCauchy(PriorCase):
    variants = (priors.GroupHalfCauchy(1e-5),)
    grouped = True

    def centre(self, prior, latent):
        return math.log(prior.tau0) if latent == "global" else 0.0


class TestARD(PriorCase):
    variants = (priors.ARD(), priors.ARD("group"), priors.ARD("layer"))
    improper = ("weight",)


class TestSharedNormal(PriorCase):
    variants = (priors.SharedNormal(),)


class TestStudentT(PriorCase):
    variants = (priors.StudentT(2.0, scale=0.5),)


class TestUnsquaredNorm(PriorCase):
    variants = (priors.UnsquaredNorm(0.7),)
    closed = False


class TestSpikeSlab(PriorCase):
    variants = (priors.SpikeSlab(0.1), priors.SpikeSlab(0.1, per="weight"))


class TestGaussianMixture(PriorCase):
    variants = (priors.GaussianMixture(components=4), priors.GaussianMixture(2, per="layer"))
    words = (
        ("mixture:8", priors.GaussianMixture(8)),
        ("mixture:8:0.9", priors.GaussianMixture(8, zero=0.9)),
    )
    closed = False

    def learns(self, prior):
        return [f"mixture.{name}" for name in ("loc", "log_precision", "logits")]


class TestIntegers(PriorCase):
    variants = (priors.Integers(0.3), priors.Integers(bias_step=0.25, components=1))
    closed = False

    def learns(self, prior):
        parts, names = ("weight", "bias"), ("log_scale", "logits")
        return [f"{part}_masses.{name}" for part in parts for name in names]

    def centre(self, prior, latent):
        return math.log(prior.step * 0.5) if latent == "step" else 0.0  # the layer has four inputs


def test_every_prior_has_a_case():
    tested = {type(prior) for case in PriorCase.__subclasses__() for prior in case.variants}
    assert tested == {*map(type, PRIORS)}


def posterior(scale):
    """A log-normal at the start of a scale."""
    loc, size = scale.start
    return NormalFactor(torch.full(scale.prior.event_shape, loc), size, positive=True)()


@pytest.mark.parametrize("tau0", [1.0, 1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("make", [priors.GroupHorseshoe, priors.GroupHalfCauchy])
def test_scales_begin_at_one_and_cost_little(make, tau0):
    latents = make(tau0).for_layer(LINEAR)()
    scales = {n: v for n, v in latents.items() if n not in ("weight", "bias")}
    assert sum(v.power * v.start[0] for v in scales.values()) == pytest.approx(0.0, abs=1e-9)
    variance = sum((v.power * v.start[1]) ** 2 for v in scales.values())
    assert variance <= 0.15**2
    with torch.no_grad():
        cost = sum(float(kl_divergence(posterior(v), v.prior)) for v in scales.values())
    depth = max(0.0, -math.log(tau0))
    assert depth < cost < depth + 40.0


def test_start_of_the_horseshoe_is_at_the_minimum_where_it_can_be():
    latents = priors.GroupHorseshoe(1e-5).for_layer(LINEAR)()
    assert latents["global.a"].start[0] == pytest.approx(2 * math.log(1e-5) - 1 - math.log(2))
    assert latents["scale.a"].start[0] == pytest.approx(-1.6931, abs=1e-4)
    assert latents["scale.b"].start[0] == pytest.approx(1.6931, abs=1e-4)
    for name in ("global.a", "scale.a", "scale.b"):
        latent = latents[name]
        loc = torch.full(latent.prior.event_shape, latent.start[0], requires_grad=True)
        q = dist.LogNormal(loc, torch.tensor(2.0).sqrt()).to_event(loc.dim())
        kl_divergence(q, latent.prior).backward()
        torch.testing.assert_close(loc.grad, torch.zeros_like(loc), atol=1e-4, rtol=0)


@pytest.mark.parametrize("tau0", [1.0, 1e-2, 1e-5])
def test_the_split_horseshoe_is_half_cauchy(tau0):
    torch.manual_seed(0)
    split = priors.GroupHorseshoe(tau0).for_layer(LINEAR).double()()
    whole = priors.GroupHalfCauchy(tau0).for_layer(LINEAR).double()()
    for name in ("global", "scale"):
        factors = [split[f"{name}.{part}"] for part in "ab"]
        draws = math.prod(f.prior.sample((5000,)) ** f.power for f in factors).flatten()
        assert float(draws.median()) == pytest.approx(tau0 if name == "global" else 1, rel=0.1)
        direct = whole[name]
        assert direct.power == 1.0
        base = direct.prior.base_dist if name == "scale" else direct.prior
        scale = float(base.scale.flatten()[0])
        test = stats.kstest(draws.numpy(), stats.halfcauchy(scale=scale).cdf)
        assert test.pvalue > 1e-4, name  # the rate of false alarms of this test


def test_all_weights_of_a_layer_share_a_normal_and_its_biases_another():
    found = priors.SharedNormal().for_layer(LINEAR).double()()
    for latent, values in zip(found.values(), (torch.randn(3, 4), torch.randn(3)), strict=True):
        w = values.double() + 2
        best = dist.Normal(w.mean(), w.std(correction=0)).log_prob(w).sum()
        torch.testing.assert_close(latent.prior.log_prob(w), best)
        same = latent.prior.log_prob(torch.full_like(w, 0.3))  # as zeros, at which biases may begin
        assert torch.isfinite(same)
        assert same > best + 100
        assert latent.prior.numbers == 2
    for latent in priors.SharedNormal().for_layer(ONE)().values():  # would be sent for nothing
        torch.testing.assert_close(base(latent.prior).loc, torch.zeros(latent.prior.event_shape))


@pytest.mark.parametrize(("per", "sizes"), [("weight", 40), ("group", 5), ("layer", 1)])
def test_ard_shares_variances(per, sizes):
    layer = LayerShape("conv", torch.Size([5, 2, 2, 2]), None, 0, True, 8)
    p = priors.ARD(per).for_layer(layer)()["weight"].prior
    w = torch.randn(5, 2, 2, 2, dtype=torch.float64)
    sets = w.reshape(sizes, -1)
    n = sets.shape[1]
    expected = -n / 2 * (2 * math.pi * math.e * sets.square().mean(1)).log().sum()
    torch.testing.assert_close(p.log_prob(w), expected)
    assert p.numbers == sizes


def test_a_gate_is_open_with_the_probability_of_the_slab():
    torch.manual_seed(0)
    gate = priors.SpikeSlab(0.1).for_layer(LINEAR)()["gate"].prior
    share = (gate.sample((5000,)) > 0.5).double().mean()
    assert abs(share - 0.1) < 4.4 * math.sqrt(0.1 * 0.9 / (4 * 5000))  # false alarm once in 1e5


@pytest.mark.parametrize(("shared", "moves"), [((), 0), ((1,), 0), ((0, 1), 0), ((0, 1), 1)])
def test_each_of_a_batch_has_its_own_best_variances(shared, moves):
    p = EmpiricalNormal((2, 3), shared, moves=bool(moves))
    values = torch.randn(4, 2, 3, dtype=torch.float64)
    log_probs = torch.stack([p.log_prob(value) for value in values])
    torch.testing.assert_close(p.expand((4,)).log_prob(values), log_probs)
    q = [dist.Normal(value, 0.2 + value.abs()).to_event(2) for value in (*values, values)]
    kls = torch.stack([kl_divergence(one, p) for one in q[:4]])
    torch.testing.assert_close(kl_divergence(q[4], p.expand((4,))), kls)


@pytest.mark.parametrize("levels", [3, 7])
def test_the_levels_begin_where_rounding_moves_the_weights_least(levels):
    book = torch.linspace(-0.31, 0.31, levels)
    weight = book[torch.randint(levels, (40, 30))] + 0.002 * torch.randn(40, 30)
    net = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 2))
    with torch.no_grad():
        net[0].weight.copy_(weight)
        net[1].weight.zero_()
    prior = priors.MultiSpike(levels, start=1.5)
    model = models.BayesianNetwork(net, Rows(30), prior=prior)
    found = model.layers["0"].latents()["weight"].levels
    torch.testing.assert_close(found.detach(), 1.5 * book, atol=0.015, rtol=0)
    # A layer of zeros says nothing of its levels; they begin by its fan-in.
    usual = prior.for_layer(model.layers["1"].affine.shape)()["weight"].levels
    assert torch.equal(model.layers["1"].latents()["weight"].levels, usual)


def test_a_level_does_not_fall_below_the_least_and_can_come_back():
    layer = priors.MultiSpike(least=0.5).for_layer(LINEAR)
    layer.level.data.fill_(-3.0)
    levels = layer()["weight"].levels
    torch.testing.assert_close(levels.detach(), torch.tensor([-0.25, 0.0, 0.25]))  # fan-in 4
    (slope,) = torch.autograd.grad(levels[-1], layer.level)
    assert slope == pytest.approx(0.01)


def test_the_first_layer_may_be_free_in_every_network():
    net, prior = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), priors.MultiSpike(first="free")
    for _ in range(3):
        model = models.BayesianNetwork(net, Rows(3), prior=prior)
        kinds = [type(base(one.latents()["weight"].prior)) for one in model.layers.values()]
        assert kinds == [ImproperLogUniform, MultiSpikeLogUniform]
        # As when it is narrowed: each layer has the prior of the one before.
        prior = {name: one.weight_prior for name, one in model.layers.items()}


@pytest.mark.parametrize(
    "said",
    [
        "GroupHorseshoe(tau0=1e-05)",
        "GroupHalfCauchy(tau0=1e-05)",
        "SpikeSlab(slab=0.5, per='group', temperature=0.5, scale=1.0)",
        "GaussianMixture(components=16, zero=0.99, spread=0.6, scale=0.25, "
        "zero_precision=(5000.0, 2.0), precision=(250.0, 0.1), per='network')",
    ],
)
def test_numbers_as_published(said):
    assert repr(getattr(priors, said.partition("(")[0])()) == said
