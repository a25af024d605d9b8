"""KLs between priors of structure: in closed form, by draws and by quadrature."""

import math

import pytest
import torch
from pyroccam.inference.selection.levels import structure_kl
from pyroccam.models import priors
from random_weights import limit
from scipy.integrate import quad
from selecting import F64
from torch.nn.functional import softplus


def edges(*kinds, primitives=3, seed=0):
    """Priors of one edge, with their own random logits."""
    g = torch.Generator().manual_seed(seed)
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


CLOSED = {
    "gumbel-softmax": priors.GumbelSoftmax(0.5),
    "dirichlet": priors.Dirichlet(1.5),
    "categorical": priors.Categorical(),
    "relaxed bernoulli": priors.RelaxedBernoulli(0.4),
    "bernoulli": priors.Bernoulli(),
}


@pytest.mark.parametrize("name", CLOSED)
def test_structure_kl_in_closed_form(name):
    ours, theirs = edges(CLOSED[name], CLOSED[name])
    if theirs["e"].temperature is not None:
        theirs["e"].temperature = ours["e"].temperature
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = float(structure_kl(ours, theirs))
    assert torch.equal(torch.get_rng_state(), before)  # nothing was drawn
    mean, error = sampled(ours["e"](), theirs["e"]())
    assert abs(found - mean) < limit(5) * error
    assert error < 0.02 * found
    assert float(structure_kl(ours, ours)) == pytest.approx(0.0, abs=1e-12)
    # Edges are independent.
    both = structure_kl({**ours, "f": theirs["e"]}, {**theirs, "f": ours["e"]})
    assert float(both) == pytest.approx(found + float(structure_kl(theirs, ours)), rel=1e-12)


def logistic(x, logit, temperature):
    """The log density of a relaxed gate at its logit x: logistic, of scale 1 / T."""
    z = torch.tensor(logit - temperature * x, dtype=F64)
    return float(-softplus(z) - softplus(-z)) + math.log(temperature)


def estimated(ours, theirs, repeats=200):
    torch.manual_seed(2)
    found = torch.stack([structure_kl(ours, theirs) for _ in range(repeats)])
    return float(found.mean()), float(found.std()) / repeats**0.5


@pytest.mark.parametrize("temperatures", [(0.8, 0.5), (0.5, 1.0)])
def test_structure_kl_at_unequal_temperatures(temperatures):
    """Of two primitives the KL is an integral over one number, log γ₁ - log γ₂."""
    one, other = temperatures
    ours, theirs = edges(priors.GumbelSoftmax(one), priors.GumbelSoftmax(other), primitives=2)
    a, b = (float(e["e"].logits[0] - e["e"].logits[1]) for e in (ours, theirs))

    def integrand(x):
        log_p = logistic(x, a, one)
        return math.exp(log_p) * (log_p - logistic(x, b, other))

    exact, _ = quad(integrand, -80, 80, limit=500)
    mean, error = estimated(ours, theirs)
    assert abs(mean - exact) < limit(2) * error
    assert error < 0.05 * exact


def test_structure_kl_between_families():
    ours, theirs = edges(priors.GumbelSoftmax(0.8), priors.Dirichlet(2.0))
    mean, error = estimated(ours, theirs)
    exact, rest = sampled(ours["e"](), theirs["e"]())
    assert abs(mean - exact) < limit(1) * math.hypot(error, rest)
    equal = edges(priors.GumbelSoftmax(0.8), priors.GumbelSoftmax(0.8))
    assert equal[0]["e"].temperature is not equal[1]["e"].temperature
    mean, error = estimated(*equal)  # equal numbers, but nobody has said so
    equal[1]["e"].temperature = equal[0]["e"].temperature
    assert abs(mean - float(structure_kl(*equal))) < limit(1) * error
