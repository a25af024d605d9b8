"""Local reparameterisation against explicitly drawn weights, and what it must not mistake."""

import copy
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.elbo import EnumMeanFieldELBO, bound
from pyroccam.models import LocalReparameterization, local_reparameterisation, priors
from pyroccam.models.priors import Latent, LayerPrior, WeightPrior
from random_weights import (
    FourScales,
    Rows,
    assert_same_means,
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
    "conv-depthwise": ((2, 4), lambda: nn.Conv1d(2, 4, 3, groups=2)),
    "transposed": ((2, 3), lambda: nn.ConvTranspose1d(2, 2, 2, stride=2)),
    "sequence": ((2, 1), lambda: nn.Linear(1, 1)),  # with scales for each row, not for each step
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


def scales_of(model, guide):
    """Draws of what is neither weight nor bias."""
    names = [n for n in model.layers["0"].latents() if n not in ("weight", "bias")]
    return {name: guide.posterior(f"0.{name}").sample((DRAWS,)) for name in names}


# -- the distribution of the outputs ----------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("prior", ["normal", "one-scale", "four-scales"])
@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_of_an_example_have_the_distribution_of_drawn_weights(kind, prior):
    """Mean, variance and third moment of every output; of a linear layer all covariances too. (At
    two places of a convolution, drawn weights are the same, and local noise is not.)"""
    model, guide = single(kind, prior)
    x = torch.randn(1, *model.input_shape) + 0.5
    with guide.handler:
        found = outputs(model, guide, x.expand(DRAWS, *x.shape[1:])).flatten(1)
    fixed = scales_of(model, guide) if kind == "sequence" else ()
    steps = x.unbind(1) if kind == "sequence" else [x]  # weights anew at each step
    drawn = [drawn_outputs(model, one, *by_hand(model, guide, DRAWS, fixed)) for one in steps]
    expected = torch.cat(drawn, -1).flatten(1)
    centre = expected.mean(0)
    one, other = found - centre, expected - centre
    assert one.std(0).min() > 0.1
    for sample in (lambda t: t, lambda t: t**2, lambda t: t**3):
        assert_same_means(sample(one), sample(other))
    if kind.startswith(("linear", "sequence")):
        assert_same_means(with_products(one), with_products(other))
    if kind == "linear":  # as some networks have it: a parameter without a batch
        with guide.handler:
            found = torch.stack([outputs(model, guide, x[0]) for _ in range(200)])
        assert found.shape == (200, 2)
        assert_same_means(with_products(found - centre), with_products(other))


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "prior"),
    [("linear", "four-scales"), ("linear", "gates-of-weights"), ("conv", "one-scale"),
     ("conv", "gates")],
)  # fmt: skip
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
    fixed = scales_of(model, guide)
    rows = [drawn_outputs(model, x[:1], *by_hand(model, guide, DRAWS, fixed)) for _ in x]
    expected = torch.cat(rows, 1)
    if kind == "conv":  # one place of each example and channel
        found, expected = found[..., 0], expected[..., 0]
    centre = expected.mean(0)
    found, expected = found - centre, expected - centre
    assert_same_means(with_products(found), with_products(expected))
    apart = torch.stack([found[:, 0], found[torch.randperm(len(found)), 1]], 1)
    with pytest.raises(AssertionError):  # that they share the scales can be seen
        assert_same_means(with_products(apart), with_products(expected))


def test_channels_last_and_gradients_at_zero():
    """An input of zeros, and a layer whose variance is zero, have finite gradients."""
    model, guide = pair(nn.Sequential(nn.Conv2d(2, 3, 2, bias=False)), (2, 3, 3), priors.Normal())
    x = torch.zeros(4, 2, 3, 3).to(memory_format=torch.channels_last)
    with guide.handler:
        out = outputs(model, guide, x)
    out.square().sum().backward()
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in guide.parameters())


def test_gradients_are_unbiased_and_less_noisy():
    x, y = torch.randn(10, 3), torch.randn(10, 2)
    model, guide = single("linear", "four-scales")
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


@pytest.mark.parametrize(("prior", "drawn"), [("four-scales", False), ("gates", True)])
def test_nothing_is_drawn_for_weights_and_scales(prior, drawn):
    """Their values are medians; the generator is not touched."""
    _, guide = single("linear", prior)
    state = torch.get_rng_state()
    with guide.handler:
        trace = poutine.trace(guide).get_trace(torch.randn(0, 3))
    assert torch.equal(torch.get_rng_state(), state) != drawn
    site = trace.nodes["0.weight"]
    assert torch.equal(site["value"], guide.posterior("0.weight").base_dist.loc)
    assert not site["value"].requires_grad
    assert site["infer"]["moments"]
    other = trace.nodes["0.gate" if drawn else "0.scale.a"]
    assert ("moments" in other["infer"]) != drawn
    if not drawn:
        median = guide.posterior("0.scale.a").base_dist.loc.exp()
        torch.testing.assert_close(other["value"], median)


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
    x, net = torch.randn(4, 3), model.part("net")
    before = poutine.trace(guide).get_trace(x)
    with guide.handler:
        guide(x)
        for trace in (before, poutine.trace(guides.Delta(model)).get_trace(x)):
            w, b = (trace.nodes[f"0.{n}"]["value"] for n in ("weight", "bias"))
            assert torch.equal(poutine.replay(net, trace=trace)(x), nn.functional.linear(x, w, b))
            guide(x)
    copy.deepcopy(guide.handler)  # nothing lives longer than a step


def test_without_the_handler_weights_are_drawn():
    """``local=False``, and in plain Pyro: one network for the batch; so is another network's."""
    stranger = models.BayesianNetwork(nn.Linear(3, 2), Rows(3), prior=priors.Normal()).part("net")
    for local in (True, False):
        model, guide = single(local=local)
        assert (guide.handler is None) != local
        out = outputs(model, guide, torch.ones(5, 3))
        assert torch.equal(out, out[:1].expand(5, 2))
        with guide.handler or LocalReparameterization(model):
            assert len(outputs(model, guide, torch.ones(5, 3))[:, 0].unique()) == 5
            out = stranger(torch.ones(4, 3))
        assert torch.equal(out, out[:1].expand(4, 2))


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
    with pytest.raises(PyroccamError), guide.handler:
        TraceMeanField_ELBO().loss(model, guide, x, y)
    model, guide = pair(small_net(), (3,), Heavy(), local=False)
    assert bound(model, guide)(x, y).isfinite()


def test_a_weight_on_the_guide_alone_weighs_the_expected_log_density_of_q():
    """E_p of half of log q less log p, for normals in closed form: nothing is drawn."""
    model, guide = pair(nn.Linear(3, 2).double(), (3,), priors.Normal(0.7))
    x, y = torch.randn(5, 3).double(), torch.zeros(5, 2).double()
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
        torch.zeros(5, 4).t(),
        torch.zeros(()),
    ],
)
def test_noise_is_drawn_in_the_order_of_memory(like):
    torch.manual_seed(0)
    drawn = local_reparameterisation._standard_normal(like)
    assert (drawn.shape, drawn.stride()) == (like.shape, like.stride())
    torch.manual_seed(0)
    assert torch.equal(drawn.as_strided((like.numel(),), (1,)), torch.randn(like.numel()))
