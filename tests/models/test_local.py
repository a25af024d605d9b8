"""Local reparameterisation against explicitly drawn weights, and what it must not mistake."""

import copy
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceMeanField_ELBO
from pyroccam import guides, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO, bound
from pyroccam.models import LocalReparameterization, local_reparameterisation, priors
from pyroccam.models.priors.base import Latent, LayerPrior, WeightPrior
from random_weights import (
    FourScales,
    Rows,
    assert_same_means,
    limit,
    outputs,
    pair,
    small_net,
    with_products,
)
from torch import nn
from torch.func import functional_call, vmap

DRAWS = 20_000

LAYERS = {  # shape of an input, layer
    "linear": ((3,), lambda: nn.Linear(3, 2)),
    "linear-no-bias": ((3,), lambda: nn.Linear(3, 2, bias=False)),
    "conv": ((2, 4), lambda: nn.Conv1d(2, 2, 3, padding=1, stride=2)),
    "conv2-circular": (
        (2, 3, 3),
        lambda: nn.Conv2d(2, 2, 2, padding=1, padding_mode="circular", stride=2),
    ),
    "conv-depthwise": ((2, 4), lambda: nn.Conv1d(2, 4, 3, groups=2)),
    "transposed": ((2, 3), lambda: nn.ConvTranspose1d(2, 2, 2, stride=2)),
}
PRIORS = {
    "normal": priors.Normal(),
    "one-scale": priors.GroupNormalJeffreys(),
    "four-scales": FourScales(),
    "gates": priors.SpikeSlab(),
    "gates-of-weights": priors.SpikeSlab(per="weight"),
}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    pyro.clear_param_store()
    with pyro.validation_enabled(False):  # faster; a test that needs it asks for it
        yield
    pyro.clear_param_store()


def single(layer="linear", prior="normal", **options):
    shape, make = LAYERS[layer]
    return pair(nn.Sequential(make()), shape, PRIORS[prior], **options)


def by_hand(model, guide, draws, fixed=()):
    """Weights and biases of a layer, ``(draws, *)``; latents in ``fixed`` keep their value."""
    (layer,) = model.layers.values()
    values = {}
    for name in layer.latents():
        q = guide.posterior(f"{layer.name}.{name}")
        drawn = fixed[name] if name in fixed else q.sample((draws,))
        values[name] = drawn.expand(draws, *q.event_shape)
    weight, bias = values.pop("weight"), values.pop("bias", None)
    linear = isinstance(layer.plain(weight[0], None if bias is None else bias[0]), nn.Linear)
    dim = 2 if linear or layer.affine.output_dim == 1 else 1
    for name, value in values.items():
        factor = value ** layer.latents()[name].power
        if factor.dim() == weight.dim():
            weight = weight * factor
            continue
        if bias is not None and not linear:
            bias = bias * (factor if factor.dim() == 2 else factor[:, None])
        shape = [draws] + [1] * (weight.dim() - 1)
        if factor.dim() == 2:
            shape[dim] = -1
        weight = weight * factor.reshape(shape)
    return weight, bias


def drawn_outputs(model, x, weight, bias):
    """Outputs of the plain layer ``(draws, B, *)`` with explicit weights."""
    (layer,) = model.layers.values()
    plain = layer.plain(weight[0], None if bias is None else bias[0])
    if bias is None:
        return vmap(lambda w: functional_call(plain, {"weight": w}, (x,)))(weight)
    return vmap(lambda w, b: functional_call(plain, {"weight": w, "bias": b}, (x,)))(weight, bias)


def example(model):
    (layer,) = model.layers.values()
    return torch.randn(1, *model.input_shape) + 0.5, layer


# -- the distribution of the outputs ----------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("prior", ["normal", "one-scale", "four-scales"])
@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_of_an_example_have_the_distribution_of_drawn_weights(kind, prior):
    """Mean, variance and third moment of every output; of a linear layer all covariances too, for
    units share the scales of their inputs. (At two places of a convolution, drawn weights are the
    same, and local noise is not.)"""
    model, guide = single(kind, prior)
    x, _ = example(model)
    with guide.handler:
        found = outputs(model, guide, x.expand(DRAWS, *x.shape[1:])).flatten(1)
    expected = drawn_outputs(model, x, *by_hand(model, guide, DRAWS)).flatten(1)
    centre = expected.mean(0)
    one, other = found - centre, expected - centre
    assert one.std(0).min() > 0.1
    for sample in (lambda t: t, lambda t: t**2, lambda t: t**3):
        assert_same_means(sample(one), sample(other))
    if kind.startswith("linear"):
        assert_same_means(with_products(one), with_products(other))


