"""What weight priors give for a layer, and the words they are made of."""

import math

import pyro.distributions as dist
import pytest
import torch
import torch.distributions as td
from pyroccam.guides.factors import GateFactor
from pyroccam.models import priors
from pyroccam.models.distributions.relaxed import RelaxedGate
from pyroccam.models.priors import Latent, LayerShape
from scipy import stats
from scipy.integrate import quad
from torch.distributions import constraints, kl_divergence

LINEAR = LayerShape("fc", torch.Size([3, 4]), torch.Size([3]), 1, False, 4)
CONV = LayerShape("conv", torch.Size([5, 2, 3, 3]), None, 0, True, 18)
NO_GROUPS = LayerShape("grouped", torch.Size([6, 1, 3, 3]), torch.Size([6]), None, False, 9)

ALL = [
    priors.Normal(0.3, loc=0.1),
    priors.Normal("fan_in"),
    priors.Normal(0.5, loc=0.2, learn="layer"),
    priors.LogUniform(),
    priors.LogUniform(kl="molchanov"),
    priors.GroupNormalJeffreys(),
    priors.GroupHorseshoe(1e-5),
    priors.GroupHalfCauchy(1e-5),
    priors.ARD(),
    priors.ARD("group"),
    priors.ARD("layer"),
    priors.StudentT(2.0, scale=0.5),
    priors.SpikeSlab(0.1),
    priors.SpikeSlab(0.1, per="weight"),
]
GROUPED = [
    priors.GroupNormalJeffreys(),
    priors.GroupHorseshoe(),
    priors.GroupHalfCauchy(),
    priors.ARD("group"),
    priors.SpikeSlab(),
]


def posterior(latent: Latent):
    """A guide at the latent's start, of the family that its support asks for."""
    shape = latent.prior.event_shape
    loc, scale = latent.start
    support = latent.prior.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    locs = torch.full(shape, 0.13 if loc is None else loc, requires_grad=True)
    scales = torch.full(shape, scale, requires_grad=True)
    if support is constraints.real:
        q = dist.Normal(locs, scales)
    elif support is constraints.unit_interval:
        scales = None
        q = RelaxedGate(0.5, logits=locs)
    else:
        assert support in (constraints.positive, constraints.nonnegative), support
        q = dist.LogNormal(locs, scales)
    return q.to_event(len(shape)), (locs, scales)


@pytest.mark.parametrize("layer", [LINEAR, CONV], ids=lambda layer: layer.name)
@pytest.mark.parametrize("prior", ALL, ids=str)
def test_latents_of_a_layer(prior, layer):
    module = prior.for_layer(layer)
    latents = module()
    assert ("bias" in latents) == (layer.bias is not None)
    assert latents["weight"].prior.event_shape == layer.weight
    assert latents["weight"].start[0] is None
    for name, latent in latents.items():
        assert latent.prior.batch_shape == ()
        shapes = {(), (layer.groups,), tuple(layer.weight)}
        if name == "bias":
            shapes = {tuple(layer.bias)}
        assert tuple(latent.prior.event_shape) in shapes
        q, (loc, scale) = posterior(latent)
        kl = kl_divergence(q, latent.prior)
        assert kl.shape == ()
        kl.backward(retain_graph=True)  # what a prior learns is common to its latents
        assert torch.isfinite(loc.grad).all()
        assert (loc.grad != 0).any() or name.startswith(("scale.a", "global.a"))
        if scale is not None:
            assert torch.isfinite(scale.grad).all()
            assert (scale.grad != 0).all()


@pytest.mark.parametrize("prior", ALL, ids=str)
def test_numbers_move_with_the_module(prior):
    module = prior.for_layer(LINEAR).double()
    for latent in module().values():
        fn = latent.prior.base_dist if hasattr(latent.prior, "base_dist") else latent.prior
        for name in fn.arg_constraints:
            assert getattr(fn, name).dtype == torch.float64
        value = torch.full(latent.prior.event_shape, 0.3, dtype=torch.float64)
        assert latent.prior.log_prob(value).dtype == torch.float64
    learns = getattr(prior, "learn", None) is not None
    assert len(list(module.parameters())) == (2 if learns else 0)
    assert set(module.state_dict()) == ({"loc", "log_scale"} if learns else set())


