"""Networks of random structure: what they compute, and bounds over all structures, by hand."""

import pytest
import torch
from alternatives import (
    EDGES,
    FIRST,
    GAMMAS,
    NOISE,
    SECOND,
    batch,
    computed,
    drawn_weights,
    every,
    graph,
    known,
    larger,
    make,
    means,
    pair,
    share,
)
from pyro import poutine
from pyroccam import guides
from pyroccam.inference.elbo import bound
from pyroccam.models import Floored, NonCentred, StructureGraph, priors
from random_weights import normal_kl, normal_log_density

SITES = [f"{FIRST}.structure", f"{SECOND}.structure"]

pytestmark = pytest.mark.usefixtures("clean")


# -- a Pyro model -----------------------------------------------------------------------------


@pytest.mark.parametrize("random", [False, True])
def test_the_network_for_a_given_structure(random):
    model = make(priors.GumbelSoftmax(), prior=priors.Normal() if random else None)
    x, weights = batch(5)[0], drawn_weights(model)
    found = means(poutine.condition(model, data={**known(), **weights}), x)
    torch.testing.assert_close(found, computed(weights, GAMMAS, x))
    net = model.part("net")
    assert net.gamma.of(FIRST).tolist() == pytest.approx([1 / 3] * 3)  # only for the pass


def test_a_primitive_alone_is_no_choice():
    made = graph()
    net = StructureGraph(
        {
            ("x", "h"): dict(made.edges[FIRST].items()),
            ("h", "y"): {"only": made.edges[SECOND]["straight"]},
        }
    )
    assert list(make(priors.GumbelSoftmax(), net).structure) == SITES[:1]
    assert list(make(priors.Bernoulli(), net).structure) == SITES  # in the cube it is one
    model = make(priors.Categorical(), net)
    assert list(model.structure) == SITES[:1]
    assert model.primitives == {FIRST: EDGES[FIRST], SECOND: ("only",)}
    x = batch(4)[0]
    found = means(poutine.condition(model, data={SITES[0]: torch.tensor(1)}), x)
    made = made.double()
    expected = made.edges[SECOND]["straight"](made.edges[FIRST]["relu"](x))
    torch.testing.assert_close(found, expected)


# -- the sum over all structures --------------------------------------------------------------


def prior_log_prob(prior, k):
    vertex, p = prior.vertices[k], prior.probs()
    if prior.restriction == "simplex vertices":
        return (p @ vertex).log()
    return (vertex * p.log() + (1 - vertex) * (1 - p).log()).sum()


def by_hand(model, guide, weights, x, y, net=None, kl_of_weights=lambda gamma: 0.0):
    """``Σ q(Γ) log p(y | Γ)`` of all rows, and ``Σ q(Γ) [log q(Γ) / p(Γ) + KL_w(Γ)]``, for weights
    by name that may depend on Γ."""
    likelihood = kl = 0.0
    for at, gamma in every(model):
        log_q = log_p = 0.0
        for site, k in at.items():
            log_q = log_q + guide.posterior(site).logits.log_softmax(-1)[k]
            log_p = log_p + prior_log_prob(model.structure[site], k)
        out = computed(weights(gamma), gamma, x, net)
        log_y = normal_log_density(y, out, NOISE).sum() * model.size / len(x)
        likelihood = likelihood + log_q.exp() * log_y
        kl = kl + log_q.exp() * (log_q - log_p + kl_of_weights(gamma))
    return likelihood, kl


STRUCTURES = {
    "categorical": priors.Categorical({FIRST: [0.7, 0.2, 0.1]}),
    "bernoulli": priors.Bernoulli({FIRST: [0.7, 0.2, 0.1], SECOND: [0.4, 0.8]}),
}


