"""Priors over structure: what is in them, what they refuse, and temperatures."""

import itertools
import math

import pyro.distributions as dist
import pytest
import torch
from alternatives import EDGES, FIRST, SECOND, make
from pyroccam.data import PyroccamError
from pyroccam.models import Annealed, priors
from pyroccam.models.distributions import ExpDirichlet, ExpRelaxedCategorical, LogitRelaxedBernoulli
from pyroccam.models.priors import StructurePrior

SIMPLEX, CUBE, LOG = (3.0, 1.0, 0.5), (0.9, 0.5, 0.2), torch.tensor([0.2, 0.5, 0.3]).log()
KINDS = {  # the distribution of a site, and the restriction
    priors.GumbelSoftmax: (ExpRelaxedCategorical, "simplex interior"),
    priors.Dirichlet: (ExpDirichlet, "simplex interior"),
    priors.Categorical: (dist.Categorical, "simplex vertices"),
    priors.RelaxedBernoulli: (LogitRelaxedBernoulli, "cube interior"),
    priors.Bernoulli: (dist.Categorical, "cube vertices"),
}


def weights_of(kind):
    return CUBE if kind.cube else SIMPLEX


def expected_probs(kind):
    weights = torch.tensor(weights_of(kind))
    return weights if kind.cube else weights / weights.sum()


def of_edge(kind, names=("a", "b", "c"), edge="x-h", **options):
    """The prior of one edge."""
    options = {"probs": weights_of(kind)[: len(names)], **options}
    return kind(**options).for_edges({edge: names})[edge]


def test_all_kinds_are_here():
    kinds = [getattr(priors, name) for name in priors.__all__]
    found = {k for k in kinds if isinstance(k, type) and issubclass(k, StructurePrior)}
    assert found - {StructurePrior} == {*KINDS}


# -- distributions ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_distribution_of_a_site(kind):
    torch.manual_seed(0)
    prior = of_edge(kind)
    fn = prior()
    family, restriction = KINDS[kind]
    assert isinstance(getattr(fn, "base_dist", fn), family)
    assert fn.batch_shape == ()
    assert prior.restriction == restriction
    torch.testing.assert_close(prior.probs(), expected_probs(kind))
    gamma = prior.gamma(fn.sample((40,)))
    assert gamma.shape == (40, 3)
    assert ((gamma >= 0) & (gamma <= 1)).all()
    if not restriction.startswith("cube"):
        torch.testing.assert_close(gamma.sum(-1), torch.ones(40))
    hard = ((gamma == 0) | (gamma == 1)).all()
    assert bool(hard) == restriction.endswith("vertices")


def test_straight_through_computes_at_the_vertex_with_the_gradient_of_gamma():
    log = LOG.clone().requires_grad_()
    hard = of_edge(priors.GumbelSoftmax, straight_through=True).gamma(log)
    soft = of_edge(priors.GumbelSoftmax).gamma(log)
    assert hard.tolist() == [0.0, 1.0, 0.0]
    cost = torch.tensor([1.0, -2.0, 5.0])
    slopes = [torch.autograd.grad(gamma @ cost, log)[0] for gamma in (hard, soft)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("count", [1, 3, 12])
def test_subsets_of_the_primitives(count):
    """All of them, with the products of the marginals, which sum to one."""
    p = torch.linspace(0.1, 0.9, count)
    prior = of_edge(priors.Bernoulli, [str(k) for k in range(count)], probs=p.tolist())
    assert prior.vertices.tolist() == [list(v) for v in itertools.product((0, 1), repeat=count)]
    probs = prior().log_prob(torch.arange(2**count)).exp()
    by_hand = torch.where(prior.vertices > 0, p, 1 - p).prod(1)
    torch.testing.assert_close(probs, by_hand, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(probs @ prior.vertices, prior.probs())


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_a_dirichlet_has_the_concentration_t_s(temperature):
    """The mean is s / Σs at any temperature; s is not normalised."""
    fn = of_edge(priors.Dirichlet, temperature=temperature)()
    torch.testing.assert_close(fn.concentration, temperature * torch.tensor(SIMPLEX))
    mean = fn.concentration / fn.concentration.sum()
    torch.testing.assert_close(mean, expected_probs(priors.Dirichlet))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_probabilities_of_all_edges_or_by_edge(kind):
    found = kind(probs={SECOND: weights_of(kind)[:2]}).for_edges(EDGES)
    assert list(found) == [FIRST, SECOND]
    uniform = torch.full((3,), 0.5 if kind.cube else 1 / 3)
    torch.testing.assert_close(found[FIRST].probs(), uniform)
    torch.testing.assert_close(found[SECOND].probs(), of_edge(kind, ("a", "b")).probs())
    for prior in kind().for_edges(EDGES).values():
        assert not prior.logits.any()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("learn", [False, True])
def test_what_is_learnt_is_a_parameter_of_the_prior(kind, learn):
    """Where they are not learnt they are made of the arguments, not of a saved state."""
    model = make(kind(learn=learn))
    names = [f"edge_priors.{edge}.logits" for edge in EDGES if learn]
    assert [name for name, _ in model.named_parameters() if "edge_priors" in name] == names
    assert [name for name in model.state_dict() if name.endswith("logits")] == names


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_cannot_be_is_refused(kind):
    values = (0.0, -1.0, math.inf, *([1.0] if kind.cube else []))
    given = ([0.5, 0.5], {"x-g": [0.5, 0.5]}, *({SECOND: [value, 0.5]} for value in values))
    for probs in given:
        with pytest.raises(PyroccamError):
            kind(probs=probs).for_edges(EDGES)
    names = [str(k) for k in range(13)]
    if kind is priors.Bernoulli:  # too many subsets
        with pytest.raises(PyroccamError):
            kind().for_edges({"x-h": names})
    else:
        kind().for_edges({"x-h": names})


# -- temperatures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (0.7, [0.7, 0.7, 0.7, 0.7]),
        (Annealed(4.0, 1.0), [4.0, 3.25, 2.5, 1.0]),
        (Annealed(4.0, 1.0, over=0.5), [4.0, 2.5, 1.0, 1.0]),
        (Annealed(4.0, 1.0, shape="exponential"), [4.0, 2**1.5, 2.0, 1.0]),
        (Annealed(4.0, 1.0, over=0.5, shape="exponential"), [4.0, 2.0, 1.0, 1.0]),
    ],
)
def test_annealing(schedule, expected):
    prior = priors.GumbelSoftmax(schedule).for_edges(EDGES)[FIRST]
    before = prior.temperature.value
    for progress, value in zip((0.0, 0.25, 0.5, 1.0), expected, strict=True):
        prior.temperature.anneal(progress)
        assert prior().temperature is before  # in place: guides hold the same tensor
        assert float(before) == pytest.approx(value, rel=1e-6)


# -- a scale of each weight -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "prior"),
    [
        ("categorical", priors.Categorical()),
        (" Bernoulli ", priors.Bernoulli()),
        ("dirichlet:0.5", priors.Dirichlet(0.5)),
        ("relaxed_bernoulli", priors.RelaxedBernoulli()),
        ("gumbel-softmax:1:0.2", priors.GumbelSoftmax(Annealed(1.0, 0.2))),
    ],
)
def test_words(text, prior):
    assert priors.parse_structure(text) == prior
