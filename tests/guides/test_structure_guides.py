"""Posteriors of structure: every prior with every family, temperatures, weights beside them."""

import copy
import itertools
import math

import pyro
import pytest
import torch
from alternatives import FIRST, SECOND, batch, make, pair
from pyroccam import guides
from pyroccam.data import PyroccamError
from pyroccam.guides import StructureFamily
from pyroccam.inference.elbo import bound
from pyroccam.models import priors
from pyroccam.models.distributions import (
    ExpDirichlet,
    ExpRelaxedCategorical,
    LearntTemperature,
    LogitRelaxedBernoulli,
)
from pyroccam.models.distributions.relaxed_kl import relaxed_bernoulli_kl, relaxed_categorical_kl
from random_weights import limit
from stepping import step_of

SITES = [f"{FIRST}.structure", f"{SECOND}.structure"]
PRIORS = {
    "gumbel-softmax": priors.GumbelSoftmax(0.7),
    "straight-through": priors.GumbelSoftmax(0.7, straight_through=True),
    "dirichlet": priors.Dirichlet(0.7),
    "categorical": priors.Categorical(),
    "relaxed-bernoulli": priors.RelaxedBernoulli(0.7),
    "bernoulli": priors.Bernoulli(),
}
FAMILIES = {  # distribution, and the restrictions it is for
    "gumbel-softmax": (ExpRelaxedCategorical, ["simplex interior"]),
    "dirichlet": (ExpDirichlet, ["simplex interior"]),
    "relaxed-bernoulli": (LogitRelaxedBernoulli, ["cube interior"]),
    "table": (torch.distributions.Categorical, ["simplex vertices", "cube vertices"]),
    "point": (pyro.distributions.Delta, ["simplex interior", "cube interior"]),
}
OWN = {"straight-through": "gumbel-softmax", "categorical": "table", "bernoulli": "table"}

pytestmark = pytest.mark.usefixtures("clean")


def mean_field(family="prior", temperature="tied", **options):
    family = StructureFamily(family, temperature)
    return lambda model: guides.MeanField(model, structure=family, **options)


def average(model, guide, count=6):
    """Of the loss, by the same random numbers in each call."""
    with torch.no_grad(), pyro.validation_enabled(False):
        evaluate = bound(model, guide, max_plate_nesting=1)
        torch.manual_seed(9)
        return sum(float(evaluate(*batch())) for _ in range(count)) / count


def train(model, guide, steps=8, **settings):
    step = step_of((model, guide), optimizer="adam", lr=0.05, guide_lr=0.05, **settings)
    losses = [float(step(*batch())) for _ in range(steps)]
    assert all(map(math.isfinite, losses))
    step.release()
    return losses


def family_of(guide, site):
    fn = guide.posterior(site)
    return getattr(fn, "base_dist", fn)


# -- every prior with every family ------------------------------------------------------------


@pytest.mark.parametrize("temperature", ["tied", "learnt"])
@pytest.mark.parametrize("family", [*FAMILIES, "prior"])
@pytest.mark.parametrize("kind", PRIORS)
def test_a_pair_trains_or_says_why_not(kind, family, temperature):
    model = make(PRIORS[kind])
    restriction = PRIORS[kind].kind.restriction
    name = OWN.get(kind, kind) if family == "prior" else family
    expected, allowed = FAMILIES[name]
    if restriction not in allowed:
        with pytest.raises(PyroccamError):
            mean_field(family, temperature)(model)
        return
    if temperature == "learnt" and name in ("dirichlet", "table", "point"):
        with pytest.raises(PyroccamError):
            mean_field(family, temperature)(model)
        return
    guide = mean_field(family, temperature)(model)
    for site in SITES:
        assert isinstance(family_of(guide, site), expected)
        if family != "point":
            probs = model.structure[site].probs().detach()
            torch.testing.assert_close(guide.edge(site).probs(), probs)  # at the start
    relaxed = hasattr(family_of(guide, SITES[0]), "temperature")
    assert len(list(guide.parameters())) == 2 + (relaxed and temperature == "learnt")
    if family == "prior":
        return  # as by its own name
    before = average(model, guide)
    start = [p.detach().clone() for p in guide.parameters()]
    train(model, guide)
    assert average(model, guide) < before
    assert not any(torch.equal(p, q) for p, q in zip(guide.parameters(), start, strict=True))