@torch.no_grad()
def test_a_wrong_variance_would_be_noticed():
    """The comparison above has the power to see 5 % in a scale."""
    model, guide = single()
    x, _ = example(model)
    expected = drawn_outputs(model, x, *by_hand(model, guide, DRAWS))[:, 0]
    with guide.handler:
        found = outputs(model, guide, x.expand(DRAWS, 3))
    wrong = expected.mean(0) + 1.05 * (found - expected.mean(0))
    with pytest.raises(AssertionError):
        assert_same_means((wrong - expected.mean(0)) ** 2, (expected - expected.mean(0)) ** 2)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "prior"),
    [
        ("linear", "one-scale"),
        ("linear", "four-scales"),
        ("linear", "gates"),
        ("conv", "four-scales"),
        ("conv", "gates"),
    ],
)
def test_scales_that_a_batch_shares(kind, prior):
    """All covariances of two examples: scales are drawn once, the rest for each example. Gates are
    always drawn once."""
    model, guide = single(kind, prior, scales="batch")
    for name, p in guide.named_parameters():
        if name.endswith(("/weight.log_scale", "/bias.log_scale")):
            p.fill_(-2.5)  # what is shared is most of the noise
    x = (torch.randn(1, *model.input_shape) + 0.5).expand(2, *model.input_shape)
    with guide.handler:
        found = torch.stack([outputs(model, guide, x) for _ in range(250)])
    scales = {
        name: guide.posterior(f"0.{name}").sample((DRAWS,))
        for name in model.layers["0"].latents()
        if name not in ("weight", "bias")
    }
    rows = [drawn_outputs(model, x[:1], *by_hand(model, guide, DRAWS, scales)) for _ in x]
    expected = torch.cat(rows, 1)
    if kind == "conv":  # one place of each example and channel
        found, expected = found[..., 0], expected[..., 0]
    centre = expected.mean(0)
    found, expected = found - centre, expected - centre
    assert_same_means(with_products(found), with_products(expected))
    apart = torch.stack([found[:, 0], found[torch.randperm(len(found)), 1]], 1)
    with pytest.raises(AssertionError):  # that they share the scales can be seen
        assert_same_means(with_products(apart), with_products(expected))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_gates_of_weights_are_drawn_for_the_batch(kind):
    model, guide = single(kind, "gates-of-weights")
    x, _ = example(model)
    found = []
    with guide.handler:
        for _ in range(200):
            found.append(outputs(model, guide, x)[0])
    expected = drawn_outputs(model, x, *by_hand(model, guide, DRAWS))[:, 0]
    centre = expected.mean(0)
    found, expected = torch.stack(found) - centre, expected - centre
    assert_same_means(found, expected)
    assert_same_means(found**2, expected**2)


@torch.no_grad()
def test_a_sequence_shares_the_scales_of_its_example():
    """A linear layer on ``(B, T, in)``: scales for each example, not for each step."""
    model, guide = pair(nn.Sequential(nn.Linear(1, 1), nn.Flatten()), (2, 1), FourScales())
    x = torch.tensor([[[1.0], [-2.0]]])
    with guide.handler:
        found = outputs(model, guide, x.expand(DRAWS, 2, 1))
    (layer,) = model.layers.values()
    scales = {
        n: guide.posterior(f"0.{n}").sample((DRAWS,))
        for n in layer.latents()
        if n not in ("weight", "bias")
    }
    steps = []
    for step in x[0]:  # weights anew at each step, with the same scales
        w, b = by_hand(model, guide, DRAWS, scales)
        steps.append(step * w[:, 0] + b)
    expected = torch.cat(steps, 1)
    centre = expected.mean(0)
    assert_same_means(with_products(found - centre), with_products(expected - centre))


@torch.no_grad()
def test_an_input_without_a_batch():
    """Some networks put a parameter through a layer."""
    model, guide = single("linear", "four-scales")
    with guide.handler:
        found = [outputs(model, guide, torch.ones(3)) for _ in range(200)]
        batch = outputs(model, guide, torch.ones(DRAWS, 3))
    found = torch.stack(found)
    assert found.shape == (200, 2)
    centre = batch.mean(0)
    assert_same_means(with_products(found - centre), with_products(batch - centre))


