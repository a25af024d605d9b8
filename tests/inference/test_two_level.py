"""L and Q of a pair: their terms, their noise, their hypergradients, and what they refuse."""

import functools
import math

import pyro
import pytest
import torch
from differences import along, differences, directions, dot, error
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.selection import Against, Level
from pyroccam.inference.selection import hypergradient as hg
from pyroccam.inference.selection.levels import structure_kl
from pyroccam.models import priors
from random_weights import Rows, limit
from scipy.integrate import quad
from selecting import F64, alternatives, linear, objectives, rows, scattered
from torch import nn
from torch.nn.functional import softplus
from torch.utils._pytree import tree_leaves


def classes():
    """Two classes, weights that are numbers, and a structure that is enumerated."""
    graph = models.StructureGraph({("x", "y"): [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))]})
    data = Rows(2, N=12, outputs=2, task="classification")
    structure = priors.Categorical(learn=True)
    return models.StructuredNetwork(graph, data, structure=structure).double()


def learnt(structure=None):
    """A pair whose guide has a temperature of its own."""
    family = guides.StructureFamily("gumbel-softmax", "learnt")
    return scattered(alternatives(structure), structure=family)


STRAIGHT = priors.GumbelSoftmax(learn=True, straight_through=True)
PAIRS = {  # and the number of random operations in a pass
    "local": (lambda: scattered(linear()), 1),
    "point": (lambda: scattered(linear(), guides.Delta), 0),
    "gumbel-softmax": (lambda: scattered(alternatives()), 3),
    "straight through, learnt temperature": (lambda: learnt(STRAIGHT), 3),
    "gates": (lambda: scattered(alternatives(priors.RelaxedBernoulli(learn=True))), 3),
    "enumerated": (lambda: scattered(classes()), 0),
}


@functools.cache
def of(name, particles=1):
    """The objectives of a pair, which tests leave as they are."""
    torch.manual_seed(0)
    return objectives(PAIRS[name][0](), Level(prior=0.3), Level(0.5, 2.0), particles)


def batch(name, count=12):
    x, y = rows(count)
    return (x, (y[:, 0] > 0).long()) if name == "enumerated" else (x, y)


def drawn(made, x, y):
    """The terms of an observation of twelve, as the bound draws them."""
    with torch.no_grad(), pyro.validation_enabled(False):
        terms = made.bound.terms(x, y)
    return torch.stack([terms.log_likelihood, terms.kl]) / 12


@pytest.mark.parametrize("name", PAIRS)
def test_terms_are_those_of_the_bound(name):
    made, (x, y) = of(name), batch(name, 12 if name == "gumbel-softmax" else 5)
    torch.manual_seed(3)
    key = made.key(x, y)
    assert len(key.noise) == PAIRS[name][1]
    found = made.terms(made.theta, made.h, key)
    torch.manual_seed(3)
    assert torch.allclose(found, drawn(made, x, y), rtol=1e-12, atol=1e-12)
    log_likelihood, kl = found
    inner, outer = (f(made.theta, made.h, key) for f in (made.inner, made.outer))
    assert float(inner) == pytest.approx(float(log_likelihood - 0.3 * kl), rel=1e-12)
    assert float(outer) == pytest.approx(float(0.5 * log_likelihood - 2.0 * kl), rel=1e-12)


def test_the_key_is_all_the_noise():
    """Common random numbers: of the pair, and of the KLs that are estimated."""
    Q = Level(structure=[Against(priors.GumbelSoftmax(0.3), -1.0)])
    made = objectives(scattered(alternatives()), Q=Q)
    theta, h = made.theta, made.h
    keys = []
    for seed in (5, 5, 6):  # it has to trace for the first of them
        torch.manual_seed(seed)
        keys.append(made.key(*rows()))
    key, same, other = keys
    assert all(map(torch.equal, tree_leaves(key), tree_leaves(same)))
    for f in (made.inner, made.outer):
        assert torch.equal(f(theta, h, key), f(theta, h, same))
        assert abs(float(f(theta, h, key) - f(theta, h, other))) > 1e-3
    # The noise of the KL is not that of L.
    same = same._replace(structure=other.structure)
    assert torch.equal(made.inner(theta, h, same), made.inner(theta, h, key))
    assert not torch.equal(made.outer(theta, h, same), made.outer(theta, h, key))