# -- what a factor says -----------------------------------------------------------------------


@pytest.mark.parametrize("least", [-1.0, -2.0])
@pytest.mark.parametrize("kind", PRIORS)
def test_probabilities_entropy_and_vertices_by_listing_them(kind, least):
    """Each vertex of the simplex or of the cube, with its probability."""
    factor = guides.MeanField(make(PRIORS[kind])).edge(SITES[0])
    (parameter,) = factor.parameters()
    most = 2.0 if least == -1.0 else -0.5
    logits = torch.linspace(most, least, len(parameter), dtype=torch.float64)
    with torch.no_grad():
        parameter.copy_(logits)
    if kind == "bernoulli":  # a probability for each subset
        listed = dict(zip(map(tuple, factor.vertices.tolist()), logits.softmax(-1), strict=True))
    elif factor.restriction.startswith("cube"):
        each = [(1.0 - p, p) for p in logits.sigmoid()]
        listed = {
            vertex: math.prod(each[k][int(v)] for k, v in enumerate(vertex))
            for vertex in itertools.product([0.0, 1.0], repeat=len(each))
        }
    else:
        corners = map(tuple, torch.eye(len(logits)).tolist())
        listed = dict(zip(corners, logits.softmax(-1), strict=True))
    probs = sum(p * torch.tensor(v, dtype=torch.float64) for v, p in listed.items())
    torch.testing.assert_close(factor.probs(), probs)
    assert factor.entropy() == pytest.approx(-sum(float(p) * math.log(p) for p in listed.values()))
    best = max(listed, key=listed.get)
    assert tuple(factor.vertex().tolist()) == best
    assert factor.vertex().dtype == torch.float64
    assert factor.vertex_log_prob(factor.vertex()) == pytest.approx(math.log(listed[best]))
    best = max((v for v in listed if any(v)), key=listed.get)
    assert tuple(factor.vertex(empty=False).tolist()) == best


@pytest.mark.parametrize("kind", [priors.Dirichlet, priors.GumbelSoftmax])
def test_a_dirichlet_begins_with_the_concentration_of_the_prior(kind):
    """s T: that of a Dirichlet prior itself, so that the KL begins at zero."""
    temperature, weights = 0.3, torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    edge = kind(temperature, probs=weights.tolist()).for_edges({"x-h": ("a", "b", "c")})["x-h"]
    (factor,) = StructureFamily("dirichlet").factors({"x-h.structure": edge.double()}).values()
    q = factor()
    torch.testing.assert_close(q.concentration, temperature * weights, rtol=1e-6, atol=0.0)
    if kind is priors.Dirichlet:
        kl = torch.distributions.kl_divergence(q, edge())
        assert float(kl.detach()) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("kind", ["gumbel-softmax", "relaxed-bernoulli"])
def test_a_point(kind):
    """One γ: the site is its logarithm, or its log-odds."""
    model, guide = pair(PRIORS[kind], mean_field("point"))
    for site, prior in model.structure.items():
        factor = guide.edge(site)
        gamma = prior.gamma(guide.posterior(site).v)
        torch.testing.assert_close(gamma, factor.probs())
        terms = [bound(model, guide).terms(*batch()).kl for _ in range(2)]
        assert torch.equal(*terms)  # nothing is drawn
    structure = model.structure.items()
    expected = -sum(prior().log_prob(guide.posterior(site).v) for site, prior in structure)
    torch.testing.assert_close(terms[0], expected)


# -- temperatures -----------------------------------------------------------------------------