def test_channels_last_and_gradients_at_zero():
    """An input of zeros, and a layer whose variance is zero, have finite gradients."""
    model, guide = pair(nn.Sequential(nn.Conv2d(2, 3, 2, bias=False)), (2, 3, 3), priors.Normal())
    x = torch.zeros(4, 2, 3, 3).to(memory_format=torch.channels_last)
    with guide.handler:
        out = outputs(model, guide, x)
    out.square().sum().backward()
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in guide.parameters())


# -- gradients --------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [priors.Normal(), FourScales()], ids=["normal", "four-scales"])
def test_gradients_are_unbiased_and_less_noisy(prior):
    x, y = torch.randn(10, 3), torch.randn(10, 2)
    model, guide = pair(small_net(), (3,), prior)
    b = bound(model, guide, max_plate_nesting=1)
    handler, samples = guide.handler, {}
    for local, draws in ((True, 80), (False, 120)):
        guide.handler = handler if local else None
        grads = []
        for _ in range(draws):
            loss = -b.terms(x, y).log_likelihood
            found = torch.autograd.grad(loss, list(guide.parameters()))
            grads.append(torch.cat([g.flatten() for g in found]))
        samples[local] = torch.stack(grads)
    assert_same_means(samples[True], samples[False])
    variance = {local: sample.var(0).sum() for local, sample in samples.items()}
    assert variance[True] < 0.6 * variance[False]


# -- what is kept -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prior", "drawn"), [("one-scale", False), ("four-scales", False), ("gates", True)]
)
def test_nothing_is_drawn_for_weights_and_scales(prior, drawn):
    """Their values are medians; the generator is not touched."""
    _, guide = single("linear", prior)
    state = torch.get_rng_state()
    with guide.handler:
        trace = poutine.trace(guide).get_trace(torch.randn(0, 3))
    assert torch.equal(torch.get_rng_state(), state) != drawn
    q = guide.posterior("0.weight").base_dist
    site = trace.nodes["0.weight"]
    assert torch.equal(site["value"], q.loc)
    assert not site["value"].requires_grad
    assert site["infer"]["moments"]
    if prior == "four-scales":
        median = guide.posterior("0.scale.a").base_dist.loc.exp()
        torch.testing.assert_close(trace.nodes["0.scale.a"]["value"], median)
    if drawn:
        assert "moments" not in trace.nodes["0.gate"]["infer"]


def test_values_of_a_person_are_used_as_they_are():
    """Also if they are equal to what is kept, or only some are given."""
    model, guide = single()
    x = torch.randn(4, 3)
    q = {name: guide.posterior(name).base_dist for name in model.sites}
    given = {name: q[name].loc.detach().clone() for name in q}
    net = model.part("net")
    with guide.handler:
        guide(x)
        found = poutine.condition(net, data=given)(x)
        assert torch.equal(found, nn.functional.linear(x, given["0.weight"], given["0.bias"]))
        trace = poutine.trace(guide).get_trace(x)
        known = {"0.weight": given["0.weight"]}
        replayed = poutine.replay(poutine.condition(net, data=known), trace=trace)
        many = torch.stack([replayed(x) for _ in range(300)]).detach()
    spread = (many - nn.functional.linear(x, given["0.weight"])).flatten(0, 1)
    expected = q["0.bias"].sample((8000,))
    assert_same_means(spread, expected)
    assert_same_means(spread**2, expected**2)


def test_nothing_stale_is_used():
    """A guide that draws after one that was kept; a trace from before; another guide."""
    model, guide = single()
    x = torch.randn(4, 3)
    net = model.part("net")
    before = poutine.trace(guide).get_trace(x)
    point = guides.Delta(model)
    with guide.handler:
        guide(x)
        for trace in (before, poutine.trace(point).get_trace(x)):
            w, b = (trace.nodes[f"0.{n}"]["value"] for n in ("weight", "bias"))
            assert torch.equal(poutine.replay(net, trace=trace)(x), nn.functional.linear(x, w, b))
            guide(x)
    assert guide.handler._kept == {}  # nothing lives longer than a step


def test_a_guide_is_copied_between_and_during_steps():
    model, guide = single("linear", "four-scales")
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    bound(model, guide)(x, y)
    other, own = copy.deepcopy((model, guide))
    torch.manual_seed(3)
    one = bound(model, guide)(x, y)
    torch.manual_seed(3)
    assert torch.equal(bound(other, own)(x, y), one)
    assert own.handler is not guide.handler


def test_without_the_handler_weights_are_drawn():
    """``local=False``, and in plain Pyro: one network for the batch."""
    for local in (True, False):
        model, guide = single(local=local)
        assert (guide.handler is None) != local
        out = outputs(model, guide, torch.ones(5, 3))
        assert torch.equal(out, out[:1].expand(5, 2))
        with guide.handler or LocalReparameterization(model):
            out = outputs(model, guide, torch.ones(5, 3))
        assert len(out[:, 0].unique()) == 5


