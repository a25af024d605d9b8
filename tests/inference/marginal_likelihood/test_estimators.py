"""Every estimator of the evidence against its true value: in closed form, or by a grid."""

import dataclasses
import math

import pytest
import torch
from conjugate import NOISE, model_of
from evidences import fitted, hidden, linear, logistic
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.marginal_likelihood import (
    Annealed,
    Bound,
    Descent,
    Exact,
    Importance,
    Langevin,
    Laplace,
    annealing,
)
from pyroccam.inference.marginal_likelihood.annealing import log_mean
from pyroccam.inference.marginal_likelihood.closed_form import Conjugate
from pyroccam.inference.marginal_likelihood.joint import Joint, joint
from pyroccam.models import priors
from random_weights import FourScales, limit, normal_log_density
from scipy.optimize import minimize
from torch import nn

QUICK = {
    one.name: one
    for one in (
        Bound(), Importance(draws=300), Laplace(), Annealed(particles=64, repeats=4), Exact(),
        Descent(steps=60, starts=60), Langevin(steps=100, starts=20),
    )
}  # fmt: skip


@pytest.mark.parametrize("by", QUICK)
def test_of_a_linear_regression(by):
    """Within its error of the closed form, or below it, where it is a bound."""
    fit, known = linear()
    found = inference.evidence(fit, by=QUICK[by])
    assert (found.by, found.rows, found.passes > 0) == (by, 30, True)
    slack = limit(len(QUICK)) * found.error + 1e-8
    assert found.value < known + slack
    if by in ("importance", "annealed", "laplace", "exact"):
        assert known - found.value < slack
        assert found.error < 0.3
    else:
        assert found.direction == "below"
        assert known - found.value < 15.0


@pytest.mark.parametrize("curvature", ["full", "hessian", "kronecker"])
def test_laplace_is_exact_for_a_normal_posterior_from_anywhere(curvature):
    fit, known = linear()
    for climb in (0, 50):
        found = inference.evidence(fit, by=Laplace(curvature=curvature, climb=climb))
        assert found.value == pytest.approx(known, abs=1e-8)
        assert found.error < 1e-8
    moved = dataclasses.replace(fit, guide=guides.MeanField(fit.model))
    found = inference.evidence(moved, by=Laplace(curvature=curvature, climb=0))
    assert found.details["gain"] > 1.0
    assert found.value == pytest.approx(known, abs=1e-8)
    assert found.doubt is not None


def test_a_network_that_no_graph_holds_is_annealed_as_it_is(monkeypatch):
    """Where a graph cannot be recorded, or gives something else at other draws."""
    usual = annealing.of_lists

    def fails(*_):
        raise RuntimeError("no graph")

    def differs(*given):
        whole = usual(*given)
        return lambda theta: [[*whole(theta)[0][:3], 1.001 * whole(theta)[0][3]]]

    with joint(linear()[0], "annealed") as density:
        one, theta = annealing._Places(density, 16), density.draw_prior(16)
        assert one.graph is not None
        for name, broken in (("graph_of", fails), ("of_lists", differs)):
            with monkeypatch.context() as patch:
                patch.setattr(annealing, name, broken)
                other = annealing._Places(density, 16)
            assert other.graph is None
            torch.testing.assert_close(tuple(other.at(theta)), tuple(one.at(theta)))


@pytest.mark.parametrize("by", ["bound", "importance", "annealed", "laplace", "descent"])
def test_of_a_logistic_regression(by):
    """A posterior that is not normal, of which the integral is known by a grid."""
    fit, known = logistic()
    found = inference.evidence(fit, by=QUICK[by])
    assert found.value < known + limit(5) * found.error
    if by in ("importance", "annealed"):
        assert known - found.value < limit(5) * found.error + 1e-3
        assert found.error < 0.2
    if by == "laplace":
        assert 0.01 < abs(found.value - known) < 2.0 * found.error  # wrong, and it says so
        assert abs(found.details["by draws"] - known) < limit(5) * found.details["error of draws"]


