"""L and Q of a pair: their terms, their noise, and what they refuse."""

import functools
import math

import pyro
import pytest
import torch
from differences import differences, error
from pyroccam import guides, models
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.selection import Against, InverseGamma, Level
from pyroccam.inference.selection.levels import structure_kl
from pyroccam.models import priors
from random_weights import Rows
from scipy.stats import invgamma
from selecting import F64, alternatives, linear, objectives, rows, scattered
from torch import nn
from torch.utils._pytree import tree_leaves

# Terms


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
    "weights": (lambda: scattered(linear(), local=False), 1),
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


@pytest.mark.parametrize("name", PAIRS)
def test_terms_are_those_of_the_bound(name):
    made, (x, y) = of(name), batch(name, 12 if name == "gumbel-softmax" else 5)
    torch.manual_seed(3)
    key = made.key(x, y)
    assert len(key.noise) == PAIRS[name][1]
    found = made.terms(made.theta, made.h, key)
    torch.manual_seed(3)
    with torch.no_grad(), pyro.validation_enabled(False):
        terms = made.bound.terms(x, y)
    expected = torch.stack([terms.log_likelihood, terms.kl]) / 12
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    log_likelihood, kl = found
    inner, outer = (f(made.theta, made.h, key) for f in (made.inner, made.outer))
    assert float(inner) == pytest.approx(float(log_likelihood - 0.3 * kl), rel=1e-12)
    assert float(outer) == pytest.approx(float(0.5 * log_likelihood - 2.0 * kl), rel=1e-12)


@pytest.mark.parametrize("name", ["gumbel-softmax", "point"])
def test_particles_are_averaged(name):
    one, three, rows = of(name), of(name, particles=3), batch(name)
    torch.manual_seed(1)
    key = three.key(*rows)
    assert [len(n) for n in key.noise] == [3] * PAIRS[name][1]
    torch.manual_seed(1)
    each = [one.terms(one.theta, one.h, one.key(*rows)) for _ in range(3)]
    found = three.terms(one.theta, one.h, key)
    assert torch.allclose(found, torch.stack(each).mean(0), rtol=1e-12, atol=1e-12)


def test_dropout_is_held_too():
    net = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Dropout(0.4), nn.Linear(4, 1, bias=False))
    made, (x, y) = objectives(scattered(linear(net=net), guides.Delta), particles=2), rows()
    key = made.key(x, y)
    (drawn,) = key.noise
    assert drawn.shape == (2, 12, 4)
    first, second = (made.theta[f"guide.factors.{n}/weight.value"] for n in "02")
    means = (x @ first.T) * (drawn >= 0.4) / 0.6 @ second.T
    density = torch.distributions.Normal(means, made.model.likelihood.scale.detach()).log_prob(y)
    found = made.terms(made.theta, made.h, key)[0]
    assert float(found) == pytest.approx(float(density.sum() / 24), rel=1e-12)


def test_the_key_is_all_the_noise():
    """Common random numbers: of the pair, and of the KLs that are estimated."""
    Q = Level(structure=[Against(priors.GumbelSoftmax(0.3), -1.0)])
    made = objectives(scattered(alternatives()), Q=Q)
    theta, h = made.theta, made.h
    moved = {n: t + 1e-7 for n, t in h.items()}
    keys = []
    for seed in (5, 5, 6):  # it has to trace for the first of them
        torch.manual_seed(seed)
        keys.append(made.key(*rows()))
    for one, two in zip(*(tree_leaves(key) for key in keys[:2]), strict=True):
        assert torch.equal(one, two)
    key, same, other = keys
    for f in (made.inner, made.outer):
        assert torch.equal(f(theta, h, key), f(theta, h, same))
        assert abs(float(f(theta, h, key) - f(theta, h, other))) > 1e-3
        assert abs(float(f(theta, h, key) - f(theta, moved, key))) < 1e-5
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
    assert all(name.startswith("guide.") for name in made.theta)
    assert "guide.factors.x-y/structure.logits" in made.theta
    assert {*made.theta, *made.h} == {name for name, _ in made.bound.named_parameters()}
    # Weights that are numbers.
    made = of("enumerated")
    assert [*made.h] == ["model.edge_priors.x-y.logits"]
    numbers = {name for name in made.theta if name.startswith("model.net.edges.x-y.")}
    assert {*made.theta} - numbers == {"guide.factors.x-y/structure.logits"}
    assert len(numbers) == 4
    # A temperature that is learnt is the guide's; what does not learn is neither.
    model, guide = learnt()
    model.likelihood.requires_grad_(False)
    guide.factors["x-y/structure"].logits.requires_grad_(False)
    made = objectives((model, guide))
    assert "guide.factors.x-y/structure.temperature.log_value" in made.theta
    assert "guide.factors.x-y/structure.logits" not in made.theta
    assert "model.likelihood.log_scale" not in made.h


def test_values_are_put_in_place():
    model, guide = scattered(linear())
    made = objectives((model, guide))
    key = made.key(*rows())
    before = made.outer(made.theta, made.h, key)
    theta = {n: t + 1.0 for n, t in made.theta.items()}
    h = {n: t - 1.0 for n, t in made.h.items()}
    value = made.outer(theta, h, key)
    assert torch.equal(made.outer(made.theta, made.h, key), before)  # what is held is not used
    made.put(theta, h)
    for values, own in ((theta, made.theta), (h, made.h)):
        for name, t in values.items():
            assert torch.equal(own[name], t)
            assert own[name] is not t
            assert not own[name].requires_grad
    assert torch.equal(model.likelihood.log_scale, h["model.likelihood.log_scale"])
    assert torch.equal(made.outer(made.theta, made.h, key), value)


