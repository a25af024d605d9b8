"""A stack of random weights and random depth, against enumeration, quadrature and limits."""

import math

import pyro
import pytest
import torch
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.elbo import bound
from pyroccam.inference.posterior.depth import depth_posterior_of_weights
from pyroccam.models import local_parameters, priors, seeded
from random_weights import Rows
from torch import nn
from torch.distributions import kl_divergence

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(6) % 2
ROWS = Rows(3, outputs=2, task="classification")
LOGITS = torch.tensor([0.3, -0.8, 0.5])


def stack(depth=2, width=4):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    return models.DepthStack(nn.Linear(3, width), blocks, nn.Linear(width, 2))


def pair(guide=guides.MeanField, prior=None, depth=None, **options):
    prior = priors.Normal(0.7) if prior is None else prior
    model = models.BayesianStack(stack(), ROWS, prior=prior, depth=depth)
    made = guide(model, **options)
    with torch.no_grad():
        made.edge("depth").logits.copy_(LOGITS)
    return model, made


def terms(model, guide, seed=0):
    with seeded(seed, X.device):
        return bound(model, guide).terms(X, Y)


def by_formula(model, guide):
    """``KL(q(d) || p(d)) + Σ_l q(d >= l) KL_l``, site by site."""
    q = guide.edge("depth").logits.softmax(-1)
    total = (q * (q.log() - model.log_prior)).sum()
    for site, (layer, name) in model.sites.items():
        own, prior = guide.posterior(site).base_dist, layer.latents()[name].prior.base_dist
        used = [d for d in range(3) if not site.startswith("blocks") or d > int(site[7])]
        total = total + q[used].sum() * kl_divergence(own, prior).sum()
    return total


@pytest.mark.parametrize("looks", [True, False])
def test_a_block_costs_what_it_takes_where_it_is_used(looks):
    model, guide = pair(depth=priors.Geometric(0.4))
    with pyro.validation_enabled(looks):
        found, expected = terms(model, guide).kl, by_formula(model, guide)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
    ours, theirs = (
        torch.autograd.grad(value, [*guide.parameters()]) for value in (found, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_the_likelihood_is_exact_over_the_depth():
    """At each depth by a network that has only that one, with the same weights."""
    model, guide = pair(local=False)
    evaluate = bound(model, guide, max_plate_nesting=1)
    with seeded(3, X.device), local_parameters():
        _, sites = evaluate.elbo._get_trace(model, guide, (X, Y), {})
    drawn = {site: sites[site]["value"] for site in model.sites}
    q = LOGITS.softmax(-1)
    weights = {
        name: (drawn[f"{name}.weight"].detach(), drawn[f"{name}.bias"].detach())
        for name in model.layers
    }
    expected = 0.0
    for d in range(3):
        net = model.plain(weights, {"depth": torch.eye(3)[d]})
        log_p = net(X).log_softmax(-1)[torch.arange(6), Y].detach()
        straight = net.at(d)(X)
        torch.testing.assert_close(net(X), straight, rtol=1e-5, atol=1e-6)
        expected += float(q[d] * log_p.sum())
    found = terms(model, guide, seed=3).log_likelihood.item()
    assert found == pytest.approx(expected * model.size / 6, rel=1e-5)


def test_the_posterior_of_the_depth_maximises_the_bound():
    """For the draws by which it is found, no gradient of the bound in its logits is left."""
    model, guide = pair(guides.Delta, priors.Normal(20.0))
    model.size = len(X)
    rows = Rows(3, outputs=2, task="classification")
    rows.parts, rows.device = lambda name: [(X, Y)], X.device
    evenly = depth_posterior_of_weights(model, guide, rows).log()
    with torch.no_grad():  # a prior that undoes the costs, so that q(d) is in the middle
        model.log_prior.sub_(evenly).copy_(model.log_prior.log_softmax(-1))
    for beta in (1.0, 0.9):
        q = depth_posterior_of_weights(model, guide, rows, kl_weight=beta)
        with torch.no_grad():
            guide.edge("depth").logits.copy_(q.log())
        loss = terms(model, guide).loss(beta)
        (gradient,) = torch.autograd.grad(loss, guide.edge("depth").logits)
        assert gradient.abs().max() < 1e-3
        assert q.max() < 0.95


def normalised(**options):
    torch.manual_seed(0)
    adapters = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), None, None]
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)]
    net = models.DepthStack(nn.Linear(3, 4), blocks, nn.Linear(4, 2), adapters)
    return models.BayesianStack(net, ROWS, **options)


def test_numbers_have_a_price():
    """A scale and a shift for each channel of what a depth uses; random weights have a KL."""
    prior, bits = priors.Normal(0.7), 0.125
    model = normalised(prior=prior, depth=priors.Geometric(0.4), number_bits=bits)
    assert [model.count_numbers(d) for d in range(3)] == [8, 8, 16]
    p = [0.4**d * 2.0 ** (-bits * n) for d, n in enumerate([8, 8, 16])]
    expected = torch.tensor([one / sum(p) for one in p])
    torch.testing.assert_close(model.log_prior.exp(), expected)
    torch.testing.assert_close(model.anew(ROWS).log_prior, model.log_prior)


def test_biases_that_are_numbers_have_a_price_and_what_priors_learn_has_none():
    model = normalised(prior=priors.GaussianMixture(per="layer"), random_biases=False)
    always = 4 + 2  # biases of stem and head
    assert [model.count_numbers(d) for d in range(3)] == [always + 12, always + 12, always + 24]
    torch.testing.assert_close(model.log_prior.exp(), torch.full((3,), 1 / 3))


@pytest.mark.parametrize("reach", [1.0, 10.0, None])
def test_where_the_depth_begins(reach):
    """Until q is let go a network in training is watched whole."""
    model, _ = pair()
    guide = guides.MeanField(model, structure=guides.StructureFamily(reach=reach))
    edge = guide.edge("depth")
    p = torch.tensor([(1.0 + d / (reach or math.inf)) ** -2.0 for d in range(3)])
    torch.testing.assert_close(edge.probs(), p / p.sum())
    assert edge.vertex().tolist() == [0, 0, 1]
    with torch.no_grad():
        edge.logits.copy_(torch.tensor([0.5, 1.0, 0.2]))
    assert edge.vertex().tolist() == [0, 1, 0]


def test_what_a_stack_refuses():
    for net, options in ((nn.Linear(3, 2), {}), (stack(), {"depth": priors.Normal()})):
        with pytest.raises(PyroccamError):
            models.BayesianStack(net, ROWS, prior=priors.Normal(), **options)