@pytest.mark.nightly
def test_a_network_has_one_evidence():
    """The referee sees all peaks; of Laplace's they are 2! 2^2 equal ones, beside flat regions."""
    fit = hidden()
    referee = inference.evidence(fit, by=Annealed(particles=64, repeats=2, moves=2))
    assert referee.error < 0.5
    assert referee.details["least accepted"] > 0.4
    by = [Laplace(curvature="hessian", restarts=n, climb=100) for n in (0, 3)]
    one, best = (inference.evidence(fit, by=each) for each in by)
    assert one.value <= best.value
    assert abs(best.value + math.log(math.factorial(2) * 2**2) - referee.value) < 3.0
    assert best.details["peaks"] > 2
    for by in ("bound", "importance", "descent"):
        found = inference.evidence(fit, by=QUICK[by])
        assert found.value < referee.value + limit(4) * (referee.error + found.error)


def test_positive_scales_against_draws_from_the_prior():
    """Scales that multiply the weights: the mean likelihood of many draws from the prior."""
    x = torch.tensor([[-1.0], [0.3], [0.8], [1.5]])
    y = torch.tensor([[-0.4], [0.3], [0.1], [1.2]])
    table = data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)
    model = model_of(table, prior=FourScales())
    fit = fitted(model, guides.MeanField(model), table, lr=1e-6)
    draws = 400_000
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        w = torch.randn(draws, dtype=torch.float64)
        w = w * torch.randn(draws, 4, dtype=torch.float64).mul(0.5).exp().prod(1)
    each = normal_log_density(y[:, 0].double(), w[:, None] * x[:, 0].double(), NOISE).sum(1)
    known, error = log_mean(each.tolist())
    found = inference.evidence(fit, by=Annealed(particles=256, repeats=6))
    assert abs(found.value - known) < limit(1) * math.hypot(found.error, error)
    with joint(fit, "annealed") as density:
        theta = torch.randn(5, density.size, dtype=torch.float64)
        values, jacobian = density.values(theta)
        scales = [s for s in values if not s.endswith("weight")]
        assert len(scales) == 4
        logs = torch.cat([values[s].reshape(5, -1).log() for s in scales], 1)
        torch.testing.assert_close(jacobian, logs.sum(1))
        torch.testing.assert_close(density.theta(values), theta)


