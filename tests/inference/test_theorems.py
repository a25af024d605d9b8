"""What is known of the two-level problem, on a linear model whose posteriors are in closed form."""

import copy
import math
from itertools import combinations

import pytest
import torch
from differences import differences, directions, error, gradient_ascent
from pyroccam import guides, models
from pyroccam.inference.selection import Level
from pyroccam.inference.selection import hypergradient as hg
from pyroccam.inference.selection.levels import Key
from scipy.optimize import minimize
from selecting import F64, linear, objectives, rows, scattered

LOC, LOG_SCALE = "guide.factors./weight.loc", "guide.factors./weight.log_scale"
H = "model.net.prior.log_scale"
COUNT, WEIGHTS, SD = 12, 3, 1.0


class Exact:
    """y = X w + noise, w ~ N(0, A⁻¹) with diagonal A, q of independent normals.

    The outputs of the local reparameterisation are normal, the log-likelihood is quadratic in them,
    and so the mean over noise of all ones and all minus ones is its expectation.
    """

    def __init__(self, x, y, guide=guides.MeanField):
        self.x, self.y = x, y
        likelihood = models.Regression(1, scale=SD, floor=0.0)
        model = linear(x.shape[1], count=len(x), likelihood=likelihood)
        model.likelihood.log_scale.requires_grad_(False).fill_(math.log(SD))
        self.made = objectives(scattered_guide(model, guide), particles=2)
        self.key = self.key_of(x, y)
        gram = x.T @ x / SD**2
        self.gram, self.c, self.b = gram, gram.diagonal(), (x.T @ y / SD**2)[:, 0]

    def key_of(self, x, y):
        one = torch.ones(len(x), 1, dtype=F64)
        noise = [torch.stack([one, -one])]
        drawn = self.made.key(x, y).noise
        return Key(x, y, noise if drawn else [], [])

    def at(self, L=None, Q=None):
        """The objectives with other levels, and the same graph."""
        found = copy.copy(self.made)
        found.levels = (L or Level(), Q or Level())
        return found

    def best(self, h, weight=1.0):
        """θ*(h), where ``weight`` is λ of the prior in L."""
        precision = (-2 * h[H][0]).exp()
        mean = torch.linalg.solve(self.gram + (weight * precision).diag(), self.b)
        return {LOC: mean[None], LOG_SCALE: -0.5 * (precision + self.c / weight).log()[None]}

    def log_likelihood(self, theta):
        """Expected under q."""
        gap = (self.y[:, 0] - self.x @ theta[LOC][0]).square().sum() / SD**2
        spread = (self.c * (2 * theta[LOG_SCALE][0]).exp()).sum()
        return float(-0.5 * (gap + spread + len(self.x) * math.log(2 * math.pi * SD**2)))

    def kl(self, theta, h):
        ratio = (2 * (theta[LOG_SCALE] - h[H])).exp()
        squares = theta[LOC].square() * (-2 * h[H]).exp()
        return float(0.5 * (ratio + squares - 1 - ratio.log()).sum())

    def total(self, made, h):
        """Q(θ*(h), h)."""
        return made.outer(self.best(h, made.levels[0].prior), h, self.key)

    def implicit(self, made, h):
        """Its gradient by the implicit function theorem, and the partial one."""
        theta = self.best(h, made.levels[0].prior)
        keys = {"inner_key": self.key, "key": self.key}
        found, _ = hg.implicit(made.inner, made.outer, theta, h, **keys, tol=1e-14)
        slope = torch.func.grad(made.inner)(theta, h, self.key)
        assert max(float(t.abs().max()) for t in slope.values()) < 1e-12
        return found, torch.func.grad(made.outer, argnums=1)(theta, h, self.key)


def scattered_guide(model, guide):
    frozen = model.likelihood.log_scale.clone()
    pair = scattered(model, guide)
    with torch.no_grad():
        model.likelihood.log_scale.copy_(frozen)
    return pair


def data(count=COUNT):
    """Whose inputs are correlated, so that a mean-field posterior is not exact."""
    x, _ = rows(count, WEIGHTS)
    x = x + 0.5 * x.roll(1, 1)
    noise = SD * torch.randn(count, generator=torch.Generator().manual_seed(7), dtype=F64)
    return x, (x @ torch.tensor([1.5, -1.0, 1.2], dtype=F64) + noise)[:, None]


@pytest.fixture(scope="module")
def exact():
    return Exact(*data())


@pytest.fixture(scope="module")
def small():
    return Exact(*data(6))


def some_h(count, seed=0):
    return list(directions({H: torch.empty(1, WEIGHTS)}, count, seed))


def scalar(value):
    """One scale of all weights."""
    return {H: torch.full((1, WEIGHTS), float(value), dtype=F64)}


def test_the_closed_forms(exact):
    for h in some_h(3):
        for weight in (0.2, 1.0, 5.0):
            made, theta = exact.at(Level(prior=weight)), exact.best(h, weight)
            log_likelihood, kl = made.terms(theta, h, exact.key)
            by_hand = exact.log_likelihood(theta) / COUNT, exact.kl(theta, h) / COUNT
            assert (float(log_likelihood), float(kl)) == pytest.approx(by_hand, rel=1e-12)
            slope = torch.func.grad(made.inner)(theta, h, exact.key)
            assert max(float(t.abs().max()) for t in slope.values()) < 1e-12


# One level