def closed_form(model, guide):
    kl = 0.0
    for site, prior in model.structure.items():
        if prior.restriction.startswith("cube"):
            kl = kl + relaxed_bernoulli_kl(guide.edge(site).logits, prior.logits).sum()
        else:
            kl = kl + relaxed_categorical_kl(guide.edge(site).logits, prior.logits)
    return kl


def assert_tied(model, guide):
    """One tensor, by which the KL is known, and without noise."""
    for site, prior in model.structure.items():
        q, p = family_of(guide, site), prior()
        assert q.temperature is getattr(p, "base_dist", p).temperature is model.temperature.value
    rows = [t.to(model.temperature.value.dtype) for t in batch()]
    kl = bound(model, guide).terms(*rows).kl
    torch.testing.assert_close(kl, closed_form(model, guide), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["gumbel-softmax", "straight-through", "relaxed-bernoulli"])
def test_a_tied_temperature(kind):
    model, guide = pair(PRIORS[kind])
    assert_tied(model, guide)
    model.temperature.value.fill_(0.2)  # as annealing does
    assert_tied(model, guide)
    other, own = pair(PRIORS[kind], seed=1)
    other.load_state_dict(model.state_dict())
    own.load_state_dict(guide.state_dict())
    assert other.temperature.value == torch.tensor(0.2, dtype=torch.float64)
    assert_tied(other, own)
    assert_tied(*copy.deepcopy((other, own)))
    for part in (other, own):  # in whichever order
        part.float()
    assert_tied(other, own)


def log_ratio(model, guide, *shape):
    """At draws."""
    found = torch.zeros(shape, dtype=torch.float64)
    for site, prior in model.structure.items():
        q = guide.posterior(site)
        value = q.rsample(shape)
        found = found + q.log_prob(value) - prior().log_prob(value)
    return found.detach()


def test_a_learnt_temperature():
    """One of all edges, that begins at the prior's; the KL is the log-ratio at the draw."""
    model, guide = pair(priors.GumbelSoftmax(0.7), mean_field(temperature="learnt"))
    (own,) = [m for m in guide.modules() if isinstance(m, LearntTemperature)]
    names = [name for name, _ in guide.named_parameters()]
    assert len(names) == 3
    assert sum("temperature" in name for name in names) == 1
    torch.nn.init.constant_(own.log_value, math.log(0.7))
    for site in SITES:
        torch.testing.assert_close(family_of(guide, site).temperature, own())
    fresh = mean_field(temperature="learnt")(make(priors.GumbelSoftmax(0.7)))
    assert family_of(fresh, SITES[0]).temperature.item() == pytest.approx(0.7)
    torch.manual_seed(3)
    kl = bound(model, guide).terms(*batch()).kl
    torch.manual_seed(3)
    torch.testing.assert_close(kl, log_ratio(model, guide))
    # At the prior's temperature its mean is that of a tied one.
    ratios = log_ratio(model, guide, 4000)
    error = (ratios.mean() - closed_form(model, guide)).abs() / (ratios.std() / 4000**0.5)
    assert error < limit(1)
    before = own().item()
    train(model, guide)
    assert own().item() != before
    assert model.temperature.value.item() == pytest.approx(0.7)


# -- beside the posterior of the weights ------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "temperature"),
    [("prior", "tied"), ("prior", "learnt"), ("dirichlet", "tied"), ("point", "tied")],
)
def test_variance_networks_begin_with_the_structure(family, temperature):
    weights = mean_field(family, temperature)
    model, guide = pair(PRIORS["gumbel-softmax"], weights, prior=priors.Normal())
    own = guides.ZeroMean(model, begin=guide)
    expected = {name: p for name, p in guide.named_parameters() if "structure" in name}
    found = {name: p for name, p in own.named_parameters() if "structure" in name}
    assert found.keys() == expected.keys()
    for name, p in found.items():
        assert torch.equal(p, expected[name])
        assert p is not expected[name]  # trained on its own
    if family == "prior" and temperature == "tied":
        assert family_of(own, SITES[0]).temperature is model.temperature.value
    bound(model, own)(*batch())