def test_the_handler_around_plain_pyro_is_that_of_our_bound():
    model, guide = pair(small_net(), (3,), FourScales())
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    torch.manual_seed(2)
    ours = bound(model, guide, max_plate_nesting=1)(x, y)
    torch.manual_seed(2)
    with pyro.validation_enabled(), guide.handler:
        theirs = TraceMeanField_ELBO(max_plate_nesting=1).differentiable_loss(model, guide, x, y)
        again = bound(model, guide)(x, y)  # it is not put on twice
    torch.testing.assert_close(ours, theirs)
    assert again.isfinite()


# -- the KL -----------------------------------------------------------------------------------


class Heavy(WeightPrior):
    """Cauchy weights, to which torch has no KL of a normal."""

    def for_layer(self, layer):
        return _Heavy(layer)


class _Heavy(LayerPrior):
    def latents(self):
        fn = dist.Cauchy(self.zero.expand(self.layer.weight), self.one)
        weight = Latent(fn.to_event(len(self.layer.weight)), start=(None, 0.1))
        return {"weight": weight, **self.standard_bias()}


def test_a_prior_without_an_analytic_kl():
    """A site that is not drawn has no log-ratio; drawn, it has."""
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    model, guide = pair(small_net(), (3,), Heavy())
    with pytest.raises(PyroccamError):
        bound(model, guide)(x, y)
    svi = SVI(model, guide, pyro.optim.Adam({}), TraceMeanField_ELBO())
    with pytest.raises(PyroccamError), guide.handler:
        svi.step(x, y)
    model, guide = pair(small_net(), (3,), Heavy(), local=False)
    assert bound(model, guide)(x, y).isfinite()


def test_two_networks_do_not_disturb_each_other():
    """A site of another network has another name, or is no site of this one."""
    _, guide = single()
    other = models.BayesianNetwork(nn.Linear(3, 2), Rows(3), prior=priors.Normal())
    with guide.handler:
        out = other.part("net")(torch.ones(4, 3))
    assert torch.equal(out, out[:1].expand(4, 2))


def test_the_limit_is_that_of_the_false_alarm_rate():
    """About one in a thousand comparisons of equals fails at a rate of 0.001."""
    failures, trials = 0, 2000
    one, other = torch.randn(2, trials, 50, 4, dtype=torch.float64)
    for a, b in zip(one, other, strict=True):
        z = (a.mean(0) - b.mean(0)) / (a.var(0) / 50 + b.var(0) / 50).sqrt()
        failures += float(z.abs().max()) > limit(4, 0.01)
    assert 5 <= failures <= 45


def test_a_weight_on_the_guide_alone_weighs_the_expected_log_density_of_q():
    """E_p of half of log q less log p, for normals in closed form: nothing is drawn."""
    model, guide = pair(nn.Linear(3, 2).double(), (3,), priors.Normal(0.7))
    x = torch.randn(5, 3, dtype=torch.float64)
    y = torch.zeros(5, 2, dtype=torch.float64)
    with guide.handler, pyro.settings.context(module_local_params=True):
        found = EnumMeanFieldELBO().terms(model, poutine.scale(guide, scale=0.5), x, y)
    want = 0.0
    for site in model.sites:
        q = guide.posterior(site).base_dist
        log_q = -0.5 * torch.log(2 * torch.pi * torch.e * q.variance)
        log_p = -0.5 * math.log(2 * math.pi * 0.49) - (q.mean**2 + q.variance) / (2 * 0.49)
        want = want + (0.5 * log_q - log_p).sum()
    assert torch.allclose(found.kl, want)


@pytest.mark.parametrize(
    "like",
    [
        torch.zeros(3, 4, 5, 6).to(memory_format=torch.channels_last),
        torch.zeros(3, 4, 5, 6, 7).to(memory_format=torch.channels_last_3d),
        torch.zeros(3, 4, 5),
        torch.zeros(5, 4).t(),
        torch.zeros(()),
    ],
)
def test_noise_is_drawn_in_the_order_of_memory(like):
    torch.manual_seed(0)
    drawn = local_reparameterisation._standard_normal(like)
    assert drawn.shape == like.shape
    assert drawn.stride() == like.stride()
    torch.manual_seed(0)
    assert torch.equal(drawn.as_strided((like.numel(),), (1,)), torch.randn(like.numel()))