def test_what_the_levels_learn():
    """h is of the priors and of the likelihood; θ is of the guide, and weights that are numbers."""
    made = of("gumbel-softmax")
    assert set(made.h) == {
        "model.net.edges.x-y.line.prior.log_scale",
        "model.net.edges.x-y.curve.0.prior.log_scale",
        "model.likelihood.log_scale",
        "model.edge_priors.x-y.logits",
    }
    assert {*made.theta, *made.h} == {name for name, _ in made.bound.named_parameters()}
    made = of("enumerated")
    assert [*made.h] == ["model.edge_priors.x-y.logits"]
    assert sum(name.startswith("model.net.edges.x-y.") for name in made.theta) == 4
    # A temperature that is learnt is the guide's; what does not learn is neither.
    model, guide = learnt()
    model.likelihood.requires_grad_(False)
    guide.factors["x-y/structure"].logits.requires_grad_(False)
    made = objectives((model, guide))
    assert "guide.factors.x-y/structure.temperature.log_value" in made.theta
    assert "guide.factors.x-y/structure.logits" not in made.theta
    assert "model.likelihood.log_scale" not in made.h


def test_an_annealed_temperature_is_followed():
    annealed = priors.GumbelSoftmax(models.Annealed(2.0, 0.5), learn=True)
    made = objectives(scattered(alternatives(annealed)))
    torch.manual_seed(1)
    key = made.key(*rows())
    before = made.terms(made.theta, made.h, key)
    made.model.anneal(1.0)
    torch.manual_seed(1)
    after = made.terms(made.theta, made.h, key)
    torch.testing.assert_close(after, drawn(made, *rows()), rtol=1e-12, atol=1e-12)
    assert abs(float(after[0] - before[0])) > 1e-3


def test_a_term_of_structure():
    """Equal temperatures are recognised, and the term is for each observation, with its sign."""
    plain = of("gumbel-softmax")
    theta, h, site = plain.theta, plain.h, plain.model.structure["x-y.structure"]
    visited = priors.GumbelSoftmax(0.7, [0.99, 0.05, 0.05])
    theirs = visited.for_edges({"x-y": site.primitives})
    theirs["x-y"].double().temperature = site.temperature
    with torch.no_grad():
        kl = float(structure_kl({"x-y": site}, theirs))
    # p' may be of an edge by its name, and may learn for all it is asked: it stays what it is.
    learns = priors.GumbelSoftmax(0.7, {"x-y": [0.99, 0.05, 0.05]}, learn=True)
    terms = [Against(visited, -1.0), Against(learns, 3.5)]
    levels = Level(prior=0.3), Level(0.5, 2.0, structure=terms)
    made = objectives((plain.model, plain.guide), *levels)
    key = made.key(*rows())
    assert key.structure == [[], []]
    value = made.outer(theta, h, key)
    assert float(value - plain.outer(theta, h, key)) == pytest.approx(-2.5 * kl / 12, rel=1e-9)
    assert torch.equal(made.inner(theta, h, key), plain.inner(theta, h, key))
    assert not value.requires_grad


# Hypergradients of L and Q with everything that they can have, by differences


@functools.cache
def two_levels(particles=1):
    """The objectives, and a key of each, of other rows."""
    torch.manual_seed(0)
    terms = [
        Against(priors.GumbelSoftmax(0.7, [3.0, 1.0, 0.5]), -0.5),  # in closed form
        Against(priors.GumbelSoftmax(0.3, [1.0, 2.0, 1.0]), 0.3),
        Against(priors.Dirichlet(2.0), 0.2),
    ]
    outer = Level(0.8, 0.4, terms)
    made = objectives(scattered(alternatives()), Level(prior=0.7), outer, particles)
    return made, made.key(*rows()), made.key(*rows(seed=1))


def test_the_outer_objective_itself():
    """Every part of Q depends on h; the derivatives alone, without an inner level."""
    made, _, key = two_levels()
    assert [len(noise) for noise in key.structure] == [0, 1, 1]
    theta, h = made.theta, made.h
    found = torch.func.grad(made.outer, argnums=1)(theta, h, key)
    assert error(found, differences(lambda h: made.outer(theta, h, key), h)) < 1e-9
    assert all(float(t.abs().min()) > 1e-6 for t in found.values())