def test_an_annealed_temperature_is_followed():
    annealed = priors.GumbelSoftmax(models.Annealed(2.0, 0.5), learn=True)
    made = objectives(scattered(alternatives(annealed)))
    torch.manual_seed(1)
    key = made.key(*rows())
    before = made.terms(made.theta, made.h, key)
    made.model.anneal(1.0)
    torch.manual_seed(1)
    with torch.no_grad(), pyro.validation_enabled(False):
        terms = made.bound.terms(*rows())
    after = made.terms(made.theta, made.h, key)
    assert float(after[0]) == pytest.approx(float(terms.log_likelihood) / 12, rel=1e-12)
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
    gap = float(value - plain.outer(theta, h, key))
    assert gap == pytest.approx(-2.5 * kl / 12, rel=1e-9)
    assert torch.equal(made.inner(theta, h, key), plain.inner(theta, h, key))
    assert not value.requires_grad


def test_inverse_gamma():
    density = InverseGamma(1.7, 0.6)
    torch.manual_seed(0)
    h = {
        "model.net.0.prior.log_scale": torch.randn(2, 3, dtype=F64),
        "model.net.0.prior.log_scale_bias": torch.randn(2, dtype=F64),
        "model.net.1.prior.log_scale": torch.randn((), dtype=F64),
        "model.likelihood.log_scale": torch.randn(1, dtype=F64),  # is of the data, not of weights
        "model.net.0.prior.loc": torch.randn((), dtype=F64),
        "model.edge_priors.x-y.logits": torch.randn(3, dtype=F64),
    }
    scales = [t.flatten() for n, t in h.items() if "prior.log_scale" in n]
    variances = torch.cat(scales).mul(2).exp()
    expected = invgamma.logpdf(variances.numpy(), 1.7, scale=0.6).sum()
    assert float(density.log_density(h)) == pytest.approx(expected, rel=1e-12)
    slopes = torch.func.grad(density.log_density)(h)
    assert error(slopes, differences(density.log_density, h)) < 1e-9
    assert not slopes["model.likelihood.log_scale"].any()
    # For each observation, in Q.
    levels = (Level(hyperprior=p) for p in (None, density))
    plain, with_it = (objectives(scattered(linear()), Q=Q) for Q in levels)
    key = plain.key(*rows())
    gap = with_it.outer(plain.theta, plain.h, key) - plain.outer(plain.theta, plain.h, key)
    assert float(gap) == pytest.approx(float(density.log_density(plain.h)) / 12, rel=1e-10)


# What is refused


def test_nothing_to_learn():
    fixed = linear(prior=priors.Normal())
    fixed.likelihood.requires_grad_(False)
    with pytest.raises(PyroccamError):
        objectives(scattered(fixed))
    model, guide = scattered(linear())
    guide.requires_grad_(False)
    with pytest.raises(PyroccamError):
        objectives((model, guide))


def refused(model):
    made = objectives(scattered(model))
    with pytest.raises(PyroccamError):
        made.key(*rows())


def test_what_cannot_be_traced():
    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    refused(linear(net=norm))

    class Multiplied(nn.Linear):
        def forward(self, x):
            return super().forward(x) * torch.bernoulli(0.5 + 0.0 * x[:, :1])

    drawn = linear(net=nn.Sequential(nn.Linear(2, 2), Multiplied(2, 1)), layers=["0"])
    refused(drawn)

    class Branch(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2.0 if x.sum() > 0 else 1.0)

    net = nn.Sequential(nn.Linear(2, 2), Branch(2, 1))
    refused(linear(net=net, layers=["0"]))


def test_terms_that_do_not_fit_the_model():
    against = Level(structure=[Against(priors.GumbelSoftmax(), -1.0)])
    with pytest.raises(PyroccamError):
        objectives(scattered(linear()), Q=against)
    for prior in (priors.Categorical(), priors.RelaxedBernoulli()):
        with pytest.raises(PyroccamError):
            objectives(scattered(alternatives()), Q=Level(structure=[Against(prior, -1.0)]))
    wrong = Level(structure=[Against(priors.GumbelSoftmax(probs={"x-v": [1.0, 2.0]}), 1.0)])
    with pytest.raises(PyroccamError):
        objectives(scattered(alternatives()), Q=wrong)
    # A Dirichlet prior is drawn by gamma variables, where its KL is not known.
    own = alternatives(priors.Dirichlet(1.0, learn=True))
    point = guides.StructureFamily("point")
    for other in (priors.GumbelSoftmax(), priors.Dirichlet(2.0)):
        level = Level(structure=[Against(other, -1.0)])
        made = objectives(scattered(own, structure=point), Q=level)
        assert math.isfinite(float(made.outer(made.theta, made.h, made.key(*rows()))))
    # A hyperprior of variances, where none is learnt but the noise's.
    variances, fixed = Level(hyperprior=InverseGamma(1.0, 1.0)), alternatives(prior=priors.Normal())
    made = objectives(scattered(fixed), Q=variances)
    with pytest.raises(PyroccamError):
        made.outer(made.theta, made.h, made.key(*rows()))