@pytest.mark.parametrize("prior", GROUPED, ids=str)
def test_layers_without_groups(prior):
    with pytest.raises(ValueError, match=r"'grouped'.*has no groups"):
        prior.for_layer(NO_GROUPS)


@pytest.mark.parametrize("prior", [p for p in ALL if type(p) not in map(type, GROUPED)], ids=str)
def test_priors_of_single_weights_need_no_groups(prior):
    assert set(prior.for_layer(NO_GROUPS)()) == {"weight", "bias"}


@pytest.mark.parametrize("tau0", [1.0, 1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("make", [priors.GroupHorseshoe, priors.GroupHalfCauchy])
def test_scales_begin_at_one_and_cost_little(make, tau0):
    latents = make(tau0).for_layer(LINEAR)()
    scales = {n: v for n, v in latents.items() if n not in ("weight", "bias")}
    assert sum(v.power * v.start[0] for v in scales.values()) == pytest.approx(0.0, abs=1e-9)
    variance = sum((v.power * v.start[1]) ** 2 for v in scales.values())
    assert variance <= 0.15**2
    with torch.no_grad():
        cost = sum(float(kl_divergence(posterior(v)[0], v.prior)) for v in scales.values())
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


@pytest.mark.parametrize("prior", ALL, ids=str)
def test_proper_densities_are_normalised(prior):
    """At one element, in the logarithm of what is positive and in the logit of a gate."""
    one = LayerShape("one", torch.Size([1, 1]), torch.Size([1]), 1, False, 1)
    for name, latent in prior.for_layer(one).double()().items():
        fn = latent.prior
        if isinstance(fn, priors.EmpiricalNormal) or "LogUniform" in str(fn):
            with pytest.raises(NotImplementedError, match=r"guides\.MeanField"):
                fn.sample()
            continue
        support = str(fn.support)

        def density(y, fn=fn, support=support):
            y = torch.tensor(y, dtype=torch.float64)
            if "Interval" in support:
                x, slope = y.sigmoid(), y.sigmoid() * (-y).sigmoid()
            elif "Greater" in support:
                x, slope = y.exp(), y.exp()
            else:  # a sinh reaches far into the tails
                x, slope = y.sinh(), y.cosh()
            return float((fn.log_prob(x.expand(fn.event_shape)) + slope.log()).exp().detach())

        centre = 0.0
        if name.startswith("global") and "b" not in name[6:]:
            centre = math.log(prior.tau0) * (2 if "." in name else 1)
        total = sum(
            quad(density, centre + a, centre + b, limit=200)[0]
            for a, b in ((-34, -4), (-4, 0), (0, 4), (4, 34))
        )
        assert total == pytest.approx(1.0, abs=1e-5), name


def test_log_density_of_ard_is_the_best_one():
    w = torch.tensor([[0.3, -1.0], [2.0, 0.1]], dtype=torch.float64)
    for shared, s2 in (((), w**2), ((0,), (w**2).mean(0, True)), ((0, 1), (w**2).mean())):
        best = dist.Normal(torch.zeros_like(w), s2.sqrt().expand(2, 2)).log_prob(w).sum()
        torch.testing.assert_close(priors.EmpiricalNormal((2, 2), shared).log_prob(w), best)
    expanded = priors.EmpiricalNormal((2, 2), (1,)).expand((7,))
    assert expanded.log_prob(w).shape == (7,)
    assert expanded.shared == (-1,)


@pytest.mark.parametrize(("per", "sizes"), [("weight", 40), ("group", 5), ("layer", 1)])
def test_ard_shares_variances(per, sizes):
    layer = LayerShape("conv", torch.Size([5, 2, 2, 2]), None, 0, True, 8)
    p = priors.ARD(per).for_layer(layer)()["weight"].prior
    w = torch.randn(5, 2, 2, 2, dtype=torch.float64)
    sets = w.reshape(sizes, -1)
    n = sets.shape[1]
    expected = -n / 2 * (2 * math.pi * math.e * sets.square().mean(1)).log().sum()
    torch.testing.assert_close(p.log_prob(w), expected)


def test_normal_optimum_is_where_learning_ends():
    torch.manual_seed(0)
    loc, scale = torch.randn(3, 4).double() + 2, torch.rand(3, 4).double() + 0.5
    module = priors.Normal(learn="layer").for_layer(LayerShape("fc", loc.shape, None, 1, False, 4))
    module.double()
    q = dist.Normal(loc, scale).to_event(2)
    optimiser = torch.optim.LBFGS(module.parameters(), max_iter=300, tolerance_grad=1e-9)

    def closure():
        optimiser.zero_grad()
        loss = kl_divergence(q, module()["weight"].prior)
        loss.backward()
        return loss

    optimiser.step(closure)
    best_loc, best_scale = priors.normal_optimum(loc, scale)
    torch.testing.assert_close(module.loc.detach(), best_loc, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.log_scale.detach().exp(), best_scale, rtol=1e-5, atol=1e-6)
    assert best_scale > loc.std(correction=0) + 0.05  # Graves's form leaves out the scales


def test_normal_scales():
    found = priors.Normal("fan_in").for_layer(CONV)()["weight"].prior.base_dist
    assert float(found.scale.flatten()[0]) == pytest.approx(18**-0.5)
    bias = priors.Normal(0.3, loc=0.1).for_layer(LINEAR)()["bias"].prior.base_dist
    assert bias.loc.tolist() == [0.0] * 3
    assert bias.scale.tolist() == pytest.approx([0.3] * 3)


def test_a_gate_is_open_with_the_probability_of_the_slab():
    torch.manual_seed(0)
    gate = priors.SpikeSlab(0.1).for_layer(LINEAR)()["gate"].prior
    n = 4 * 5000
    share = (gate.sample((5000,)) > 0.5).double().mean()
    z = (share - 0.1) / math.sqrt(0.1 * 0.9 / n)
    assert abs(z) < 4.4  # false alarm once in 1e5


def test_kl_of_gates_against_draws():
    """By the densities that torch has of the same laws."""
    torch.manual_seed(1)
    logits = torch.tensor([-2.0, 0.5, 3.0, 6.0], dtype=torch.float64)
    prior = priors.SpikeSlab(0.1, temperature=0.4).for_layer(LINEAR).double()()["gate"].prior
    q = GateFactor(logits, 0.4).requires_grad_(False)()
    t = torch.tensor(0.4, dtype=torch.float64)
    p = td.RelaxedBernoulli(t, probs=torch.tensor(0.1, dtype=torch.float64))
    draws = q.sample((100_000,))
    ratio = (td.RelaxedBernoulli(t, logits=logits).log_prob(draws) - p.log_prob(draws)).sum(-1)
    error = float(ratio.std()) / math.sqrt(len(ratio))
    assert abs(float(kl_divergence(q, prior)) - float(ratio.mean())) < 4.4 * error
    assert error < 0.01 * float(ratio.mean())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priors.Normal(0.0), r"Normal\(scale\) must be positive and finite, got 0.0"),
        (lambda: priors.Normal("fan"), "must be one of 'fan_in'; got 'fan'"),
        (lambda: priors.Normal(loc=math.inf), r"Normal\(loc\) must be finite, got inf"),
        (lambda: priors.Normal(learn="each"), r"Normal\(learn\).*'layer', 'weight'; got 'each'"),
        (lambda: priors.Normal(learn="weight", loc=1.0), "has means of 0, got loc=1.0"),
        (lambda: priors.LogUniform("sigmoid"), "'exact', 'molchanov', 'refit'; got 'sigmoid'"),
        (lambda: priors.GroupNormalJeffreys("x"), r"GroupNormalJeffreys\(kl\).*got 'x'"),
        (lambda: priors.ImproperLogUniform(kl="x"), "'exact'.*got 'x'"),
        (lambda: priors.GroupHorseshoe(-1.0), r"GroupHorseshoe\(tau0\).*positive.*got -1.0"),
        (lambda: priors.GroupHorseshoe(1e-20), "between 1e-15 and 1e15, got 1e-20"),
        (lambda: priors.GroupHalfCauchy(math.nan), r"GroupHalfCauchy\(tau0\).*got nan"),
        (lambda: priors.ARD("unit"), r"ARD\(per\).*'weight', 'group', 'layer'; got 'unit'"),
        (lambda: priors.StudentT(0.0), r"StudentT\(df\).*got 0.0"),
        (lambda: priors.StudentT(1e3, 2.0), r"at most 100, got 1000.0: take priors.Normal\(2.0\)"),
        (lambda: priors.SpikeSlab(1.0), r"SpikeSlab\(slab\).*\(0, 1\), got 1.0"),
        (lambda: priors.SpikeSlab(temperature=0.0), r"temperature.*\(0, 1\], got 0.0"),
        (lambda: priors.SpikeSlab(per="layer"), "'group', 'weight'; got 'layer'"),
    ],
)
def test_errors_name_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_number_must_be_one():
    with pytest.raises(TypeError, match=r"GroupHorseshoe\(tau0\) must be a number, got '1e-5'"):
        priors.GroupHorseshoe("1e-5")


