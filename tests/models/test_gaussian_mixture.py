"""The mixture of normals that the weights of a network share, and what its hyperprior adds."""

import copy
import math

import numpy as np
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyroccam import guides, models
from pyroccam.inference.elbo import bound
from pyroccam.inference.training import Settings, TrainingStep
from pyroccam.models import priors
from pyroccam.models.distributions import NormalMixture
from random_weights import Rows, small_net, table
from scipy import stats
from torch import nn

MIXTURE = priors.GaussianMixture(components=4, zero=0.7)

pytestmark = pytest.mark.usefixtures("clean")


def mixture():
    """Of three unlike components, in double precision."""
    mixing, loc, scale = map(t64, ([0.6, 0.3, 0.1], [0.0, -0.5, 0.8], [0.05, 0.2, 1.5]))
    return NormalMixture(mixing.log(), loc, -2.0 * scale.log()), (mixing, loc, scale)


def two_layers(prior=MIXTURE, spread=True):
    """A network of 3-4-2 whose mixture has learnt something, and its guide, in double precision."""
    model = models.BayesianNetwork(small_net(), Rows(3), prior=prior).double()
    guide = guides.Delta(model).double()
    with torch.no_grad():
        for p in model.parameters():
            if spread:
                p.add_(0.3 * torch.randn_like(p))
    return model, guide


# -- the density ------------------------------------------------------------------------------


def t64(value):
    return torch.tensor(value, dtype=torch.float64)


def test_the_density_is_that_of_its_components():
    fn, (mixing, loc, scale) = mixture()
    w = torch.linspace(-6.0, 6.0, 41, dtype=torch.float64)
    each = zip(mixing.tolist(), loc.tolist(), scale.tolist(), strict=True)
    expected = torch.as_tensor(np.log(sum(m * stats.norm(k, s).pdf(w.numpy()) for m, k, s in each)))
    torch.testing.assert_close(fn.log_prob(w), expected, rtol=1e-12, atol=1e-12)


def test_draws_have_the_density():
    fn, (mixing, loc, scale) = mixture()
    draws = fn.sample((4000,)).numpy()
    each = list(zip(mixing.tolist(), loc.tolist(), scale.tolist(), strict=True))

    def cdf(w):
        return sum(m * stats.norm(k, s).cdf(w) for m, k, s in each)

    assert stats.kstest(draws, cdf).pvalue > 1e-6  # the rate of false alarms


# -- one mixture for a network ----------------------------------------------------------------


def by_hand(model, guide, prior=MIXTURE):
    """log p(w, λ) of a network, its biases included; each mixture's Gamma densities once."""
    total, seen = 0.0, {}
    for layer in model.layers.values():
        (held,) = layer.prior.held
        seen[id(held)] = held
        log_rest = torch.log_softmax(6.0 * held.logits, 0) + math.log(1 - prior.zero)
        mixing = [prior.zero, *log_rest.exp().tolist()]
        loc = [0.0, *(0.2 * held.loc).tolist()]
        precision = (6.0 * held.log_precision).exp().tolist()
        w = guide.posterior(f"{layer.name}.weight").v.detach().numpy()
        components = zip(mixing, loc, precision, strict=True)
        density = sum(m * stats.norm(k, p**-0.5).pdf(w) for m, k, p in components)
        bias = guide.posterior(f"{layer.name}.bias").v.detach().numpy()
        total += np.log(density).sum() + stats.norm(0, 1).logpdf(bias).sum()
    for held in seen.values():
        first, *others = (6.0 * held.log_precision).exp().tolist()
        a, b = prior.zero_precision
        total += stats.gamma(a, scale=1 / b).logpdf(first)
        a, b = prior.precision
        total += stats.gamma(a, scale=1 / b).logpdf(others).sum()
    return total


@pytest.mark.parametrize("per", ["network", "layer"])
def test_the_hyperprior_counts_once_in_every_bound(per):
    """In Pyro's ELBO, and in ours, where kl_weight multiplies it."""
    prior = priors.GaussianMixture(components=4, zero=0.7, per=per)
    model, guide = two_layers(prior)
    x, y = torch.randn(10, 3).double(), torch.randn(10, 2).double()
    likelihood = model.likelihood(mean_outputs(model, guide, x)).log_prob(y).sum()
    expected = by_hand(model, guide, prior)
    loss = Trace_ELBO().differentiable_loss(model, guide, x, y)
    assert loss.item() == pytest.approx(-expected - likelihood.item())
    b = bound(model, guide)
    assert b.terms(x, y).kl.item() == pytest.approx(-expected)
    b.kl_weight.fill_(0.003)
    assert b(x, y).item() == pytest.approx(-0.003 * expected - likelihood.item())


def mean_outputs(model, guide, x):
    weights = {
        name: tuple(guide.posterior(f"{name}.{part}").v for part in ("weight", "bias"))
        for name in model.layers
    }
    return model.plain(weights)(x).detach()


def test_layers_share_or_do_not():
    model, _ = two_layers()
    one, other = (layer.prior for layer in model.layers.values())
    assert one.held[0] is other.held[0]
    assert {n for n, _ in model.named_parameters() if "prior" in n} == {
        f"net.0.prior.mixture.{n}" for n in ("loc", "log_precision", "logits")
    }
    own, _ = two_layers(priors.GaussianMixture(4, per="layer"))
    assert len({id(layer.prior.held[0]) for layer in own.layers.values()}) == 2
    # A network made with the prior of another's layers shares among its own only.
    taken = {name: layer.weight_prior for name, layer in model.layers.items()}
    derived = models.BayesianNetwork(small_net(), Rows(3), prior=taken).layers
    assert derived["0"].prior.mixture is derived["2"].prior.held[0] is not one.mixture
    # Layers that are given one prior by their names share, others do not.
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    mixed = {"0": MIXTURE, "1": priors.Normal(), "2": MIXTURE}
    named = models.BayesianNetwork(net, Rows(3), prior=mixed).layers
    assert named["0"].prior.held[0] is named["2"].prior.held[0]
    assert named["2"].prior.mixture is None


def test_a_shared_mixture_survives_copies_and_states():
    model, guide = two_layers()
    x, y = torch.randn(10, 3).double(), torch.randn(10, 2).double()
    before = bound(model, guide)(x, y).item()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layers["2"].prior.held[0].loc.add_(1.0)  # of the copy, all its layers and no other
    assert bound(model, guide)(x, y).item() == before
    assert bound(twin, guide)(x, y).item() != pytest.approx(before)
    twin.load_state_dict(model.state_dict())
    assert bound(twin, guide)(x, y).item() == before


def test_rates_are_the_published_multiples():
    """Under Adam a first step is the rate itself: 0.2 and 6 times that of the weights."""
    rows = table()
    model = models.BayesianNetwork(small_net(), rows, prior=MIXTURE)
    guide = guides.Delta(model)
    shared = model.layers["0"].prior.held[0]
    weight = guide.posterior("0.weight").v

    def numbers():
        fn, _ = shared()
        return [t.detach().clone() for t in (weight, fn.loc[1:], fn.log_precision)]

    before = numbers()
    step = TrainingStep([(model, guide)], Settings(lr=1e-3, optimizer="adam"), compile=False)
    step(*rows.split("train"))
    moved = [(a - b).abs() for a, b in zip(numbers(), before, strict=True)]
    for change, rate in zip(moved, (1.0, 0.2, 6.0), strict=True):
        torch.testing.assert_close(change, torch.full_like(change, rate * 1e-3), rtol=1e-2, atol=0)