def test_one_level_is_the_joint_maximum(exact):
    """λ_prior^Q / λ_lik^Q = λ_prior^L."""
    made = exact.at(Level(prior=0.6), Level(2.0, 1.2))
    start = scalar(0.0)

    def loss(v):
        h = {H: torch.from_numpy(v).reshape(1, WEIGHTS)}
        return -float(exact.total(made, h)), -exact.implicit(made, h)[0][H].numpy().ravel()

    nested = minimize(loss, start[H].numpy().ravel(), jac=True, options={"gtol": 1e-10}).x
    # Jointly: of q the best prior has the variance μ² + σ².
    h = start
    for _ in range(2000):
        theta = exact.best(h, 0.6)
        h = {H: 0.5 * (theta[LOC].square() + (2 * theta[LOG_SCALE]).exp()).log()}
    for slope in torch.func.grad(made.outer, argnums=(0, 1))(theta, h, exact.key):
        assert max(float(t.abs().max()) for t in slope.values()) < 1e-10
    assert error({H: torch.from_numpy(nested).reshape(1, WEIGHTS)}, h) < 1e-7
    # With another ratio that is no maximum.
    other, _ = exact.implicit(exact.at(Level(prior=0.6), Level(2.0, 0.4)), h)
    assert float(other[H].abs().max()) > 1e-2


def test_the_envelope(exact):
    """There, and only there, θ*(h) has no share in the gradient."""
    for h in some_h(2):
        for L, Q, same in (
            (Level(), Level(), True),
            (Level(prior=0.6), Level(2.0, 1.2), True),
            (Level(prior=0.6), Level(2.0, 0.4), False),
            (Level(prior=3.0), Level(prior=0.0), False),
        ):
            made = exact.at(L, Q)
            gradient, partial = exact.implicit(made, h)
            found = differences(lambda h, made=made: exact.total(made, h), h)
            assert error(gradient, found) < 1e-8
            if same:
                assert error(gradient, partial) < 1e-11
            else:
                assert float((gradient[H] - partial[H]).abs().max()) > 1e-3


def test_unrolled_steps_reach_the_implicit_gradient(exact):
    """From the start, in one long gradient ascent of the expected bound."""
    made, h = exact.at(Level(), Level(prior=0.2)), scalar(-0.5)
    start = {LOC: torch.zeros(1, WEIGHTS, dtype=F64), LOG_SCALE: exact.best(h)[LOG_SCALE] - 0.1}
    options = {"keys": [exact.key] * 200, "key": exact.key, "update": gradient_ascent(0.4)}
    found, theta, _ = hg.unrolled(made.inner, made.outer, start, h, **options)
    assert error(theta, exact.best(h)) < 1e-6
    assert error(found, exact.implicit(made, h)[0]) < 1e-5


# The size of the sample


def test_the_weight_of_the_prior_divides_the_sample(small):
    """λ KL: the bound on m / λ of the rows, on average over all choices of them."""
    x, y, whole = small.x, small.y, small
    part = Exact(x[:3], y[:3])
    tempered = whole.at(Level(prior=2.0))
    for theta, h in zip(map(whole.best, some_h(2)), some_h(2, seed=1), strict=True):
        chosen = [list(c) for c in combinations(range(6), 3)]
        values = [part.made.inner(theta, h, part.key_of(x[c], y[c])) for c in chosen]
        mean = torch.stack(values).mean()
        # Both are for each of their own rows: 6 and 3 of them.
        assert float(tempered.inner(theta, h, whole.key)) == pytest.approx(float(mean), rel=1e-12)


# Limits


def test_maximum_likelihood_does_not_know_h(exact):
    """λ_prior^L = 0: θ is that of least squares, without width, and the outer level is void."""
    made = exact.at(Level(prior=0.0), Level(prior=0.3))
    mean = torch.linalg.lstsq(exact.x, exact.y).solution[:, 0]
    h, other = some_h(2)
    theta = {LOC: mean[None], LOG_SCALE: torch.full((1, WEIGHTS), -1.0, dtype=F64)}
    slope = torch.func.grad(made.inner)(theta, h, exact.key)
    assert float(slope[LOC].abs().max()) < 1e-12
    assert bool((slope[LOG_SCALE] < 0.0).all())
    assert torch.equal(made.inner(theta, h, exact.key), made.inner(theta, other, exact.key))
    options = {"keys": [exact.key], "key": exact.key, "update": gradient_ascent(0.1)}
    moved, after, _ = hg.unrolled(made.inner, made.outer, theta, h, **options)
    assert error(moved, torch.func.grad(made.outer, argnums=1)(after, h, exact.key)) < 1e-14


def test_a_point_is_ridge_regression(exact):
    """MAP: a delta guide, with the KL at its weight 1."""
    problem = Exact(*data(), guide=guides.Delta)
    made, h = problem.made, scalar(-0.4)
    value = "guide.factors./weight.value"
    ridge = problem.best(h)[LOC]
    start = {value: torch.zeros(1, WEIGHTS, dtype=F64)}
    options = {"keys": [problem.key] * 300, "update": gradient_ascent(0.4)}
    found, _ = hg.ascend(made.inner, start, h, **options)
    assert error(found, {value: ridge}) < 1e-10
    # And so is that of the loss that a fit minimises.
    made.put({value: ridge}, h)
    assert float(made.bound.kl_weight) == 1.0
    loss = made.bound(problem.x, problem.y)
    assert loss.item() == pytest.approx(-COUNT * float(made.inner({value: ridge}, h, problem.key)))
    (slope,) = torch.autograd.grad(loss, [dict(made.bound.named_parameters())[value]])
    assert float(slope.abs().max()) < 1e-9


# Structure