@pytest.mark.parametrize(
    ("text", "prior"),
    [
        ("normal", priors.Normal()),
        ("normal:0.1", priors.Normal(0.1)),
        ("normal:fan_in", priors.Normal("fan_in")),
        ("normal:learn", priors.Normal(learn="layer")),
        (" Log-Uniform ", priors.LogUniform()),
        ("log_uniform:molchanov", priors.LogUniform("molchanov")),
        ("gnj", priors.GroupNormalJeffreys()),
        ("gnj:refit", priors.GroupNormalJeffreys("refit")),
        ("ghs", priors.GroupHorseshoe()),
        ("ghs:1e-4", priors.GroupHorseshoe(1e-4)),
        ("half-cauchy:0.1", priors.GroupHalfCauchy(0.1)),
        ("ard", priors.ARD()),
        ("ard:layer", priors.ARD("layer")),
        ("student-t:2", priors.StudentT(2.0)),
        ("spike-slab:0.1", priors.SpikeSlab(0.1)),
    ],
)
def test_parse_weights(text, prior):
    assert priors.parse_weights(text) == prior


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gsh:1e-5", "Unknown weight prior 'gsh:1e-5'. Did you mean 'ghs'\\? Write .*normal:0.1"),
        ("", "Unknown weight prior ''. Write .*normal:0.1"),
        ("ghs:x", "Cannot read the weight prior 'ghs:x': .*Write ghs:1e-5."),
        ("ghs:", "Cannot read the weight prior 'ghs:'"),
        ("ghs:-1", r"Cannot read .* positive and finite, got -1.0"),
        ("ard:unit", "Cannot read .*'group', 'layer'; got 'unit'"),
    ],
)
def test_parse_weights_errors(text, message):
    with pytest.raises(ValueError, match=message):
        priors.parse_weights(text)


@pytest.mark.parametrize("shared", [(), (1,), (0, 1)])
def test_each_of_a_batch_has_its_own_best_variances(shared):
    p, values = priors.EmpiricalNormal((2, 3), shared), torch.randn(4, 2, 3, dtype=torch.float64)
    log_probs = torch.stack([p.log_prob(value) for value in values])
    torch.testing.assert_close(p.expand((4,)).log_prob(values), log_probs)
    q = [dist.Normal(value, 0.2 + value.abs()).to_event(2) for value in (*values, values)]
    kls = torch.stack([kl_divergence(one, p) for one in q[:4]])
    torch.testing.assert_close(kl_divergence(q[4], p.expand((4,))), kls)