@pytest.mark.parametrize("size", [12, 5])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_the_bound_over_all_structures(kind, size):
    """Weights are numbers: nothing is drawn. Two edges, in a minibatch too."""
    model, guide = pair(STRUCTURES[kind])
    x, y = batch(size)
    terms = bound(model, guide).terms(x, y)
    weights = dict(model.part("net").named_parameters())
    likelihood, kl = by_hand(model, guide, lambda gamma: weights, x, y)
    torch.testing.assert_close(terms.log_likelihood, likelihood, rtol=1e-6, atol=0)
    torch.testing.assert_close(terms.kl, kl, rtol=1e-6, atol=1e-7)
    count = [len(prior.vertices) for prior in model.structure.values()]
    assert terms.by_site["y"].shape == (count[1], count[0], size)
    wanted = [*guide.parameters(), *weights.values()]
    gradients = [
        torch.autograd.grad(loss, wanted)
        for loss in (kl - likelihood, terms.kl - terms.log_likelihood)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scaling", [None, NonCentred(), Floored(0.1)], ids=repr)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_the_bound_with_random_weights(kind, scaling):
    """One draw of the weights, the same for all structures; their KL is exact for each."""
    model, guide = pair(
        STRUCTURES[kind],
        lambda model: guides.MeanField(model, local=False),
        prior=priors.Normal(0.8),
        scaling=scaling,
    )
    x, y = batch()
    torch.manual_seed(3)
    terms = bound(model, guide).terms(x, y)
    torch.manual_seed(3)
    drawn = {site: guide.posterior(site).rsample() for site in guide.sites}

    def weights(gamma):
        if not isinstance(scaling, NonCentred):
            return drawn
        return {site: share(gamma, site) * value for site, value in drawn.items()}

    def kl_of_weights(gamma):
        kl = 0.0
        for site in guide.sites:
            q, scale = guide.posterior(site).base_dist, torch.tensor(0.8)
            if isinstance(scaling, Floored):
                scale = (share(gamma, site) * scale).clamp(min=0.1)
            kl = kl + normal_kl(q.loc, q.scale, scale)
        return kl

    likelihood, kl = by_hand(model, guide, weights, x, y, kl_of_weights=kl_of_weights)
    torch.testing.assert_close(terms.log_likelihood, likelihood, rtol=1e-6, atol=0)
    torch.testing.assert_close(terms.kl, kl, rtol=1e-6, atol=0)


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_graphs_within_a_network(shared, random):
    """Each with its structure, or all with that of the first."""
    prior = priors.Normal(0.8) if random else None
    model, guide = pair(priors.Categorical(), guides.Delta, net=larger(shared), prior=prior)
    names = [f"{path}.{edge}" for path in ("1" if shared else "13") for edge in EDGES]
    assert list(model.structure) == [f"{name}.structure" for name in names]
    x, y = batch(4)
    terms = bound(model, guide).terms(x, y)
    if random:
        weights = {site: guide.posterior(site).v for site in model.sites}
    else:
        weights = dict(model.part("net").named_parameters())
    likelihood, kl = by_hand(model, guide, lambda gamma: weights, x, y, larger(shared))
    torch.testing.assert_close(terms.log_likelihood, likelihood, rtol=1e-6, atol=0)
    kl = kl - sum(normal_log_density(w, 0.0, 0.8).sum() for w in weights.values() if random)
    torch.testing.assert_close(terms.kl, kl, rtol=1e-6, atol=0)


# -- copies -----------------------------------------------------------------------------------


def test_the_plain_network():
    """By the given γ, or the mean of the primitives; it shares nothing with the model."""
    model = make(priors.GumbelSoftmax(), larger(True), prior=priors.Normal())
    x, values = batch(4)[0], drawn_weights(model)
    weights = {n: (values[f"{n}.weight"], values[f"{n}.bias"]) for n in model.layers}
    given = {f"1.{edge}": gamma for edge, gamma in GAMMAS.items()}
    plain, even = model.plain(weights, given), model.plain(weights)
    assert not plain.training
    with torch.no_grad():
        for t in [*model.parameters(), *model.buffers()]:
            t.zero_()
    torch.testing.assert_close(plain(x), computed(values, given, x, larger(True)))
    centre = {edge: torch.full_like(gamma, 1 / len(gamma)) for edge, gamma in given.items()}
    expected = computed(values, centre, x, larger(True))
    torch.testing.assert_close(even(x), expected, rtol=1e-6, atol=1e-8)