def test_weights_that_are_numbers():
    """The depth alone is random: its sum is the evidence, of which the bound is below."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    rows = data.Dataset.from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    model = models.LearntDepth.mlp(rows, width=4, max_depth=3)
    fit = inference.fit(model, guides.CategoricalDepth(model), rows, steps=30, progress=False)
    exact, bound = (inference.evidence(fit, by=by) for by in ("exact", "bound"))
    assert exact.value == inference.elbo.evidence(model, guides.Marginal(model), rows).elbo
    assert bound.value <= exact.value + 1e-4  # single precision
    with pytest.raises(PyroccamError):
        inference.evidence(fit, by="annealed")
    alone = model.at_depth(2)
    fixed = inference.fit(alone, guides.Deterministic(alone), rows, steps=1, progress=False)
    terms = alone.eval().log_likelihood(*rows.split("train")).sum().detach()
    assert inference.evidence(fixed, by="exact").value == pytest.approx(float(terms), rel=1e-5)


def test_structures_one_by_one():
    """The sum over discrete structures is that of the evidences of each alone."""
    rows = linear()[0].data
    edges = {("x", "y"): {"with": nn.Linear(3, 1), "without": nn.Linear(3, 1, bias=False)}}
    model = models.StructuredNetwork(
        models.StructureGraph(edges), rows, structure=priors.Categorical([0.3, 0.7]),
        prior=priors.Normal(), likelihood=models.Regression(1, scale=NOISE, floor=0.0),
    )  # fmt: skip
    fit = fitted(model, guides.MeanField(model), rows)
    x, y = (part.double() for part in rows.split("train"))
    each = []
    for own in (torch.cat([x, torch.ones_like(x[:, :1])], 1), x):
        cover = own @ own.T + NOISE**2 * torch.eye(len(x), dtype=x.dtype)
        zero = torch.zeros(len(x), dtype=x.dtype)
        each.append(torch.distributions.MultivariateNormal(zero, cover).log_prob(y[:, 0]))
    known = torch.stack([each[0] + math.log(0.3), each[1] + math.log(0.7)]).logsumexp(0)
    found = inference.evidence(fit, by="exact")
    assert found.details["structures"] == 2
    assert found.value == pytest.approx(float(known), abs=1e-5)
    assert inference.evidence(fit, by="bound").value < found.value
    with pytest.raises(PyroccamError):
        inference.evidence(fit, by="annealed")


def test_what_an_estimator_is_not_for():
    fit, known = linear()
    points = fitted(fit.model, guides.Delta(fit.model), fit.data)
    assert inference.evidence(points, by="laplace").value == pytest.approx(known, abs=1e-2)
    improper = model_of(fit.data, prior=priors.LogUniform())
    other = fitted(improper, guides.MeanField(improper), fit.data)
    assert "no finite integral" in inference.evidence(other).doubt
    for odd, names in (
        (fit, ["bond", Laplace(updates=3)]),  # a prior that learns nothing
        (points, ["bound", "importance"]),
        (hidden(), ["exact"]),
        (logistic()[0], ["exact"]),
        (other, ["importance", "annealed", "laplace", "descent"]),
    ):
        for by in names:
            with pytest.raises(PyroccamError):
                inference.evidence(odd, by=by)
    with pytest.raises(PyroccamError):
        Importance(draws=9, repeats=9)


def test_a_network_that_is_silent_somewhere_is_not_taken_for_linear():
    """One rectified unit: at half of all places only the bias of the last layer is left."""
    x = torch.linspace(0.5, 2.0, 8)[:, None]
    table = data.Dataset.from_tensors(x, x, x, x, val_fraction=0.0, standardise=False)
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1))
    likelihood = models.Regression(1, scale=0.5, floor=0.0)
    model = models.BayesianNetwork(net, table, prior=priors.Normal(), likelihood=likelihood)
    density = Joint(model, guides.MeanField(model), table)
    for seed in range(20):
        torch.manual_seed(seed)
        with pytest.raises(PyroccamError):
            Conjugate(density)


def test_the_mean_of_logarithms():
    values = [-3.0, -1.0, -2.0]
    found, error = log_mean(values)
    weights = torch.tensor(values, dtype=torch.float64).exp()
    assert found == pytest.approx(float(weights.mean().log()))
    assert error == pytest.approx(float(weights.std() / weights.mean()) / math.sqrt(3))


# MacKay's updates of the prior, beside the prior of the greatest evidence


@pytest.fixture(scope="module")
def line():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(25, 6, generator=generator)
    w = 0.4 + 0.3 * torch.randn(6, 1, generator=generator)
    y = x @ w + 0.2 + NOISE * torch.randn(25, 1, generator=generator)
    return data.Dataset.from_tensors(x, y, x, y, val_fraction=0.0, standardise=False)


@pytest.mark.parametrize(("learn", "curvature"), [("scale", "full"), ("layer", "kronecker")])
def test_the_prior_of_the_greatest_evidence(line, learn, curvature):
    model = model_of(line, bias=True, prior=priors.Normal(3.0, learn=learn))
    fit = fitted(model, guides.MeanField(model), line)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = inference.evidence(fit, by=Laplace(curvature=curvature, updates=60))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])  # the fit keeps its own
    x, y = (part.double() for part in line.split("train"))
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)

    def loss(at):
        """Minus ``log N(y; m X 1, s² X Xᵀ + σ² I)``, weights and bias alike."""
        mean, scale = at[1] if learn == "layer" else 0.0, math.exp(at[0])
        cover = scale**2 * x @ x.T + NOISE**2 * torch.eye(len(x), dtype=x.dtype)
        law = torch.distributions.MultivariateNormal(mean * x.sum(1), cover)
        return -float(law.log_prob(y[:, 0]))

    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9})
    assert found.value == pytest.approx(-best.fun, abs=1e-5)
    assert found.details["prior scale of 0"] == pytest.approx(math.exp(best.x[0]), rel=1e-3)
    assert found.value > inference.evidence(fit, by=Laplace(curvature=curvature)).value + 1.0