def test_unrolled():
    made, key, key_q = two_levels(2)
    theta, h, update = made.theta, made.h, hg.adam(0.05)
    theta, state = hg.ascend(made.inner, theta, h, keys=[key, key], update=update)
    keys = [made.key(*rows(seed=s)) for s in range(3)]
    options = {"update": update, "state": state, "keys": keys}
    found, end, _ = hg.unrolled(made.inner, made.outer, theta, h, key=key_q, **options)
    direct = torch.func.grad(made.outer, argnums=1)(end, h, key_q)
    assert error(found, direct) > 1e-4  # the steps count

    def after(h):
        return made.outer(hg.ascend(made.inner, theta, h, **options)[0], h, key_q)

    for direction in directions(h, 2):
        slope = along(after, h, direction)
        assert dot(found, direction) == pytest.approx(slope, rel=1e-6)


# KLs between priors of structure: in closed form, by draws and by quadrature


def edges(*kinds, primitives=3):
    """Priors of one edge, with their own random logits."""
    g = torch.Generator().manual_seed(0)
    found = []
    for kind in kinds:
        (prior,) = kind.for_edges({"e": "abcd"[:primitives]}).values()
        prior.double().logits.copy_(torch.randn(primitives, generator=g, dtype=F64))
        found.append({"e": prior})
    return found


def sampled(p, q, count=100_000):
    """The mean of log-ratios of distributions, and its standard error."""
    draws = p.sample((count,))
    ratio = p.log_prob(draws) - q.log_prob(draws)
    return float(ratio.mean()), float(ratio.std()) / count**0.5


CLOSED = [
    priors.GumbelSoftmax(0.5), priors.Dirichlet(1.5), priors.Categorical(),
    priors.RelaxedBernoulli(0.4), priors.Bernoulli(),
]  # fmt: skip


@pytest.mark.parametrize("kind", CLOSED, ids=lambda kind: type(kind).__name__)
def test_structure_kl_in_closed_form(kind):
    ours, theirs = edges(kind, kind)
    if theirs["e"].temperature is not None:
        theirs["e"].temperature = ours["e"].temperature
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = float(structure_kl(ours, theirs))
    assert torch.equal(torch.get_rng_state(), before)  # nothing was drawn
    mean, error = sampled(ours["e"](), theirs["e"]())
    assert abs(found - mean) < limit(5) * error
    assert error < 0.02 * found
    # Edges are independent.
    both = structure_kl({**ours, "f": theirs["e"]}, {**theirs, "f": ours["e"]})
    assert float(both) == pytest.approx(found + float(structure_kl(theirs, ours)), rel=1e-12)


def estimated(ours, theirs, repeats=200):
    torch.manual_seed(2)
    found = torch.stack([structure_kl(ours, theirs) for _ in range(repeats)])
    return float(found.mean()), float(found.std()) / repeats**0.5


def test_structure_kl_at_unequal_temperatures():
    """Of two primitives the KL is an integral over one number, log γ₁ - log γ₂."""
    ours, theirs = edges(priors.GumbelSoftmax(0.8), priors.GumbelSoftmax(0.5), primitives=2)
    a, b = (float(e["e"].logits[0] - e["e"].logits[1]) for e in (ours, theirs))

    def logistic(x, logit, temperature):
        z = torch.tensor(logit - temperature * x, dtype=F64)
        return float(-softplus(z) - softplus(-z)) + math.log(temperature)

    def integrand(x):
        log_p = logistic(x, a, 0.8)
        return math.exp(log_p) * (log_p - logistic(x, b, 0.5))

    exact, _ = quad(integrand, -80, 80, limit=500)
    mean, error = estimated(ours, theirs)
    assert abs(mean - exact) < limit(2) * error
    assert error < 0.05 * exact


# What is refused


def test_what_cannot_be_traced():
    class Multiplied(nn.Linear):
        def forward(self, x):
            return super().forward(x) * torch.bernoulli(0.5 + 0.0 * x[:, :1])

    class Branch(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2.0 if x.sum() > 0 else 1.0)

    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    odd = [nn.Sequential(nn.Linear(2, 2), kind(2, 1)) for kind in (Multiplied, Branch)]
    for model in (linear(net=norm), *(linear(net=net, layers=["0"]) for net in odd)):
        made = objectives(scattered(model))
        with pytest.raises(PyroccamError):
            made.key(*rows())
